// The codecs raw, fp16 and bf16: each value by itself, in fewer bits.
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include <bit>
#include <cstring>
#include <type_traits>

#include "optim/codec.h"

namespace trainer {

namespace {

class RawCodec final : public Codec {
  public:
    CodecId id() const override { return CodecId::raw; }
    std::string name() const override { return "raw"; }
    bool lossless() const override { return true; }
    size_t code_bytes(int64_t count) const override { return static_cast<size_t>(count) * 4; }

    void encode(std::span<const float> values, float, std::byte* codes) const override {
        std::memcpy(codes, values.data(), values.size_bytes());
    }

    void add_decoded(const std::byte* codes, float, float sign,
                     std::span<float> sum) const override {
        for (size_t i = 0; i < sum.size(); ++i) {
            float value;
            std::memcpy(&value, codes + 4 * i, 4);
            sum[i] += sign * value;
        }
    }
};

// The two conversions of a 16-bit float, one value at a time.
struct Half {
    static uint16_t narrow(float value) {
        return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
    }
    static float widen(uint16_t code) { return static_cast<float>(std::bit_cast<_Float16>(code)); }
};

struct Brain {
    static uint16_t narrow(float value) {
        const auto bits = std::bit_cast<uint32_t>(value);
        // Nearest even; a NaN keeps a mantissa bit, so that it does not become an infinity.
        const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
        const bool nan = (bits & 0x7fffffff) > 0x7f800000;
        return static_cast<uint16_t>((nan ? bits | 0x400000 : rounded) >> 16);
    }
    static float widen(uint16_t code) {
        return std::bit_cast<float>(static_cast<uint32_t>(code) << 16);
    }
};

#if defined(__F16C__)
// Eight values at a time, where the compiler does not find the instruction by itself.
size_t narrow_eights(std::span<const float> values, std::byte* codes) {
    size_t i = 0;
    for (; i + 8 <= values.size(); i += 8)
        _mm_storeu_si128(
            reinterpret_cast<__m128i*>(codes + 2 * i),
            _mm256_cvtps_ph(_mm256_loadu_ps(values.data() + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}

size_t add_eights(const std::byte* codes, float sign, std::span<float> sum) {
    const __m256 factor = _mm256_set1_ps(sign);
    size_t i = 0;
    for (; i + 8 <= sum.size(); i += 8) {
        const __m256 value =
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 2 * i)));
        _mm256_storeu_ps(sum.data() + i, _mm256_add_ps(_mm256_loadu_ps(sum.data() + i),
                                                       _mm256_mul_ps(factor, value)));
    }
    return i;
}
#endif

template <typename Format>
class SixteenBitCodec final : public Codec {
  public:
    SixteenBitCodec(CodecId id, std::string name) : id_(id), name_(std::move(name)) {}

    CodecId id() const override { return id_; }
    std::string name() const override { return name_; }
    size_t code_bytes(int64_t count) const override { return static_cast<size_t>(count) * 2; }

    void encode(std::span<const float> values, float, std::byte* codes) const override {
        size_t i = 0;
#if defined(__F16C__)
        if constexpr (std::is_same_v<Format, Half>)
            i = narrow_eights(values, codes);
#endif
        for (; i < values.size(); ++i) {
            const uint16_t code = Format::narrow(values[i]);
            std::memcpy(codes + 2 * i, &code, 2);
        }
    }

    void add_decoded(const std::byte* codes, float, float sign,
                     std::span<float> sum) const override {
        size_t i = 0;
#if defined(__F16C__)
        if constexpr (std::is_same_v<Format, Half>)
            i = add_eights(codes, sign, sum);
#endif
        for (; i < sum.size(); ++i) {
            uint16_t code;
            std::memcpy(&code, codes + 2 * i, 2);
            sum[i] += sign * Format::widen(code);
        }
    }

  private:
    CodecId id_;
    std::string name_;
};

}  // namespace

std::unique_ptr<Codec> make_raw_codec() {
    return std::make_unique<RawCodec>();
}

std::unique_ptr<Codec> make_fp16_codec() {
    return std::make_unique<SixteenBitCodec<Half>>(CodecId::fp16, "fp16");
}

std::unique_ptr<Codec> make_bf16_codec() {
    return std::make_unique<SixteenBitCodec<Brain>>(CodecId::bf16, "bf16");
}

}  // namespace trainer
