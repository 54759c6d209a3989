// What nvcc knows and a C++ compiler does not, for kernels that translate.cpp has made C++ of.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>

#include "tests/cuda_emulator/machine.h"

namespace cuda_emulator {

struct Index {
    unsigned x = 0, y = 0, z = 0;
};

/// Runs a kernel's threads one after the other, and side by side where they wait for each other.
void run_grid(dim3 grid, dim3 block, const std::function<void()>& thread);
/// In a kernel: returns once all threads of the block have called it that have not ended.
void sync_block();
/// In a kernel, by all threads of a warp: the value of the lane whose index differs in `mask`.
double value_of_lane(double value, unsigned mask);

/// kernel<<<grid, block, 0, stream>>>(arguments...).
template <typename Kernel, typename... Arguments>
void launch(cudaStream_t stream, dim3 grid, dim3 block, Kernel kernel, Arguments... arguments) {
    static const char code = 0;  // of this launch alone
    line_up(stream, &code, [=] { run_grid(grid, block, [&] { kernel(arguments...); }); });
}

}  // namespace cuda_emulator

// Of the thread that runs.
extern cuda_emulator::Index threadIdx, blockIdx, blockDim, gridDim;

#undef __launch_bounds__
#define __launch_bounds__(...)

using std::max;
using std::min;

inline void __syncthreads() {
    cuda_emulator::sync_block();
}
inline void __threadfence() {}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    static_assert(sizeof(T) <= sizeof(double));
    return static_cast<T>(
        cuda_emulator::value_of_lane(static_cast<double>(value), static_cast<unsigned>(mask)));
}
inline unsigned atomicInc(unsigned* counter, unsigned most) {
    return std::exchange(*counter, *counter >= most ? 0 : *counter + 1);
}
template <typename T>
T __ldcg(const T* from) {
    return *from;
}
inline float __uint_as_float(unsigned bits) {
    return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float value) {
    return std::bit_cast<unsigned>(value);
}
