// Sums of channels, and the memory that all sums over rows take.
#include "engine/cuda/rows.cuh"

namespace trainer::cuda {

namespace {

template <typename T, int V>
struct ChannelTerms {
    const T* values;
    int stored;

    __device__ void begin(int) {}
    __device__ void add(int64_t row, int channel, float (&a)[V], float (&)[V]) const {
        const auto v = Vector<T, V>::load(values + row * stored + channel);
#pragma unroll
        for (int i = 0; i < V; ++i)
            a[i] += v.value[i];
    }
};

struct ChannelFinish {
    int64_t channels;
    float* sums;
    __device__ void operator()(int c, double sum, double) const {
        if (c < channels)
            sums[c] = static_cast<float>(sum);
    }
};

int64_t parts(int64_t whole, int64_t size) {
    return (whole + size - 1) / size;
}

}  // namespace

// Of the blocks of cover_rows(): there are most of them side by side where a thread has one
// channel, and most on top of each other where it has as many as there are in 16 bytes of the
// smallest type.
int64_t sum_space_counters(int64_t stored_channels) {
    return parts(stored_channels, most_columns);
}
int64_t sum_space_floats(int64_t stored_channels) {
    const int64_t least_tiles = parts(stored_channels, most_columns * vector_size<Bf16>);
    return std::max<int64_t>(1, target_blocks / least_tiles) * 2 * stored_channels;
}

void line_up_channel_sums(const Tensor& t, float* sums, const SumSpace& space,
                          cudaStream_t stream) {
    for_type(t.type, [&]<typename T>() {
        const auto launch = [&]<int V>() {
            launch_sums<V>(
                t, ChannelTerms<T, V>{static_cast<const T*>(t.data), static_cast<int>(t.stored)},
                ChannelFinish{t.channels, sums}, space, stream, "sums of channels");
        };
        if (in_vectors<T>(t.stored))
            launch.template operator()<vector_size<T>>();
        else
            launch.template operator()<1>();
    });
}

}  // namespace trainer::cuda
