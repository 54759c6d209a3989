// Kernels of batch normalisation.
#include "engine/cuda/rows.cuh"

namespace trainer::cuda {

namespace {

template <int V>
struct Coefficients {
    float value[V];
    __device__ void load(const float* from, int channel) {
#pragma unroll
        for (int i = 0; i < V; ++i)
            value[i] = from[channel + i];
    }
};

// Deviations are taken from the first value of each channel, so that no digits are lost where the
// mean is far from zero.
template <typename T, int V>
struct StatisticsTerms {
    const T* x;
    int stored;
    Coefficients<V> center{};

    __device__ void begin(int channel) {
        const auto first = Vector<T, V>::load(x + channel);
#pragma unroll
        for (int i = 0; i < V; ++i)
            center.value[i] = first.value[i];
    }
    __device__ void add(int64_t row, int channel, float (&a)[V], float (&b)[V]) const {
        const auto v = Vector<T, V>::load(x + row * stored + channel);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const float d = v.value[i] - center.value[i];
            a[i] += d;
            b[i] = fmaf(d, d, b[i]);
        }
    }
};

__device__ void set_affine(const NormState& state, const NormParameters& parameters, int c,
                           double mean, double variance) {
    const double inverse_std = 1 / sqrt(variance + parameters.epsilon);
    state.center[c] = static_cast<float>(mean);
    state.inverse_std[c] = static_cast<float>(inverse_std);
    state.scale[c] = static_cast<float>(static_cast<double>(parameters.gamma[c]) * inverse_std);
    state.shift[c] = parameters.beta[c];
}

// So that the padding stays zero.
__device__ void set_padding(const NormState& state, int c) {
    state.center[c] = state.inverse_std[c] = state.scale[c] = state.shift[c] = 0;
}

// The mean of a channel, and the sum of squared deviations from it.
struct Moments {
    double mean, squares;
};

// From sums of deviations, and of their squares, from the channel's first value.
template <typename T>
__device__ Moments moments_of(const T* x, int c, double count, double sum, double squares) {
    const double deviation = sum / count;
    const double about_mean = fmax(squares - sum * deviation, 0.0);
    // fmax drops a NaN, which has to be seen further on.
    return {static_cast<double>(to_float(x[c])) + deviation,
            squares == squares ? about_mean : squares};
}

// What a batch of `count` values a channel leaves.
__device__ void take_statistics(const NormState& state, const NormParameters& parameters, int c,
                                double count, Moments moments) {
    const double variance = moments.squares / count;
    set_affine(state, parameters, c, moments.mean, variance);
    const auto blend = [&](float& running, double batch) {
        running = static_cast<float>((1 - parameters.momentum) * static_cast<double>(running) +
                                     parameters.momentum * batch);
    };
    blend(parameters.running_mean[c], moments.mean);
    // As PyTorch does, with the unbiased variance.
    blend(parameters.running_var[c], variance * (count / (count - 1)));
}

template <typename T>
struct StatisticsFinish {
    const T* x;
    int64_t channels;
    double count;  // values a channel
    NormParameters parameters;
    NormState state;

    __device__ void operator()(int c, double sum, double squares) const {
        if (c < channels)
            take_statistics(state, parameters, c, count, moments_of(x, c, count, sum, squares));
        else
            set_padding(state, c);
    }
};

// Of one device's part of the batch.
template <typename T>
struct PartFinish {
    const T* x;
    int64_t channels, stored;
    double count;
    double* part;  // [2][stored]

    __device__ void operator()(int c, double sum, double squares) const {
        const Moments moments =
            c < channels ? moments_of(x, c, count, sum, squares) : Moments{0, 0};
        part[c] = moments.mean;
        part[stored + c] = moments.squares;
    }
};

// Moments of the whole from those of its parts, one after the other (Chan, Golub, LeVeque 1979).
__global__ void statistics_of_parts_kernel(int64_t channels, int64_t stored, NormParts parts,
                                           NormParameters parameters, NormState state) {
    for (int64_t c = first_element(); c < stored; c += element_stride()) {
        if (c >= channels) {
            set_padding(state, static_cast<int>(c));
            continue;
        }
        double count = 0;
        Moments all{0, 0};
        for (int rank = 0; rank < parts.ranks; ++rank) {
            const double* const part = parts.sums + rank * 2 * stored;
            const double more = parts.counts[rank], away = part[c] - all.mean;
            all.squares += part[stored + c] + away * away * (count * more / (count + more));
            count += more;
            all.mean += away * (more / count);
        }
        take_statistics(state, parameters, static_cast<int>(c), count, all);
    }
}

template <typename T, int V, bool residual, bool relu>
struct OutputWork {
    const T* x;
    const T* added;
    T* y;
    int stored;
    NormState state;
    Coefficients<V> center{}, scale{}, shift{};

    __device__ void begin(int channel) {
        center.load(state.center, channel);
        scale.load(state.scale, channel);
        shift.load(state.shift, channel);
    }
    __device__ void run(int64_t row, int channel) const {
        const int64_t at = row * stored + channel;
        auto v = Vector<T, V>::load(x + at);
        Vector<T, V> more;
        if constexpr (residual)
            more = Vector<T, V>::load(added + at);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            float value = fmaf(v.value[i] - center.value[i], scale.value[i], shift.value[i]);
            if constexpr (residual)
                value += more.value[i];
            v.value[i] = relu && value < 0 ? 0.0F : value;  // a NaN stays one
        }
        v.store(y + at);
    }
};

// The sum of the gradients that reach an element, masked by the ReLU.
template <typename T, int V, Mask mask>
struct GradientSource {
    const T* x;
    const T* y;
    Gradients gradients;
    int stored;
    NormState state;
    Coefficients<V> center{}, scale{}, shift{};

    __device__ void begin(int channel) {
        center.load(state.center, channel);
        if constexpr (mask == Mask::input) {
            scale.load(state.scale, channel);
            shift.load(state.shift, channel);
        }
    }
    // g, and d = x - center.
    __device__ void load(int64_t at, Vector<T, V>& g, Vector<T, V>& d) const {
        d = Vector<T, V>::load(x + at);
        g = Vector<T, V>::load(static_cast<const T*>(gradients.data[0]) + at);
#pragma unroll
        for (int k = 1; k < Gradients::most; ++k) {  // unrolled, so that the array is in registers
            if (k >= gradients.count)
                break;
            const auto more = Vector<T, V>::load(static_cast<const T*>(gradients.data[k]) + at);
#pragma unroll
            for (int i = 0; i < V; ++i)
                g.value[i] += more.value[i];
        }
        Vector<T, V> output;
        if constexpr (mask == Mask::output)
            output = Vector<T, V>::load(y + at);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            d.value[i] -= center.value[i];
            if constexpr (mask == Mask::input)
                output.value[i] = fmaf(d.value[i], scale.value[i], shift.value[i]);
            if constexpr (mask != Mask::none)
                g.value[i] = output.value[i] <= 0 ? 0.0F : g.value[i];
        }
    }
};

template <typename T, int V, Mask mask>
struct GradientTerms {
    GradientSource<T, V, mask> source;
    T* masked;  // nullptr: not wanted

    __device__ void begin(int channel) { source.begin(channel); }
    __device__ void add(int64_t row, int channel, float (&a)[V], float (&b)[V]) const {
        const int64_t at = row * source.stored + channel;
        Vector<T, V> g, d;
        source.load(at, g, d);
        if (masked != nullptr)
            g.store(masked + at);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            a[i] += g.value[i];
            b[i] = fmaf(g.value[i], d.value[i], b[i]);
        }
    }
};

// With g the masked gradient, d = x - mean and m values a channel:
// dbeta = sum g, dgamma = inverse_std * sum g d,
// dx = gamma inverse_std (g - sum g / m - d inverse_std^2 sum g d / m).
__device__ void set_dx(const NormState& state, const NormParameters& parameters, int c,
                       double count, double sum, double product) {
    const auto inverse_std = static_cast<double>(state.inverse_std[c]);
    const double scale = static_cast<double>(parameters.gamma[c]) * inverse_std;
    state.dx_scale[c] = static_cast<float>(scale);
    state.dx_slope[c] = static_cast<float>(scale * inverse_std * inverse_std * product / count);
    state.dx_offset[c] = static_cast<float>(scale * sum / count);
}

struct GradientFinish {
    int64_t channels;
    double count;
    NormParameters parameters;
    NormState state;
    float *dgamma, *dbeta;

    __device__ void operator()(int c, double sum, double product) const {
        if (c >= channels) {
            state.dx_scale[c] = state.dx_slope[c] = state.dx_offset[c] = 0;
            return;
        }
        dgamma[c] = static_cast<float>(static_cast<double>(state.inverse_std[c]) * product);
        dbeta[c] = static_cast<float>(sum);
        set_dx(state, parameters, c, count, sum, product);
    }
};

// Of one device's part of the batch, whose dgamma and dbeta are summed later with all gradients.
struct GradientPartFinish {
    int64_t channels, stored;
    NormState state;
    float *dgamma, *dbeta;
    double* part;  // [2][stored]

    __device__ void operator()(int c, double sum, double product) const {
        part[c] = sum;
        part[stored + c] = product;
        if (c >= channels)
            return;
        dgamma[c] = static_cast<float>(static_cast<double>(state.inverse_std[c]) * product);
        dbeta[c] = static_cast<float>(sum);
    }
};

__global__ void gradient_of_parts_kernel(int64_t channels, int64_t stored, NormParts parts,
                                         NormParameters parameters, NormState state) {
    for (int64_t c = first_element(); c < stored; c += element_stride()) {
        if (c >= channels) {
            state.dx_scale[c] = state.dx_slope[c] = state.dx_offset[c] = 0;
            continue;
        }
        double count = 0, sum = 0, product = 0;
        for (int rank = 0; rank < parts.ranks; ++rank) {
            const double* const part = parts.sums + rank * 2 * stored;
            count += parts.counts[rank];
            sum += part[c];
            product += part[stored + c];
        }
        set_dx(state, parameters, static_cast<int>(c), count, sum, product);
    }
}

template <typename T, int V, Mask mask>
struct InputGradientWork {
    GradientSource<T, V, mask> source;
    T* dx;
    Coefficients<V> scale{}, slope{}, offset{};

    __device__ void begin(int channel) {
        source.begin(channel);
        scale.load(source.state.dx_scale, channel);
        slope.load(source.state.dx_slope, channel);
        offset.load(source.state.dx_offset, channel);
    }
    __device__ void run(int64_t row, int channel) const {
        const int64_t at = row * source.stored + channel;
        Vector<T, V> g, d;
        source.load(at, g, d);
#pragma unroll
        for (int i = 0; i < V; ++i)
            g.value[i] = fmaf(scale.value[i], g.value[i],
                              -fmaf(d.value[i], slope.value[i], offset.value[i]));
        g.store(dx + at);
    }
};

__global__ void inference_kernel(int64_t channels, int64_t stored, NormParameters parameters,
                                 NormState state) {
    for (int64_t c = first_element(); c < stored; c += element_stride()) {
        if (c < channels)
            set_affine(state, parameters, static_cast<int>(c),
                       static_cast<double>(parameters.running_mean[c]),
                       static_cast<double>(parameters.running_var[c]));
        else
            set_padding(state, static_cast<int>(c));
    }
}

double count_of(const Tensor& t) {
    return static_cast<double>(t.rows());
}

template <typename T, int V, Mask mask>
GradientSource<T, V, mask> source_of(const Tensor& x, const Tensor& y, const Gradients& gradients,
                                     const NormState& state) {
    return {static_cast<const T*>(x.data), static_cast<const T*>(y.data), gradients,
            static_cast<int>(x.stored), state};
}

// Calls run.template operator()<mask>().
template <typename Run>
void for_mask(Mask mask, Run run) {
    if (mask == Mask::none)
        run.template operator()<Mask::none>();
    else if (mask == Mask::input)
        run.template operator()<Mask::input>();
    else
        run.template operator()<Mask::output>();
}

}  // namespace

void line_up_norm_statistics(const Tensor& x, const NormParameters& parameters,
                             const NormState& state, const SumSpace& space, cudaStream_t stream) {
    for_type(x.type, [&]<typename T>() {
        constexpr int V = vector_size<T>;
        const auto* const data = static_cast<const T*>(x.data);
        launch_sums<V>(x, StatisticsTerms<T, V>{data, static_cast<int>(x.stored)},
                       StatisticsFinish<T>{data, x.channels, count_of(x), parameters, state}, space,
                       stream, "batch norm: statistics");
    });
}

void line_up_norm_part(const Tensor& x, const NormParts& parts, const SumSpace& space,
                       cudaStream_t stream) {
    for_type(x.type, [&]<typename T>() {
        constexpr int V = vector_size<T>;
        const auto* const data = static_cast<const T*>(x.data);
        launch_sums<V>(x, StatisticsTerms<T, V>{data, static_cast<int>(x.stored)},
                       PartFinish<T>{data, x.channels, x.stored, count_of(x),
                                     parts.sums + parts.rank * 2 * x.stored},
                       space, stream, "batch norm: statistics of a part");
    });
}

void line_up_norm_statistics_of_parts(int64_t channels, int64_t stored, const NormParts& parts,
                                      const NormParameters& parameters, const NormState& state,
                                      cudaStream_t stream) {
    statistics_of_parts_kernel<<<blocks_for(stored), threads_a_block, 0, stream>>>(
        channels, stored, parts, parameters, state);
    check_launch("batch norm: statistics of all parts");
}

void line_up_norm_inference(int64_t channels, int64_t stored, const NormParameters& parameters,
                            const NormState& state, cudaStream_t stream) {
    inference_kernel<<<blocks_for(stored), threads_a_block, 0, stream>>>(channels, stored,
                                                                         parameters, state);
    check_launch("batch norm: running statistics");
}

void line_up_norm_output(const Tensor& x, const Tensor* residual, const Tensor& y, bool relu,
                         const NormState& state, cudaStream_t stream) {
    for_type(x.type, [&]<typename T>() {
        constexpr int V = vector_size<T>;
        const auto launch = [&]<bool with_residual, bool with_relu>() {
            launch_rows<V>(x,
                           OutputWork<T, V, with_residual, with_relu>{
                               static_cast<const T*>(x.data),
                               residual ? static_cast<const T*>(residual->data) : nullptr,
                               static_cast<T*>(y.data), static_cast<int>(x.stored), state},
                           stream, "batch norm: output");
        };
        if (residual && relu)
            launch.template operator()<true, true>();
        else if (residual)
            launch.template operator()<true, false>();
        else if (relu)
            launch.template operator()<false, true>();
        else
            launch.template operator()<false, false>();
    });
}

namespace {

template <typename Finish>
void sum_gradients(const Tensor& x, const Tensor& y, const Gradients& gradients, Mask mask,
                   const Tensor* masked, const NormState& state, const Finish& finish,
                   const SumSpace& space, cudaStream_t stream, const char* what) {
    for_type(x.type, [&]<typename T>() {
        constexpr int V = vector_size<T>;
        for_mask(mask, [&]<Mask kind>() {
            launch_sums<V>(
                x,
                GradientTerms<T, V, kind>{source_of<T, V, kind>(x, y, gradients, state),
                                          masked ? static_cast<T*>(masked->data) : nullptr},
                finish, space, stream, what);
        });
    });
}

}  // namespace

void line_up_norm_gradient_sums(const Tensor& x, const Tensor& y, const Gradients& gradients,
                                Mask mask, const Tensor* masked, const NormParameters& parameters,
                                const NormState& state, float* dgamma, float* dbeta,
                                const SumSpace& space, cudaStream_t stream) {
    sum_gradients(x, y, gradients, mask, masked, state,
                  GradientFinish{x.channels, count_of(x), parameters, state, dgamma, dbeta}, space,
                  stream, "batch norm: sums of gradients");
}

void line_up_norm_gradient_part(const Tensor& x, const Tensor& y, const Gradients& gradients,
                                Mask mask, const Tensor* masked, const NormState& state,
                                float* dgamma, float* dbeta, const NormParts& parts,
                                const SumSpace& space, cudaStream_t stream) {
    sum_gradients(x, y, gradients, mask, masked, state,
                  GradientPartFinish{x.channels, x.stored, state, dgamma, dbeta,
                                     parts.sums + parts.rank * 2 * x.stored},
                  space, stream, "batch norm: sums of gradients of a part");
}

void line_up_norm_gradient_of_parts(int64_t channels, int64_t stored, const NormParts& parts,
                                    const NormParameters& parameters, const NormState& state,
                                    cudaStream_t stream) {
    gradient_of_parts_kernel<<<blocks_for(stored), threads_a_block, 0, stream>>>(
        channels, stored, parts, parameters, state);
    check_launch("batch norm: sums of gradients of all parts");
}

void line_up_norm_input_gradient(const Tensor& x, const Gradients& gradients, Mask mask,
                                 const Tensor& y, const Tensor* masked, const Tensor& dx,
                                 const NormState& state, cudaStream_t stream) {
    for_type(x.type, [&]<typename T>() {
        constexpr int V = vector_size<T>;
        const auto launch = [&]<Mask kind>(const Gradients& from) {
            launch_rows<V>(x,
                           InputGradientWork<T, V, kind>{source_of<T, V, kind>(x, y, from, state),
                                                         static_cast<T*>(dx.data)},
                           stream, "batch norm: gradient of the input");
        };
        if (masked) {
            launch.template operator()<Mask::none>({{masked->data}, 1});
            return;
        }
        for_mask(mask, [&]<Mask kind>() { launch.template operator()<kind>(gradients); });
    });
}

}  // namespace trainer::cuda
