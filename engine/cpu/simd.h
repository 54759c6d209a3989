// Vectors of one block of channels, in GCC's vector extensions: they compile for any processor,
// to one AVX-512 register where there is AVX-512 and the block has 16 channels.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
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

/// N neighbouring positions of a block (1 or 2), on which arithmetic is elementwise. In a pair of
/// bf16 positions the first vector has the even channels and the second the odd ones, of one
/// position after the other, since so they come apart with one operation each; `spread` lays
/// values of channels out alike.
template <typename T, int B, int N>
struct Pack {
    static_assert(N == 1 || N == 2);
    static constexpr int elements = B * N;
    static constexpr bool split = N == 2 && sizeof(T) == 2;
    using Float = FloatBlock<B>;
    using Word = typename Simd<B>::Word;

    Float v[N] = {};

    [[gnu::always_inline]] static Pack load(const T* from) {
        Pack result;
        if constexpr (split) {
            Word words;
            std::memcpy(&words, from, sizeof words);
            result.v[0] = reinterpret_cast<Float>(words << 16);
            result.v[1] = reinterpret_cast<Float>(words & 0xffff0000);
        } else {
            for (int i = 0; i < N; ++i)
                result.v[i] = cpu::load<B>(from + i * B);
        }
        return result;
    }

    [[gnu::always_inline]] void store(T* to) const {
        if constexpr (split)
            store_split(to);
        else
            for (int i = 0; i < N; ++i)
                cpu::store<B>(to + i * B, v[i]);
    }

    /// From one value a channel [B].
    static Pack spread(const float* channels) {
        const Float values = cpu::load<B>(channels);
        Pack result;
        if constexpr (split)
            for (int i = 0; i < N; ++i)
                result.v[i] = every_second(values, i, std::make_index_sequence<B>());
        else
            for (int i = 0; i < N; ++i)
                result.v[i] = values;
        return result;
    }

    /// Adds to one sum a channel [B].
    void add_to(double* sums) const {
        Float total = v[0];
        if constexpr (split)
            total = interleave(v[0] + halves_swapped(v[0]), v[1] + halves_swapped(v[1]),
                               std::make_index_sequence<B>());
        else if constexpr (N == 2)
            total += v[1];
        typename Simd<B>::Double sum;
        std::memcpy(&sum, sums, sizeof sum);
        sum += __builtin_convertvector(total, typename Simd<B>::Double);
        std::memcpy(sums, &sum, sizeof sum);
    }

    [[gnu::always_inline]] Pack& operator+=(const Pack& other) {
        for (int i = 0; i < N; ++i)
            v[i] += other.v[i];
        return *this;
    }
    [[gnu::always_inline]] friend Pack operator+(Pack a, const Pack& b) { return a += b; }
    [[gnu::always_inline]] friend Pack operator-(Pack a, const Pack& b) {
        for (int i = 0; i < N; ++i)
            a.v[i] -= b.v[i];
        return a;
    }
    [[gnu::always_inline]] friend Pack operator*(Pack a, const Pack& b) {
        for (int i = 0; i < N; ++i)
            a.v[i] *= b.v[i];
        return a;
    }

    /// No less than zero; a NaN stays one.
    [[gnu::always_inline]] Pack rectified() const {
        Pack result;
        for (int i = 0; i < N; ++i)
            result.v[i] = v[i] < Float{} ? Float{} : v[i];
        return result;
    }
    /// This where `output` is above zero (or NaN), else zero.
    [[gnu::always_inline]] Pack masked_by(const Pack& output) const {
        Pack result;
        for (int i = 0; i < N; ++i)
            result.v[i] = output.v[i] <= Float{} ? Float{} : v[i];
        return result;
    }

  private:
    [[gnu::always_inline]] void store_split(T* to) const {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
        if constexpr (B == 16) {
            // Even channels in the lower half, odd ones in the upper; then one by one.
            const auto apart = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
                reinterpret_cast<__m512>(v[1]), reinterpret_cast<__m512>(v[0])));
            static constexpr std::array<uint16_t, 2 * B> order = [] {
                std::array<uint16_t, 2 * B> result{};
                for (size_t j = 0; j < result.size(); ++j)
                    result[j] = static_cast<uint16_t>(j / 2 + j % 2 * B);
                return result;
            }();
            const __m512i mixed = _mm512_permutexvar_epi16(_mm512_loadu_si512(&order), apart);
            std::memcpy(to, &mixed, sizeof mixed);
            return;
        }
#endif
        const Word words = (rounded(v[0]) >> 16) | (rounded(v[1]) & 0xffff0000);
        std::memcpy(to, &words, sizeof words);
    }

    template <size_t... I>
    static Float every_second(Float values, int first, std::index_sequence<I...>) {
        return first == 0 ? __builtin_shufflevector(values, values, (I % (B / 2) * 2)...)
                          : __builtin_shufflevector(values, values, (I % (B / 2) * 2 + 1)...);
    }
    static Float halves_swapped(Float values) {
        return [&]<size_t... I>(std::index_sequence<I...>) {
            return __builtin_shufflevector(values, values, ((I + B / 2) % B)...);
        }
        (std::make_index_sequence<B>());
    }
    template <size_t... I>
    static Float interleave(Float even, Float odd, std::index_sequence<I...>) {
        return __builtin_shufflevector(even, odd, (I / 2 + I % 2 * B)...);
    }

    /// With the bf16 in the upper half; what is left in the lower half counts nothing.
    static Word rounded(Float value) {
        const auto word = reinterpret_cast<Word>(value);
        return (value != value) ? (word | 0x400000) : word + 0x7fff + ((word >> 16) & 1);
    }
};

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
