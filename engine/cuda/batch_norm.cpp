// Batch normalisation (arXiv 1502.03167) with the residual and the ReLU behind it in the same
// kernels: y = relu(gamma * (x - mean) / sqrt(var + epsilon) + beta + residual).
//
// Forward reads x twice (statistics; y), backward reads the gradients twice (sums; dx).
#include "engine/cuda/operations.h"

namespace trainer::cuda {

namespace {

class BatchNorm final : public CudaOperation {
  public:
    BatchNorm(Context& context, const Binding& binding)
        : CudaOperation(context, binding),
          team_(binding.training && binding.team_batch > 0 ? context.team() : nullptr),
          stored_(binding.output->channels),
          space_(context.sum_space(stored_)),
          memory_(
              context.allocate(static_cast<size_t>(NormState::arrays * stored_) * sizeof(float))) {
        const int64_t plane = node_.shape[1] * node_.shape[2];
        const int64_t values = (team_ ? binding.team_batch : binding.batch) * plane;
        if (binding.training && values < 2)
            throw UsageError(node_.name +
                             ": batch norm needs more than one value a channel to train on; take a "
                             "batch of two or more, or larger images");
        check(binding.output_gradients.size() <= Gradients::most,
              "a batch norm feeds no more layers than that");
        float* array = reinterpret_cast<float*>(memory_.data.get());
        for (float** const place :
             {&state_.center, &state_.scale, &state_.shift, &state_.inverse_std, &state_.dx_scale,
              &state_.dx_slope, &state_.dx_offset}) {
            *place = array;
            array += stored_;
        }
        float* const running = context.on_device(*binding.statistics);
        const TensorTable& table = binding.statistics->table();
        parameters_ = {.gamma = parameter(0),
                       .beta = parameter(1),
                       .running_mean = running + table[node_.statistics[0]].offset,
                       .running_var = running + table[node_.statistics[1]].offset,
                       .epsilon = node_.epsilon,
                       .momentum = node_.momentum};
        if (team_ == nullptr)
            return;
        check(team_->size() <= NormParts::most, "a batch norm is shared by no more GPUs than that");
        parts_memory_ =
            context.allocate(static_cast<size_t>(team_->size() * 2 * stored_) * sizeof(double));
        parts_ = {.sums = reinterpret_cast<double*>(parts_memory_.data.get()),
                  .rank = team_->rank(),
                  .ranks = team_->size()};
        for (int rank = 0; rank < parts_.ranks; ++rank)
            parts_.counts[rank] =
                static_cast<double>(part_of(binding.team_batch, rank, parts_.ranks).count * plane);
    }

    void load_weights() override {
        if (!binding_.training)
            line_up_norm_inference(node_.shape[0], stored_, parameters_, state_, context_.stream());
    }

    void forward(Lane&) override {
        if (team_ != nullptr)
            take_statistics_of_all();
        else if (binding_.training)
            line_up_norm_statistics(input(), parameters_, state_, space_, context_.stream());
        const bool residual = binding_.inputs.size() > 1;
        const Tensor added = residual ? input(1) : Tensor{};
        line_up_norm_output(input(), residual ? &added : nullptr, output(), node_.relu, state_,
                            context_.stream());
    }

    void backward(Lane&) override {
        Gradients gradients;
        for (const Buffer* const buffer : binding_.output_gradients)
            gradients.data[gradients.count++] = buffer->data;
        const bool has_masked =
            binding_.input_gradients.size() > 1 && binding_.input_gradients[1] != nullptr;
        const Tensor masked = has_masked ? input_gradient(1) : Tensor{};
        if (team_ != nullptr)
            sum_gradients_of_all(gradients, has_masked ? &masked : nullptr);
        else
            line_up_norm_gradient_sums(input(), output(), gradients, mask(),
                                       has_masked ? &masked : nullptr, parameters_, state_,
                                       gradient(0), gradient(1), space_, context_.stream());
        if (wants_input_gradient())
            line_up_norm_input_gradient(input(), gradients, mask(), output(),
                                        has_masked ? &masked : nullptr, input_gradient(), state_,
                                        context_.stream());
    }

    std::string implementation() const override { return "fused"; }

  private:
    // Statistics are of the whole batch, however many GPUs share it.
    void take_statistics_of_all() {
        line_up_norm_part(input(), parts_, space_, context_.stream());
        team_->gather(parts_.sums, 2 * stored_, context_.stream());
        line_up_norm_statistics_of_parts(node_.shape[0], stored_, parts_, parameters_, state_,
                                         context_.stream());
    }
    void sum_gradients_of_all(const Gradients& gradients, const Tensor* masked) {
        line_up_norm_gradient_part(input(), output(), gradients, mask(), masked, state_,
                                   gradient(0), gradient(1), parts_, space_, context_.stream());
        team_->gather(parts_.sums, 2 * stored_, context_.stream());
        line_up_norm_gradient_of_parts(node_.shape[0], stored_, parts_, parameters_, state_,
                                       context_.stream());
    }

    // Without a residual the output's sign follows from the input, which is read anyway.
    Mask mask() const {
        return !node_.relu ? Mask::none : binding_.inputs.size() > 1 ? Mask::output : Mask::input;
    }

    Communicator* team_;  // nullptr: this GPU has the whole batch
    int64_t stored_;
    SumSpace space_;
    Memory memory_;
    NormState state_{};
    NormParameters parameters_;
    Memory parts_memory_;
    NormParts parts_;
};

}  // namespace

std::unique_ptr<Operation> build_batch_norm(Context& context, const Binding& binding) {
    return std::make_unique<BatchNorm>(context, binding);
}

}  // namespace trainer::cuda
