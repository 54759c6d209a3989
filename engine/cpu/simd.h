// Vectors of one block of channels, in GCC's vector extensions: they compile for any processor,
// to one AVX-512 register where there is AVX-512 and the block has 16 channels.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace trainer::cpu {

/// The upper half of a float.
struct Bf16 {
    uint16_t bits;
};

/// Types of B values side by side.
template <int B>
struct Simd {
    typedef float Float __attribute__((vector_size(B * 4)));
    typedef int32_t Int __attribute__((vector_size(B * 4)));
    typedef uint32_t Word __attribute__((vector_size(B * 4)));
    typedef uint16_t Half __attribute__((vector_size(B * 2)));
    typedef uint8_t Byte __attribute__((vector_size(B)));
    typedef double Double __attribute__((vector_size(B * 8)));
};

template <int B>
using FloatBlock = typename Simd<B>::Float;

template <int B>
[[gnu::always_inline]] inline FloatBlock<B> load(const float* from) {
    FloatBlock<B> result;
    std::memcpy(&result, from, sizeof result);
    return result;
}

template <int B>
[[gnu::always_inline]] inline FloatBlock<B> load(const Bf16* from) {
    typename Simd<B>::Half half;
    std::memcpy(&half, from, sizeof half);
    const auto word = __builtin_convertvector(half, typename Simd<B>::Word) << 16;
    return reinterpret_cast<FloatBlock<B>>(word);
}

template <int B>
[[gnu::always_inline]] inline void store(float* to, FloatBlock<B> value) {
    std::memcpy(to, &value, sizeof value);
}

/// Rounds to nearest, ties to even; a NaN stays one.
template <int B>
[[gnu::always_inline]] inline void store(Bf16* to, FloatBlock<B> value) {
#if defined(__AVX512BF16__)
    if constexpr (B == 16) {
        const __m256bh half = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(value));
        std::memcpy(to, &half, sizeof half);
        return;
    }
#endif
    const auto word = reinterpret_cast<typename Simd<B>::Word>(value);
    const auto rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    const auto quiet = (word >> 16) | 0x40;
    const auto half =
        __builtin_convertvector((value != value) ? quiet : rounded, typename Simd<B>::Half);
    std::memcpy(to, &half, sizeof half);
}

inline float to_float(float value) {
    return value;
}

inline float to_float(Bf16 value) {
    const uint32_t word = static_cast<uint32_t>(value.bits) << 16;
    float result;
    std::memcpy(&result, &word, sizeof result);
    return result;
}

inline void assign(float& to, float value) {
    to = value;
}

/// Rounds as the vector store does.
inline void assign(Bf16& to, float value) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    const uint32_t rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    to.bits = static_cast<uint16_t>(value != value ? (word >> 16) | 0x40 : rounded);
}

}  // namespace trainer::cpu
