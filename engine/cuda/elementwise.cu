// Kernels whose outputs depend on one input element each: input, ReLU, padded shortcut, dropout,
// sums of activations, biases.
#include "engine/cuda/device.cuh"
#include "engine/elementwise.h"

namespace trainer::cuda {

namespace {

// A vector at a time of arrays without rows, then what is left one by one.
template <typename T, typename Work>
__global__ void in_flat_vectors(int64_t count, Work work) {
    constexpr int V = vector_size<T>;
    const int64_t vectors = count / V;
    for (int64_t i = first_element(); i < vectors; i += element_stride())
        work.template operator()<V>(i * V);
    for (int64_t i = vectors * V + first_element(); i < count; i += element_stride())
        work.template operator()<1>(i);
}

template <typename T, typename Work>
void launch_flat(int64_t count, Work work, cudaStream_t stream, const char* what) {
    in_flat_vectors<T>
        <<<blocks_for(count / vector_size<T> + 1), threads_a_block, 0, stream>>>(count, work);
    check_launch(what);
}

template <typename T>
struct ReluWork {
    const T* x;
    T* y;
    template <int V>
    __device__ void operator()(int64_t at) const {
        auto v = Vector<T, V>::load(x + at);
#pragma unroll
        for (int i = 0; i < V; ++i)
            v.value[i] = v.value[i] < 0 ? 0.0F : v.value[i];
        v.store(y + at);
    }
};

template <typename T>
struct ReluGradientWork {
    const T* y;
    const T* dy;
    T* dx;
    template <int V>
    __device__ void operator()(int64_t at) const {
        const auto output = Vector<T, V>::load(y + at);
        auto g = Vector<T, V>::load(dy + at);
#pragma unroll
        for (int i = 0; i < V; ++i)
            g.value[i] = output.value[i] <= 0 ? 0.0F : g.value[i];
        g.store(dx + at);
    }
};

template <typename T>
struct AddWork {
    const T* source;
    T* target;
    template <int V>
    __device__ void operator()(int64_t at) const {
        const auto more = Vector<T, V>::load(source + at);
        auto sum = Vector<T, V>::load(target + at);
#pragma unroll
        for (int i = 0; i < V; ++i)
            sum.value[i] += more.value[i];
        sum.store(target + at);
    }
};

// One thread a pixel: its channels lie apart in the image, together in the output.
template <typename T>
__global__ void input_kernel(const StepConstants* constants, T* out, int64_t pixels, int64_t area,
                             int channels, int stored) {
    constexpr int V = vector_size<T>;
    const float* const images = constants->images;
    for (int64_t i = first_element(); i < pixels; i += element_stride()) {
        const float* const image = images + i / area * channels * area + i % area;
        for (int first = 0; first < stored; first += V) {
            Vector<T, V> v;
#pragma unroll
            for (int j = 0; j < V; ++j)
                v.value[j] = first + j < channels ? image[(first + j) * area] : 0.0F;
            v.store(out + i * stored + first);
        }
    }
}

// What one thread of a kernel over the vectors of a tensor works on.
struct Place {
    int64_t sample;
    int row, column, channel;
};
__device__ inline Place place_of(int64_t i, const Tensor& t, int width) {
    const int64_t vectors = t.stored / width;
    const int64_t pixel = i / vectors;
    const int64_t line = pixel / t.width;
    return {line / t.height, static_cast<int>(line % t.height), static_cast<int>(pixel % t.width),
            static_cast<int>(i % vectors) * width};
}
template <typename T>
__device__ T* at(const Tensor& t, int64_t sample, int64_t row, int64_t column, int64_t channel) {
    return static_cast<T*>(t.data) + ((sample * t.height + row) * t.width + column) * t.stored +
           channel;
}

template <typename T>
__global__ void shortcut_kernel(Tensor x, Tensor y, int stride) {
    constexpr int V = vector_size<T>;
    for (int64_t i = first_element(); i < y.elements() / V; i += element_stride()) {
        const Place p = place_of(i, y, V);
        auto v = Vector<T, V>::zero();
        if (p.channel < x.stored)  // zero in its own padding
            v = Vector<T, V>::load(
                at<T>(x, p.sample, p.row * stride, p.column * stride, p.channel));
        v.store(at<T>(y, p.sample, p.row, p.column, p.channel));
    }
}

template <typename T>
__global__ void shortcut_gradient_kernel(Tensor dy, Tensor dx, int stride) {
    constexpr int V = vector_size<T>;
    for (int64_t i = first_element(); i < dx.elements() / V; i += element_stride()) {
        const Place p = place_of(i, dx, V);
        auto v = Vector<T, V>::zero();
        if (p.row % stride == 0 && p.column % stride == 0)
            v = Vector<T, V>::load(
                at<T>(dy, p.sample, p.row / stride, p.column / stride, p.channel));
#pragma unroll
        for (int j = 0; j < V; ++j)  // where the input has its padding the output may have more
            v.value[j] = p.channel + j < dx.channels ? v.value[j] : 0.0F;
        v.store(at<T>(dx, p.sample, p.row, p.column, p.channel));
    }
}

template <typename T>
__global__ void dropout_kernel(Tensor from, Tensor to, const StepConstants* constants,
                               uint64_t node, double drop, float scale) {
    const int64_t area = to.height * to.width;
    for (int64_t i = first_element(); i < to.elements(); i += element_stride()) {
        const int64_t channel = i % to.stored, pixel = i / to.stored;
        float value = 0;
        if (channel < to.channels) {
            const DropoutMask mask = DropoutMask::of(
                constants->seed, static_cast<uint64_t>(constants->step),
                static_cast<uint64_t>(constants->first_sample + pixel / area), node, drop);
            const auto index = static_cast<uint64_t>(channel * area + pixel % area);
            if (mask.keeps(index))
                value = to_float(static_cast<const T*>(from.data)[i]) * scale;
        }
        assign(static_cast<T*>(to.data)[i], value);
    }
}

__global__ void narrow_kernel(const float* from, Bf16* to, int64_t count) {
    for (int64_t i = first_element(); i < count; i += element_stride())
        assign(to[i], from[i]);
}

template <typename T, int V>
__global__ void bias_kernel(Tensor y, const float* bias) {
    const int64_t vectors = y.stored / V;
    for (int64_t i = first_element(); i < y.elements() / V; i += element_stride()) {
        const int64_t first = i % vectors * V;
        T* const place = static_cast<T*>(y.data) + i * V;
        auto v = Vector<T, V>::load(place);
#pragma unroll
        for (int j = 0; j < V; ++j)
            v.value[j] += first + j < y.channels ? bias[first + j] : 0.0F;
        v.store(place);
    }
}

}  // namespace

void line_up_input(const StepConstants* constants, const Tensor& out, cudaStream_t stream) {
    for_type(out.type, [&]<typename T>() {
        check(in_vectors<T>(out.stored), "an image is padded to whole vectors");
        input_kernel<<<blocks_for(out.rows()), threads_a_block, 0, stream>>>(
            constants, static_cast<T*>(out.data), out.rows(), out.height * out.width,
            static_cast<int>(out.channels), static_cast<int>(out.stored));
    });
    check_launch("input");
}

void line_up_relu(const Tensor& x, const Tensor& y, cudaStream_t stream) {
    for_type(y.type, [&]<typename T>() {
        launch_flat<T>(y.elements(),
                       ReluWork<T>{static_cast<const T*>(x.data), static_cast<T*>(y.data)}, stream,
                       "relu");
    });
}

void line_up_relu_gradient(const Tensor& y, const Tensor& dy, const Tensor& dx,
                           cudaStream_t stream) {
    for_type(y.type, [&]<typename T>() {
        launch_flat<T>(
            y.elements(),
            ReluGradientWork<T>{static_cast<const T*>(y.data), static_cast<const T*>(dy.data),
                                static_cast<T*>(dx.data)},
            stream, "relu gradient");
    });
}

void line_up_add(const Tensor& source, const Tensor& target, cudaStream_t stream) {
    for_type(target.type, [&]<typename T>() {
        launch_flat<T>(target.elements(),
                       AddWork<T>{static_cast<const T*>(source.data), static_cast<T*>(target.data)},
                       stream, "add");
    });
}

void line_up_shortcut(const Tensor& x, const Tensor& y, int64_t stride, cudaStream_t stream) {
    for_type(y.type, [&]<typename T>() {
        shortcut_kernel<T>
            <<<blocks_for(y.elements() / vector_size<T>), threads_a_block, 0, stream>>>(
                x, y, static_cast<int>(stride));
    });
    check_launch("shortcut");
}

void line_up_shortcut_gradient(const Tensor& dy, const Tensor& dx, int64_t stride,
                               cudaStream_t stream) {
    for_type(dx.type, [&]<typename T>() {
        shortcut_gradient_kernel<T>
            <<<blocks_for(dx.elements() / vector_size<T>), threads_a_block, 0, stream>>>(
                dy, dx, static_cast<int>(stride));
    });
    check_launch("shortcut gradient");
}

void line_up_dropout(const Tensor& from, const Tensor& to, const StepConstants* constants,
                     uint64_t node, double drop, cudaStream_t stream) {
    const auto scale = static_cast<float>(1 / (1 - drop));
    for_type(to.type, [&]<typename T>() {
        dropout_kernel<T><<<blocks_for(to.elements()), threads_a_block, 0, stream>>>(
            from, to, constants, node, drop, scale);
    });
    check_launch("dropout");
}

void line_up_narrow(const float* from, Bf16* to, int64_t count, cudaStream_t stream) {
    narrow_kernel<<<blocks_for(count), threads_a_block, 0, stream>>>(from, to, count);
    check_launch("rounding to bf16");
}

void line_up_bias(const Tensor& y, const float* bias, cudaStream_t stream) {
    for_type(y.type, [&]<typename T>() {
        const auto launch = [&]<int V>() {
            bias_kernel<T, V>
                <<<blocks_for(y.elements() / V), threads_a_block, 0, stream>>>(y, bias);
        };
        if (in_vectors<T>(y.stored))
            launch.template operator()<vector_size<T>>();
        else
            launch.template operator()<1>();
    });
    check_launch("bias");
}

}  // namespace trainer::cuda
