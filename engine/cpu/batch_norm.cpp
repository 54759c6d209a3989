// Batch normalisation (arXiv 1502.03167) with the residual and the ReLU behind it in the same
// passes: y = relu(gamma * (x - mean) / sqrt(var + epsilon) + beta + residual).
//
// Forward reads x twice (statistics; y), backward reads the gradient twice (sums; dx), with one
// barrier between: the statistics are those of the whole batch, each lane adding up all lanes'
// sums in lane order for itself.
#include <cmath>

#include "engine/cpu/batch_norm_kernels.h"
#include "engine/cpu/operations.h"

namespace trainer::cpu {

namespace {

template <typename T, int B>
class BatchNorm final : public PlainOperation {
  public:
    BatchNorm(Context& context, const Binding& binding);

    void load_weights() override;
    void forward(Lane& lane) override;
    void backward(Lane& lane) override;
    std::string implementation() const override { return "fused"; }

  private:
    // Of one lane; each array has the padded channels. Others read the sums, and only those.
    struct LaneState {
        double count = 0;                      // values a channel of this lane
        std::vector<double> mean, squares;     // of this lane's x: mean, sum of squared deviations
        std::vector<double> g_sum, g_product;  // of this lane's g: see add_gradient_sums
        std::vector<float> center, scale, shift, inverse_std;  // of the whole batch
        std::vector<float> dx_scale, dx_slope, dx_offset;
        std::vector<const T*> gradients;
    };

    void take_moments(const Lane& lane, LaneState& state) const;
    void combine_moments(const Lane& lane, LaneState& state) const;
    void update_running(int64_t c, double mean, double squares) const;
    void set_affine(LaneState& state, size_t c, double mean, double variance) const;
    void write_output(const Lane& lane, const LaneState& coefficients) const;

    void take_gradient_sums(const Lane& lane, LaneState& state) const;
    void combine_gradient_sums(const Lane& lane, LaneState& state) const;
    void write_input_gradients(const Lane& lane, LaneState& state) const;
    // Calls run.template operator()<number of gradients (0: any), mask>().
    template <typename Run>
    static void with_kind(size_t gradient_count, Mask mask, Run run);

    static AffineOf affine(const LaneState& state, int64_t c) {
        return {&state.center[static_cast<size_t>(c)], &state.scale[static_cast<size_t>(c)],
                &state.shift[static_cast<size_t>(c)]};
    }
    LaneState& state(const Lane& lane) { return states_[static_cast<size_t>(lane.index())]; }
    const float* parameter(size_t index) const {
        return reinterpret_cast<const float*>(weight_of(binding_, index));
    }
    float* running(size_t index) const {
        const TensorInfo& info = binding_.statistics->table()[node_.statistics[index]];
        return binding_.statistics->tensor<float>(slab::weights, info).data();
    }
    const Buffer* residual() const {
        return binding_.inputs.size() > 1 ? binding_.inputs[1] : nullptr;
    }
    const Buffer* residual_gradient() const {
        return binding_.input_gradients.size() > 1 ? binding_.input_gradients[1] : nullptr;
    }
    Mask mask() const { return !node_.relu ? Mask::none : residual() ? Mask::output : Mask::input; }

    int64_t channels_, padded_, positions_;  // positions: pixels of a plane
    std::vector<LaneState> states_;
};

template <typename T, int B>
BatchNorm<T, B>::BatchNorm(Context& context, const Binding& binding)
    : PlainOperation(context, binding),
      channels_(node_.shape[0]),
      padded_(binding.output->channels),
      positions_(node_.shape[1] * node_.shape[2]),
      states_(context.lanes.size()) {
    if (binding.training && binding.batch * positions_ < 2)
        throw UsageError(node_.name +
                         ": batch norm needs more than one value a channel to train on; take a "
                         "batch of two or more, or larger images");
    const auto size = static_cast<size_t>(padded_);
    for (LaneState& state : states_) {
        for (auto* sums : {&state.mean, &state.squares, &state.g_sum, &state.g_product})
            sums->assign(size, 0);
        for (auto* values : {&state.center, &state.scale, &state.shift, &state.inverse_std,
                             &state.dx_scale, &state.dx_slope, &state.dx_offset})
            values->assign(size, 0);
        state.gradients.resize(std::max<size_t>(binding.output_gradients.size(), 1));
    }
}

template <typename T, int B>
void BatchNorm<T, B>::set_affine(LaneState& state, size_t c, double mean, double variance) const {
    const double inverse_std = 1 / std::sqrt(variance + node_.epsilon);
    state.center[c] = static_cast<float>(mean);
    state.inverse_std[c] = static_cast<float>(inverse_std);
    state.scale[c] = static_cast<float>(static_cast<double>(parameter(0)[c]) * inverse_std);
    state.shift[c] = parameter(1)[c];
}

template <typename T, int B>
void BatchNorm<T, B>::load_weights() {
    if (binding_.training)
        return;
    for (size_t c = 0; c < static_cast<size_t>(channels_); ++c)
        set_affine(states_[0], c, static_cast<double>(running(0)[c]),
                   static_cast<double>(running(1)[c]));
}

template <typename T, int B>
void BatchNorm<T, B>::forward(Lane& lane) {
    if (!binding_.training) {
        write_output(lane, states_[0]);
        return;
    }
    take_moments(lane, state(lane));
    lane.barrier();
    combine_moments(lane, state(lane));
    write_output(lane, state(lane));
}

// Deviations are taken from the lane's first value of each channel, so that no digits are lost
// where the mean is far from zero.
template <typename T, int B>
void BatchNorm<T, B>::take_moments(const Lane& lane, LaneState& state) const {
    const Range part = samples(lane);
    const Buffer& x = *binding_.inputs[0];
    std::fill(state.mean.begin(), state.mean.end(), 0);
    std::fill(state.squares.begin(), state.squares.end(), 0);
    state.count = static_cast<double>(part.count * positions_);
    for (int64_t c = 0; part.count > 0 && c < padded_; ++c)
        state.center[static_cast<size_t>(c)] =
            to_float((x.sample<T>(part.first) + c / B * B * positions_)[c % B]);
    // Backwards: the last samples are those that the convolution has left in the cache.
    for (int64_t n = part.end() - 1; n >= part.first; --n)
        for (int64_t c = 0; c < padded_; c += B)
            add_moments<T, B>(x.sample<T>(n) + c * positions_, positions_, &state.center[c],
                              &state.mean[c], &state.squares[c]);
    for (int64_t c = 0; part.count > 0 && c < padded_; ++c) {
        const auto i = static_cast<size_t>(c);
        const double deviation = state.mean[i] / state.count;
        state.squares[i] -= state.mean[i] * deviation;
        state.mean[i] = static_cast<double>(state.center[i]) + deviation;
    }
}

// Joins the lanes' moments (Chan, Golub, LeVeque 1983), the first lane's first.
template <typename T, int B>
void BatchNorm<T, B>::combine_moments(const Lane& lane, LaneState& state) const {
    for (int64_t c = 0; c < channels_; ++c) {
        const auto i = static_cast<size_t>(c);
        double count = 0, mean = 0, squares = 0;
        for (const LaneState& other : states_) {
            if (other.count == 0)
                continue;
            const double total = count + other.count;
            const double apart = other.mean[i] - mean;
            mean += apart * (other.count / total);
            squares += other.squares[i] + apart * apart * (count * other.count / total);
            count = total;
        }
        squares = std::max(squares, 0.0);
        set_affine(state, i, mean, squares / count);
        if (lane.index() == 0)
            update_running(c, mean, squares / (count - 1));
    }
}

// As PyTorch does, with the unbiased variance.
template <typename T, int B>
void BatchNorm<T, B>::update_running(int64_t c, double mean, double variance) const {
    const auto blend = [&](float& value, double batch) {
        value = static_cast<float>((1 - node_.momentum) * static_cast<double>(value) +
                                   node_.momentum * batch);
    };
    blend(running(0)[c], mean);
    blend(running(1)[c], variance);
}

template <typename T, int B>
void BatchNorm<T, B>::write_output(const Lane& lane, const LaneState& coefficients) const {
    const Range part = samples(lane);
    for (int64_t n = part.first; n < part.end(); ++n)
        for (int64_t c = 0; c < padded_; c += B) {
            const int64_t at = c * positions_;
            const T* const x = binding_.inputs[0]->sample<T>(n) + at;
            const T* const added = residual() ? residual()->template sample<T>(n) + at : nullptr;
            T* const y = binding_.output->sample<T>(n) + at;
            if (node_.relu)
                normalise<true, T, B>(x, added, y, positions_, affine(coefficients, c));
            else
                normalise<false, T, B>(x, added, y, positions_, affine(coefficients, c));
        }
}

template <typename T, int B>
void BatchNorm<T, B>::backward(Lane& lane) {
    take_gradient_sums(lane, state(lane));
    lane.barrier();
    combine_gradient_sums(lane, state(lane));
    if (wants_input_gradient())
        write_input_gradients(lane, state(lane));
}

template <typename T, int B>
template <typename Run>
void BatchNorm<T, B>::with_kind(size_t gradient_count, Mask mask, Run run) {
    const auto with_mask = [&]<int Count>() {
        if (mask == Mask::none)
            run.template operator()<Count, Mask::none>();
        else if (mask == Mask::output)
            run.template operator()<Count, Mask::output>();
        else
            run.template operator()<Count, Mask::input>();
    };
    if (gradient_count == 1)
        with_mask.template operator()<1>();
    else if (gradient_count == 2)
        with_mask.template operator()<2>();
    else
        with_mask.template operator()<0>();
}

template <typename T, int B>
void BatchNorm<T, B>::take_gradient_sums(const Lane& lane, LaneState& state) const {
    const Range part = samples(lane);
    std::fill(state.g_sum.begin(), state.g_sum.end(), 0);
    std::fill(state.g_product.begin(), state.g_product.end(), 0);
    with_kind(binding_.output_gradients.size(), mask(), [&]<int Count, Mask kind>() {
        for (int64_t n = part.end() - 1; n >= part.first; --n) {
            for (size_t i = 0; i < state.gradients.size(); ++i)
                state.gradients[i] = binding_.output_gradients[i]->sample<T>(n);
            for (int64_t c = 0; c < padded_; c += B) {
                const int64_t at = c * positions_;
                const BlockSources<T> from{binding_.inputs[0]->sample<T>(n) + at,
                                           binding_.output->sample<T>(n) + at,
                                           state.gradients.data(), state.gradients.size(), at};
                // A residual has the mask of the output it was added to, or none.
                if constexpr (kind != Mask::input)
                    if (const Buffer* const masked = residual_gradient()) {
                        add_gradient_sums<Count, kind, true, B>(
                            from, masked->sample<T>(n) + at, positions_, affine(state, c),
                            &state.g_sum[c], &state.g_product[c]);
                        continue;
                    }
                add_gradient_sums<Count, kind, false, B>(from, static_cast<T*>(nullptr), positions_,
                                                         affine(state, c), &state.g_sum[c],
                                                         &state.g_product[c]);
            }
        }
    });
}

// With g the gradient of what the ReLU took, d = x - mean and m values a channel:
// dbeta = sum g, dgamma = inverse_std * sum g d,
// dx = gamma inverse_std (g - sum g / m - d inverse_std^2 sum g d / m).
template <typename T, int B>
void BatchNorm<T, B>::combine_gradient_sums(const Lane& lane, LaneState& state) const {
    std::byte* const slab = binding_.gradients[static_cast<size_t>(lane.index())];
    auto* const dgamma = reinterpret_cast<float*>(parameter_in(binding_, slab, 0));
    auto* const dbeta = reinterpret_cast<float*>(parameter_in(binding_, slab, 1));
    const double count = static_cast<double>(binding_.batch * positions_);
    for (size_t c = 0; c < static_cast<size_t>(channels_); ++c) {
        const auto inverse_std = static_cast<double>(state.inverse_std[c]);
        dgamma[c] = static_cast<float>(inverse_std * state.g_product[c]);
        dbeta[c] = static_cast<float>(state.g_sum[c]);
        double sum = 0, product = 0;
        for (const LaneState& other : states_) {
            sum += other.g_sum[c];
            product += other.g_product[c];
        }
        const double scale = static_cast<double>(parameter(0)[c]) * inverse_std;
        state.dx_scale[c] = static_cast<float>(scale);
        state.dx_slope[c] =
            static_cast<float>(-scale * inverse_std * inverse_std * product / count);
        state.dx_offset[c] = static_cast<float>(-scale * sum / count);
    }
}

template <typename T, int B>
void BatchNorm<T, B>::write_input_gradients(const Lane& lane, LaneState& state) const {
    const Range part = samples(lane);
    // The first pass has left the summed and masked gradient for the residual: read that.
    const Buffer* const masked = residual_gradient();
    with_kind(masked ? 1 : binding_.output_gradients.size(), masked ? Mask::none : mask(),
              [&]<int Count, Mask kind>() {
                  for (int64_t n = part.first; n < part.end(); ++n) {
                      for (size_t i = 0; i < state.gradients.size(); ++i)
                          state.gradients[i] =
                              (masked ? masked : binding_.output_gradients[i])->sample<T>(n);
                      for (int64_t c = 0; c < padded_; c += B) {
                          const int64_t at = c * positions_;
                          const BlockSources<T> from{binding_.inputs[0]->sample<T>(n) + at,
                                                     binding_.output->sample<T>(n) + at,
                                                     state.gradients.data(), state.gradients.size(),
                                                     at};
                          const InputGradientOf terms{&state.dx_scale[c], &state.dx_slope[c],
                                                      &state.dx_offset[c]};
                          write_input_gradient<Count, kind, B>(
                              from, binding_.input_gradients[0]->sample<T>(n) + at, positions_,
                              affine(state, c), terms);
                      }
                  }
              });
}

}  // namespace

std::unique_ptr<Operation> build_batch_norm(Context& context, const Binding& binding) {
    return for_element_and_block(context, [&]<typename T, int B>() -> std::unique_ptr<Operation> {
        return std::make_unique<BatchNorm<T, B>>(context, binding);
    });
}

}  // namespace trainer::cpu
