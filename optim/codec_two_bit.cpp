// The 2-bit codec: q = +t where v >= t, -t where v <= -t, else 0; 16 values in a 32-bit word.
#if defined(__AVX512F__) && defined(__BMI2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/elementwise.h"
#include "optim/codec.h"

namespace trainer {

namespace {

constexpr int64_t values_a_word = 16;

// One word of up to 16 values.
uint32_t encode_word(const float* values, size_t count, float threshold) {
    uint32_t word = 0;
    const TwoBitCode code{threshold};
    for (size_t j = 0; j < count; ++j)
        word |= code.encode(values[j]) << (2 * j);
    return word;
}

void add_word(uint32_t word, float step, float* sum, size_t count) {
    for (size_t j = 0; j < count; ++j) {
        const uint32_t code = word >> (2 * j);
        sum[j] +=
            step * static_cast<float>(static_cast<int>(code & 1) - static_cast<int>(code >> 1 & 1));
    }
}

#if defined(__AVX512F__) && defined(__BMI2__)
// The same for a full word: two masks of 16, spread to the even and the odd bits.
uint32_t encode_word16(const float* values, float threshold) {
    const __m512 v = _mm512_loadu_ps(values);
    const __mmask16 up = _mm512_cmp_ps_mask(v, _mm512_set1_ps(threshold), _CMP_GE_OQ);
    const __mmask16 down = _mm512_cmp_ps_mask(v, _mm512_set1_ps(-threshold), _CMP_LE_OQ);
    return _pdep_u32(up, 0x55555555U) | _pdep_u32(down, 0xaaaaaaaaU);
}

void add_word16(uint32_t word, float step, float* sum) {
    const auto up = static_cast<__mmask16>(_pext_u32(word, 0x55555555U));
    const auto down = static_cast<__mmask16>(_pext_u32(word, 0xaaaaaaaaU));
    const __m512 size = _mm512_set1_ps(step);
    __m512 v = _mm512_loadu_ps(sum);
    v = _mm512_mask_add_ps(v, up, v, size);
    v = _mm512_mask_sub_ps(v, down, v, size);
    _mm512_storeu_ps(sum, v);
}

// e <- e + g and what is left of it, with the word that is sent.
uint32_t feed_word16(const float* gradients, float* residual, float threshold) {
    const __m512 size = _mm512_set1_ps(threshold);
    __m512 e = _mm512_add_ps(_mm512_loadu_ps(residual), _mm512_loadu_ps(gradients));
    const __mmask16 up = _mm512_cmp_ps_mask(e, size, _CMP_GE_OQ);
    const __mmask16 down =
        _mm512_cmp_ps_mask(e, _mm512_sub_ps(_mm512_setzero_ps(), size), _CMP_LE_OQ);
    e = _mm512_mask_sub_ps(e, up, e, size);
    e = _mm512_mask_add_ps(e, down, e, size);
    _mm512_storeu_ps(residual, e);
    return _pdep_u32(up, 0x55555555U) | _pdep_u32(down, 0xaaaaaaaaU);
}
#else
uint32_t feed_word16(const float* gradients, float* residual, float threshold) {
    for (size_t j = 0; j < 16; ++j)
        residual[j] += gradients[j];
    const uint32_t word = encode_word(residual, 16, threshold);
    add_word(word, -threshold, residual, 16);
    return word;
}
uint32_t encode_word16(const float* values, float threshold) {
    return encode_word(values, 16, threshold);
}
void add_word16(uint32_t word, float step, float* sum) {
    add_word(word, step, sum, 16);
}
#endif

// Sum of |v| over 512 values, in 16 sums side by side, which vectorise.
float sum_of_sizes512(const float* values) {
    float sums[16] = {};
    for (size_t i = 0; i < 512; i += 16)
        for (size_t j = 0; j < 16; ++j)
            sums[j] += std::fabs(values[i + j]);
    float total = 0;
    for (const float sum : sums)
        total += sum;
    return total;
}

class TwoBitCodec final : public Codec {
  public:
    explicit TwoBitCodec(std::optional<float> threshold) : threshold_(threshold) {
        check(!threshold || (std::isfinite(*threshold) && *threshold > 0),
              "a threshold is positive");
    }

    CodecId id() const override { return CodecId::two_bit; }
    std::string name() const override { return "2bit"; }
    bool has_scale() const override { return true; }
    bool measures() const override { return !threshold_; }
    int64_t granule() const override { return values_a_word; }

    float scale(std::span<const float> tensor) const override {
        if (threshold_)
            return *threshold_;
        double sum = 0;
        size_t i = 0;
        for (; i + 512 <= tensor.size(); i += 512)
            sum += static_cast<double>(sum_of_sizes512(tensor.data() + i));
        for (; i < tensor.size(); ++i)
            sum += std::fabs(static_cast<double>(tensor[i]));
        const auto count = static_cast<double>(std::max<size_t>(tensor.size(), 1));
        return static_cast<float>(two_bit_auto_factor * sum / count);
    }

    size_t code_bytes(int64_t count) const override {
        return static_cast<size_t>((count + values_a_word - 1) / values_a_word) * 4;
    }

    void encode(std::span<const float> values, float scale, std::byte* codes) const override {
        const float threshold = reachable(scale);
        size_t i = 0;
        for (; i + 16 <= values.size(); i += 16, codes += 4) {
            const uint32_t word = encode_word16(values.data() + i, threshold);
            std::memcpy(codes, &word, 4);
        }
        if (i < values.size()) {
            const uint32_t word = encode_word(values.data() + i, values.size() - i, threshold);
            std::memcpy(codes, &word, 4);
        }
    }

    void add_decoded(const std::byte* codes, float scale, float sign,
                     std::span<float> sum) const override {
        const float step = sign * scale;
        uint32_t word;
        size_t i = 0;
        for (; i + 16 <= sum.size(); i += 16, codes += 4) {
            std::memcpy(&word, codes, 4);
            add_word16(word, step, sum.data() + i);
        }
        if (i < sum.size()) {
            std::memcpy(&word, codes, 4);
            add_word(word, step, sum.data() + i, sum.size() - i);
        }
    }

    void encode_with_feedback(std::span<const float> gradients, std::span<float> residual,
                              float scale, std::byte* codes) const override {
        const size_t whole = scale > 0 ? residual.size() / 16 * 16 : 0;
        for (size_t i = 0; i < whole; i += 16, codes += 4) {
            const uint32_t word = feed_word16(gradients.data() + i, residual.data() + i, scale);
            std::memcpy(codes, &word, 4);
        }
        if (whole < residual.size())
            Codec::encode_with_feedback(gradients.subspan(whole), residual.subspan(whole), scale,
                                        codes);
    }

  private:
    // A tensor of zeros measures a threshold of 0, which every value would reach.
    static float reachable(float scale) {
        return scale > 0 ? scale : std::numeric_limits<float>::infinity();
    }

    std::optional<float> threshold_;  // nullopt: measured
};

}  // namespace

std::unique_ptr<Codec> make_two_bit_codec(std::optional<float> threshold) {
    return std::make_unique<TwoBitCodec>(threshold);
}

}  // namespace trainer
