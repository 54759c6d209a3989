// Kernels that go through the rows of a tensor, channel by channel: sums over all of them, and work
// on each.
//
// Sums are taken in one kernel and give the same bits each time: each block adds up its part of the
// rows; the block that ends last, as a counter tells, adds up the blocks' sums in their order, in
// double.
#pragma once

#include <algorithm>

#include "engine/cuda/device.cuh"

namespace trainer::cuda {

inline constexpr int64_t target_blocks = 264;  // two on each multiprocessor of an H100
inline constexpr int64_t most_columns = 32;    // threads of a block side by side

// How threads cover a matrix: a block has `width` vectors side by side, the same for all its rows,
// and `height` rows at a time; gridDim.x blocks side by side, gridDim.y share the rows.
struct Cover {
    int64_t rows;
    int stored;  // elements of a row
    int width, height;

    __host__ __device__ int columns(int vector) const { return width * vector; }  // of a block
};

struct Launch {
    Cover cover;
    dim3 grid;
};

inline Launch cover_rows(int64_t rows, int64_t stored, int vector, int64_t least_rows_a_thread) {
    const int64_t vectors = stored / vector;
    Cover cover{rows, static_cast<int>(stored), static_cast<int>(std::min(vectors, most_columns)),
                0};
    cover.height = threads_a_block / cover.width;
    const int64_t tiles = (vectors + cover.width - 1) / cover.width;
    const int64_t needed = std::max<int64_t>(1, rows / (cover.height * least_rows_a_thread));
    const int64_t chunks = std::min(needed, std::max<int64_t>(1, target_blocks / tiles));
    return {cover, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(chunks))};
}

// Where a thread stands.
template <int V>
struct Spot {
    int x, y;     // in the block
    int channel;  // first of its vector
    bool inside;

    __device__ explicit Spot(const Cover& cover)
        : x(static_cast<int>(threadIdx.x) % cover.width),
          y(static_cast<int>(threadIdx.x) / cover.width),
          channel((static_cast<int>(blockIdx.x) * cover.width + x) * V),
          inside(y < cover.height && channel < cover.stored) {}
};

// Two sums a channel: of terms.add(row, channel, a, b) over all rows; then
// finish(channel, sum of a, sum of b) once a channel.
template <int V, typename Terms, typename Finish>
__global__ void __launch_bounds__(threads_a_block)
    sum_rows(Cover cover, Terms terms, Finish finish, SumSpace space) {
    const Spot<V> spot(cover);
    float a[V] = {}, b[V] = {};
    if (spot.inside) {
        terms.begin(spot.channel);
        const int64_t share = (cover.rows + gridDim.y - 1) / gridDim.y;
        const int64_t first = blockIdx.y * share;
        const int64_t end = first + share < cover.rows ? first + share : cover.rows;
        for (int64_t row = first + spot.y; row < end; row += cover.height)
            terms.add(row, spot.channel, a, b);
    }

    // The block's rows, in a tree.
    __shared__ float sums[2 * V][threads_a_block];
#pragma unroll
    for (int i = 0; i < V; ++i) {
        sums[i][threadIdx.x] = a[i];
        sums[V + i][threadIdx.x] = b[i];
    }
    int half = 1;
    while (half < cover.height)
        half *= 2;
    for (half /= 2; half > 0; half /= 2) {
        __syncthreads();
        if (spot.y < half && spot.y + half < cover.height) {
#pragma unroll
            for (int i = 0; i < 2 * V; ++i)
                sums[i][threadIdx.x] += sums[i][threadIdx.x + half * cover.width];
        }
    }
    if (spot.inside && spot.y == 0) {  // which has summed up here itself
        float* const mine =
            space.partial + static_cast<int64_t>(blockIdx.y) * 2 * cover.stored + spot.channel;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            mine[i] = sums[i][threadIdx.x];
            mine[cover.stored + i] = sums[V + i][threadIdx.x];
        }
        __threadfence();
    }

    // The last block of these columns adds up all; the counter is back at zero then.
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicInc(space.arrived + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    __shared__ double totals[2][threads_a_block];
    const int columns = cover.columns(V);
    const int parts = threads_a_block / columns;
    const int part = static_cast<int>(threadIdx.x) / columns;
    const int column = static_cast<int>(threadIdx.x) % columns;
    const int channel = static_cast<int>(blockIdx.x) * columns + column;
    const bool counts = part < parts && channel < cover.stored;
    double total_a = 0, total_b = 0;
    for (int64_t chunk = part; counts && chunk < gridDim.y; chunk += parts) {
        const float* const its = space.partial + chunk * 2 * cover.stored + channel;
        total_a += static_cast<double>(__ldcg(its));  // not from this multiprocessor's own cache
        total_b += static_cast<double>(__ldcg(its + cover.stored));
    }
    totals[0][threadIdx.x] = total_a;
    totals[1][threadIdx.x] = total_b;
    __syncthreads();
    if (!counts || part != 0)
        return;
    for (int other = 1; other < parts; ++other) {
        total_a += totals[0][threadIdx.x + other * columns];
        total_b += totals[1][threadIdx.x + other * columns];
    }
    finish(channel, total_a, total_b);
}

// Work on every vector of a matrix, its channels' coefficients loaded once a thread.
template <int V, typename Work>
__global__ void __launch_bounds__(threads_a_block) over_rows(Cover cover, Work work) {
    const Spot<V> spot(cover);
    if (!spot.inside)
        return;
    work.begin(spot.channel);
    const int64_t stride = static_cast<int64_t>(gridDim.y) * cover.height;
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * cover.height + spot.y; row < cover.rows;
         row += stride)
        work.run(row, spot.channel);
}

template <int V, typename Terms, typename Finish>
void launch_sums(const Tensor& t, const Terms& terms, const Finish& finish, const SumSpace& space,
                 cudaStream_t stream, const char* what) {
    const Launch launch = cover_rows(t.rows(), t.stored, V, 8);
    sum_rows<V><<<launch.grid, threads_a_block, 0, stream>>>(launch.cover, terms, finish, space);
    check_launch(what);
}

template <int V, typename Work>
void launch_rows(const Tensor& t, const Work& work, cudaStream_t stream, const char* what) {
    Launch launch = cover_rows(t.rows(), t.stored, V, 4);
    // More blocks than for sums: nothing is left to add up behind them.
    const int64_t needed = t.rows() / (launch.cover.height * 4);
    launch.grid.y = static_cast<unsigned>(
        std::clamp<int64_t>(needed, 1, 8 * target_blocks / launch.grid.x + 1));
    over_rows<V><<<launch.grid, threads_a_block, 0, stream>>>(launch.cover, work);
    check_launch(what);
}

}  // namespace trainer::cuda
