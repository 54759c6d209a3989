// Kernels of max pooling over windows, and of average pooling over whole planes.
#include "engine/cuda/device.cuh"

namespace trainer::cuda {

namespace {

struct PoolShape {
    int64_t samples;
    int in_height, in_width, out_height, out_width, stored;
    int kernel, stride, padding;
};

template <typename T>
__global__ void max_pool_kernel(PoolShape p, const T* x, T* y, uint8_t* winners) {
    constexpr int V = vector_size<T>;
    const int vectors = p.stored / V;
    const int64_t count = p.samples * p.out_height * p.out_width * vectors;
    for (int64_t i = first_element(); i < count; i += element_stride()) {
        const int channel = static_cast<int>(i % vectors) * V;
        const int64_t pixel = i / vectors;
        const int column = static_cast<int>(pixel % p.out_width);
        const int row = static_cast<int>(pixel / p.out_width % p.out_height);
        const int64_t sample = pixel / p.out_width / p.out_height;
        const int top = row * p.stride - p.padding, left = column * p.stride - p.padding;
        auto best = Vector<T, V>::zero();
        int best_at[V] = {};
        bool first = true;
        for (int a = max(0, -top); a < min(p.kernel, p.in_height - top); ++a)
            for (int b = max(0, -left); b < min(p.kernel, p.in_width - left); ++b) {
                const int64_t line = (sample * p.in_height + top + a) * p.in_width + left + b;
                const auto v = Vector<T, V>::load(x + line * p.stored + channel);
#pragma unroll
                for (int j = 0; j < V; ++j)
                    if (first || v.value[j] > best.value[j] || v.value[j] != v.value[j]) {
                        best.value[j] = v.value[j];
                        best_at[j] = a * p.kernel + b;
                    }
                first = false;
            }
        best.store(y + i * V);
        if (winners != nullptr) {
#pragma unroll
            for (int j = 0; j < V; ++j)
                winners[i * V + j] = static_cast<uint8_t>(best_at[j]);
        }
    }
}

// Each input gathers what the windows around it give, in their order: the same bits each time.
template <typename T>
__global__ void max_pool_gradient_kernel(PoolShape p, const T* dy, const uint8_t* winners, T* dx) {
    constexpr int V = vector_size<T>;
    const int vectors = p.stored / V;
    const int64_t count = p.samples * p.in_height * p.in_width * vectors;
    for (int64_t i = first_element(); i < count; i += element_stride()) {
        const int channel = static_cast<int>(i % vectors) * V;
        const int64_t pixel = i / vectors;
        const int column = static_cast<int>(pixel % p.in_width) + p.padding;
        const int row = static_cast<int>(pixel / p.in_width % p.in_height) + p.padding;
        const int64_t sample = pixel / p.in_width / p.in_height;
        const int first_row = row < p.kernel ? 0 : (row - p.kernel) / p.stride + 1;
        const int first_column = column < p.kernel ? 0 : (column - p.kernel) / p.stride + 1;
        auto sum = Vector<T, V>::zero();
        for (int a = first_row; a < min(row / p.stride + 1, p.out_height); ++a)
            for (int b = first_column; b < min(column / p.stride + 1, p.out_width); ++b) {
                const int here = (row - a * p.stride) * p.kernel + column - b * p.stride;
                const int64_t at =
                    ((sample * p.out_height + a) * p.out_width + b) * p.stored + channel;
                const auto g = Vector<T, V>::load(dy + at);
#pragma unroll
                for (int j = 0; j < V; ++j)
                    sum.value[j] += winners[at + j] == here ? g.value[j] : 0.0F;
            }
        sum.store(dx + i * V);
    }
}

template <typename T, typename Row>
__global__ void average_kernel(const T* x, Row* y, int64_t samples, int area, int channels,
                               int stored) {
    for (int64_t i = first_element(); i < samples * channels; i += element_stride()) {
        const T* const plane = x + i / channels * area * stored + i % channels;
        float sum = 0;
        for (int at = 0; at < area; ++at)
            sum += to_float(plane[static_cast<int64_t>(at) * stored]);
        assign(y[i], sum / static_cast<float>(area));
    }
}

template <typename T, typename Row>
__global__ void average_gradient_kernel(const Row* dy, T* dx, int64_t elements, int area,
                                        int channels, int stored) {
    for (int64_t i = first_element(); i < elements; i += element_stride()) {
        const int channel = static_cast<int>(i % stored);
        const int64_t sample = i / stored / area;
        assign(dx[i], channel < channels
                          ? to_float(dy[sample * channels + channel]) / static_cast<float>(area)
                          : 0.0F);
    }
}

PoolShape shape_of(const Tensor& in, const Tensor& out, const Window& window) {
    return {out.samples,
            static_cast<int>(in.height),
            static_cast<int>(in.width),
            static_cast<int>(out.height),
            static_cast<int>(out.width),
            static_cast<int>(out.stored),
            static_cast<int>(window.kernel),
            static_cast<int>(window.stride),
            static_cast<int>(window.padding)};
}

}  // namespace

void line_up_max_pool(const Tensor& x, const Tensor& y, const Window& window, uint8_t* winners,
                      cudaStream_t stream) {
    for_type(y.type, [&]<typename T>() {
        max_pool_kernel<<<blocks_for(y.elements() / vector_size<T>), threads_a_block, 0, stream>>>(
            shape_of(x, y, window), static_cast<const T*>(x.data), static_cast<T*>(y.data),
            winners);
    });
    check_launch("max pool");
}

void line_up_max_pool_gradient(const Tensor& dy, const uint8_t* winners, const Tensor& dx,
                               const Window& window, cudaStream_t stream) {
    for_type(dx.type, [&]<typename T>() {
        max_pool_gradient_kernel<<<blocks_for(dx.elements() / vector_size<T>), threads_a_block, 0,
                                   stream>>>(shape_of(dx, dy, window),
                                             static_cast<const T*>(dy.data), winners,
                                             static_cast<T*>(dx.data));
    });
    check_launch("max pool gradient");
}

void line_up_average_pool(const Tensor& x, const Tensor& y, cudaStream_t stream) {
    for_type(x.type, [&]<typename T>() {
        for_type(y.type, [&]<typename Row>() {
            average_kernel<<<blocks_for(y.samples * y.channels), threads_a_block, 0, stream>>>(
                static_cast<const T*>(x.data), static_cast<Row*>(y.data), x.samples,
                static_cast<int>(x.height * x.width), static_cast<int>(x.channels),
                static_cast<int>(x.stored));
        });
    });
    check_launch("average pool");
}

void line_up_average_pool_gradient(const Tensor& dy, const Tensor& dx, cudaStream_t stream) {
    for_type(dx.type, [&]<typename T>() {
        for_type(dy.type, [&]<typename Row>() {
            average_gradient_kernel<<<blocks_for(dx.elements()), threads_a_block, 0, stream>>>(
                static_cast<const Row*>(dy.data), static_cast<T*>(dx.data), dx.elements(),
                static_cast<int>(dx.height * dx.width), static_cast<int>(dx.channels),
                static_cast<int>(dx.stored));
        });
    });
    check_launch("average pool gradient");
}

}  // namespace trainer::cuda
