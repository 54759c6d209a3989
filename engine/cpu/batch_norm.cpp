// Batch normalisation (arXiv 1502.03167) with the residual and the ReLU behind it in the same
// passes: y = relu(gamma * (x - mean) / sqrt(var + epsilon) + beta + residual).
//
// Forward reads x twice (statistics; y), backward reads the gradient twice (sums; dx), with one
// barrier between: the statistics are those of the whole batch, each lane adding up all lanes'
// sums in lane order for itself.
#include <array>
#include <cmath>

#include "engine/cpu/operations.h"

namespace trainer::cpu {

namespace {

// How backward finds where the ReLU let the gradient through.
enum class Mask {
    none,    // no ReLU, or a gradient that is masked already
    output,  // y was written with a residual: read it
    input    // y follows from x alone: compute it again, which is cheaper than to read it
};

// What is read at one block of channels of one sample; a position is `B` channels.
template <typename T>
struct BlockSources {
    const T* x = nullptr;
    const T* y = nullptr;
    const T* const* gradients = nullptr;  // to be added up
    size_t gradient_count = 0;
    int64_t offset = 0;  // elements from each gradient's start to this block
};

template <int B>
struct Affine {  // y = (x - center) * scale + shift
    FloatBlock<B> center, scale, shift;
    FloatBlock<B> operator()(FloatBlock<B> x) const { return (x - center) * scale + shift; }
};

// The gradient at `at`, summed over its `Count` parts (0: any number) and masked.
template <typename T, int B, int Count, Mask mask>
[[gnu::always_inline]] inline FloatBlock<B> masked_gradient(const BlockSources<T>& from,
                                                            const Affine<B>& affine, int64_t at) {
    const int64_t element = from.offset + at;
    FloatBlock<B> g = load<B>(from.gradients[0] + element);
    if constexpr (Count == 2)
        g += load<B>(from.gradients[1] + element);
    if constexpr (Count == 0)
        for (size_t i = 1; i < from.gradient_count; ++i)
            g += load<B>(from.gradients[i] + element);
    const FloatBlock<B> zero{};
    if constexpr (mask == Mask::output)
        g = load<B>(from.y + at) <= zero ? zero : g;
    if constexpr (mask == Mask::input)
        g = affine(load<B>(from.x + at)) <= zero ? zero : g;
    return g;
}

template <int B>
[[gnu::always_inline]] inline void add_to(double* sums, FloatBlock<B> values) {
    for (int j = 0; j < B; ++j)
        sums[j] += static_cast<double>(values[j]);
}

// Positions whose sums are taken in fp32 before they go on in double.
constexpr int64_t segment = 1024;

// Adds the sums of d and of d * d, d = x - center, to `sums` and `squares` [B].
template <typename T, int B>
void add_moments(const T* x, int64_t positions, FloatBlock<B> center, double* sums,
                 double* squares) {
    for (int64_t first = 0; first < positions; first += segment) {
        const int64_t end = std::min(first + segment, positions);
        FloatBlock<B> sum[2] = {}, square[2] = {};
        int64_t i = first;
        for (; i + 2 <= end; i += 2) {
            const FloatBlock<B> d0 = load<B>(x + i * B) - center;
            const FloatBlock<B> d1 = load<B>(x + (i + 1) * B) - center;
            sum[0] += d0;
            sum[1] += d1;
            square[0] += d0 * d0;
            square[1] += d1 * d1;
        }
        if (i < end) {
            const FloatBlock<B> d = load<B>(x + i * B) - center;
            sum[0] += d;
            square[0] += d * d;
        }
        add_to<B>(sums, sum[0] + sum[1]);
        add_to<B>(squares, square[0] + square[1]);
    }
}

// y = affine(x) + residual, and no less than 0 with the ReLU; `residual` may be nullptr.
template <bool relu, typename T, int B>
void normalise(const T* x, const T* residual, T* y, int64_t positions, const Affine<B>& affine) {
    const FloatBlock<B> zero{};
    const auto finish = [&](int64_t at, FloatBlock<B> value) {
        if constexpr (relu)
            value = value < zero ? zero : value;  // a NaN stays one
        store<B>(y + at, value);
    };
    if (residual)
        for (int64_t at = 0; at < positions * B; at += B)
            finish(at, affine(load<B>(x + at)) + load<B>(residual + at));
    else
        for (int64_t at = 0; at < positions * B; at += B)
            finish(at, affine(load<B>(x + at)));
}

// Adds the sums of g and of g * (x - center) to `sums` and `products` [B]; leaves g itself in
// `written` unless that is nullptr.
template <typename T, int B, int Count, Mask mask>
void add_gradient_sums(const BlockSources<T>& from, T* written, int64_t positions,
                       const Affine<B>& affine, double* sums, double* products) {
    for (int64_t first = 0; first < positions; first += segment) {
        const int64_t end = std::min(first + segment, positions);
        FloatBlock<B> sum{}, product{};
        for (int64_t at = first * B; at < end * B; at += B) {
            const FloatBlock<B> g = masked_gradient<T, B, Count, mask>(from, affine, at);
            if (written)
                store<B>(written + at, g);
            sum += g;
            product += g * (load<B>(from.x + at) - affine.center);
        }
        add_to<B>(sums, sum);
        add_to<B>(products, product);
    }
}

// dx = scale * g + slope * (x - center) + offset.
template <int B>
struct InputGradient {
    FloatBlock<B> scale, slope, offset;
};

template <typename T, int B, int Count, Mask mask>
void write_input_gradient(const BlockSources<T>& from, T* dx, int64_t positions,
                          const Affine<B>& affine, const InputGradient<B>& terms) {
    for (int64_t at = 0; at < positions * B; at += B) {
        const FloatBlock<B> g = masked_gradient<T, B, Count, mask>(from, affine, at);
        const FloatBlock<B> d = load<B>(from.x + at) - affine.center;
        store<B>(dx + at, terms.scale * g + (terms.slope * d + terms.offset));
    }
}

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
        std::vector<double> work;
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

    Affine<B> affine(const LaneState& state, int64_t c) const {
        return {load<B>(&state.center[static_cast<size_t>(c)]),
                load<B>(&state.scale[static_cast<size_t>(c)]),
                load<B>(&state.shift[static_cast<size_t>(c)])};
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
    // Backwards: the last samples are those that the convolution has left in the cache.
    for (int64_t n = part.end() - 1; n >= part.first; --n)
        for (int64_t c = 0; c < padded_; c += B)
            add_moments<T, B>(x.sample<T>(n) + c * positions_, positions_,
                              load<B>(x.sample<T>(part.first) + c * positions_), &state.mean[c],
                              &state.squares[c]);
    if (part.count == 0)
        return;
    for (int64_t c = 0; c < padded_; ++c) {
        const auto i = static_cast<size_t>(c);
        const double deviation = state.mean[i] / state.count;
        const T* const block = x.sample<T>(part.first) + c / B * B * positions_;
        state.squares[i] -= state.mean[i] * deviation;
        state.mean[i] = static_cast<double>(to_float(block[c % B])) + deviation;
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
                T* const written =
                    residual_gradient() ? residual_gradient()->template sample<T>(n) + at : nullptr;
                add_gradient_sums<T, B, Count, kind>(from, written, positions_, affine(state, c),
                                                     &state.g_sum[c], &state.g_product[c]);
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
                          const InputGradient<B> terms{load<B>(&state.dx_scale[c]),
                                                       load<B>(&state.dx_slope[c]),
                                                       load<B>(&state.dx_offset[c])};
                          write_input_gradient<T, B, Count, kind>(
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
