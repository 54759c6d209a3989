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
          stored_(binding.output->channels),
          space_(context.sum_space(stored_)),
          memory_(
              context.allocate(static_cast<size_t>(NormState::arrays * stored_) * sizeof(float))) {
        const int64_t values = binding.batch * node_.shape[1] * node_.shape[2];
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
    }

    void load_weights() override {
        if (!binding_.training)
            line_up_norm_inference(node_.shape[0], stored_, parameters_, state_, context_.stream());
    }

    void forward(Lane&) override {
        if (binding_.training)
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
        line_up_norm_gradient_sums(input(), output(), gradients, mask(),
                                   has_masked ? &masked : nullptr, parameters_, state_, gradient(0),
                                   gradient(1), space_, context_.stream());
        if (wants_input_gradient())
            line_up_norm_input_gradient(input(), gradients, mask(), output(),
                                        has_masked ? &masked : nullptr, input_gradient(), state_,
                                        context_.stream());
    }

    std::string implementation() const override { return "fused"; }

  private:
    // Without a residual the output's sign follows from the input, which is read anyway.
    Mask mask() const {
        return !node_.relu ? Mask::none : binding_.inputs.size() > 1 ? Mask::output : Mask::input;
    }

    int64_t stored_;
    SumSpace space_;
    Memory memory_;
    NormState state_{};
    NormParameters parameters_;
};

}  // namespace

std::unique_ptr<Operation> build_batch_norm(Context& context, const Binding& binding) {
    return std::make_unique<BatchNorm>(context, binding);
}

}  // namespace trainer::cuda
