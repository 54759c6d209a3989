// What the kernels have in common: vectors of 16 bytes of an activation, and how many blocks to
// launch.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>

#include "engine/cuda/check.h"
#include "engine/cuda/kernels.h"
#include "engine/error.h"

namespace trainer::cuda {

inline constexpr int threads_a_block = 256;

/// Blocks for `count` threads that each take another element until all are done.
inline unsigned blocks_for(int64_t count) {
    constexpr int64_t most = 8192;  // several rounds of the largest GPU
    return static_cast<unsigned>(
        std::clamp<int64_t>((count + threads_a_block - 1) / threads_a_block, 1, most));
}

/// This thread's first element, and how far the next is.
__device__ inline int64_t first_element() {
    return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t element_stride() {
    return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

__device__ inline float to_float(float value) {
    return value;
}
__device__ inline float to_float(Bf16 value) {
    return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
/// Rounded to nearest, ties to even.
__device__ inline void assign(float& to, float value) {
    to = value;
}
__device__ inline void assign(Bf16& to, float value) {
    to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/// V neighbouring elements of type T; V times the size of T is 16 bytes, which the address is a
/// multiple of, or V is 1.
template <typename T, int V>
struct Vector {
    static_assert(V == 1 || V * sizeof(T) == 16);
    float value[V];

    __device__ static Vector load(const T* from) {
        Vector result;
        if constexpr (V == 1) {
            result.value[0] = to_float(*from);
        } else {
            const uint4 words = *reinterpret_cast<const uint4*>(from);
            const unsigned word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
            for (int i = 0; i < V; ++i) {
                if constexpr (sizeof(T) == 4)
                    result.value[i] = __uint_as_float(word[i]);
                else
                    result.value[i] =
                        __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xffff0000U);
            }
        }
        return result;
    }

    __device__ void store(T* to) const {
        if constexpr (V == 1) {
            assign(*to, value[0]);
        } else {
            unsigned word[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if constexpr (sizeof(T) == 4) {
                    word[i] = __float_as_uint(value[i]);
                } else {
                    Bf16 low, high;
                    assign(low, value[2 * i]);
                    assign(high, value[2 * i + 1]);
                    word[i] = low.bits | static_cast<unsigned>(high.bits) << 16;
                }
            }
            *reinterpret_cast<uint4*>(to) = make_uint4(word[0], word[1], word[2], word[3]);
        }
    }

    __device__ static Vector zero() {
        Vector result;
#pragma unroll
        for (int i = 0; i < V; ++i)
            result.value[i] = 0;
        return result;
    }
};

/// Elements of a vector of 16 bytes.
template <typename T>
inline constexpr int vector_size = static_cast<int>(16 / sizeof(T));

/// Whether every row of `stored` elements of T starts where a vector may.
template <typename T>
bool in_vectors(int64_t stored) {
    return stored % vector_size<T> == 0;
}

/// Calls run.template operator()<T>() with the element type of an activation.
template <typename Run>
void for_type(DType type, Run run) {
    check(type == DType::f32 || type == DType::bf16, "the CUDA engine computes in f32 and bf16");
    if (type == DType::bf16)
        run.template operator()<Bf16>();
    else
        run.template operator()<float>();
}

}  // namespace trainer::cuda
