// Codecs and error feedback: literal bytes, identities, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/random.h"
#include "optim/codec.h"

namespace trainer {
namespace {

std::vector<float> random_vector(int64_t count, uint64_t seed, double size = 1) {
    Random random{seed, 77};
    std::vector<float> result(static_cast<size_t>(count));
    for (float& value : result)
        value = static_cast<float>(size * random.normal());
    return result;
}

TensorTable table_of(std::vector<int64_t> sizes) {
    TensorTable table;
    for (size_t i = 0; i < sizes.size(); ++i)
        table.add("t" + std::to_string(i), {sizes[i]}, true, {});
    return table;
}

std::vector<std::byte> encode_whole(const Codec& codec, const std::vector<float>& values) {
    std::vector<std::byte> codes(codec.code_bytes(static_cast<int64_t>(values.size())));
    codec.encode(values, codec.scale(values), codes.data());
    return codes;
}

std::vector<float> decode_whole(const Codec& codec, const std::vector<std::byte>& codes,
                                float scale, size_t count) {
    std::vector<float> values(count, 0);
    codec.add_decoded(codes.data(), scale, 1, values);
    return values;
}

uint32_t word_at(const std::vector<std::byte>& codes, size_t index) {
    uint32_t word;
    std::memcpy(&word, codes.data() + 4 * index, 4);
    return word;
}

TEST(TwoBit, WordsLiterally) {
    const auto codec = make_two_bit_codec(0.5F);
    // Value j in bits 2j, 2j+1; both thresholds are reached, not passed.
    const std::vector<float> values{0.5F, -0.5F, 0.49F, -0.49F, 2, -2, 0, 0.51F,
                                    0,    0,     0,     0,      0, 0,  1, -1, /* next word: */
                                    -3,   0.5F,  0};
    const auto codes = encode_whole(*codec, values);
    ASSERT_EQ(codes.size(), 8U);
    //                           j: 15 14 13 ... 7  6  5  4  3  2  1  0
    EXPECT_EQ(word_at(codes, 0), 0b10'01'00'00'00'00'00'00'01'00'10'01'00'00'10'01U);
    EXPECT_EQ(word_at(codes, 1), 0b00'01'10U);
    const std::vector<float> expected{0.5F, -0.5F, 0, 0, 0.5F, -0.5F, 0,     0.5F, 0, 0,
                                      0,    0,     0, 0, 0.5F, -0.5F, -0.5F, 0.5F, 0};
    EXPECT_EQ(decode_whole(*codec, codes, 0.5F, values.size()), expected);
}

TEST(TwoBit, SixteenthOfTheBytes) {
    const auto codec = make_two_bit_codec(0.01F);
    EXPECT_EQ(codec->code_bytes(1 << 20), size_t{4} << 16);
    EXPECT_EQ(codec->code_bytes(0), 0U);
    EXPECT_EQ(codec->code_bytes(17), 8U);
}

TEST(TwoBit, NotANumberAndInfinityAreCoded) {
    const auto codec = make_two_bit_codec(1.0F);
    const float infinity = std::numeric_limits<float>::infinity();
    const auto codes = encode_whole(*codec, {std::nanf(""), infinity, -infinity});
    EXPECT_EQ(word_at(codes, 0), 0b10'01'00U);
}

TEST(TwoBit, RefusesAThresholdThatIsNotPositive) {
    EXPECT_THROW(make_two_bit_codec(0.0F), std::logic_error);
    EXPECT_THROW(make_two_bit_codec(-1.0F), std::logic_error);
}

// decode(q) + the new residual = the old residual + g, up to one rounding.
TEST(ErrorFeedback, KeepsWhatWasNotSent) {
    const TensorTable table = table_of({5, 1000, 16, 3000});
    for (const auto& codec : {make_two_bit_codec(0.3F), make_two_bit_codec(std::nullopt),
                              make_fp16_codec(), make_bf16_codec(), make_raw_codec()}) {
        SCOPED_TRACE(codec->name());
        std::vector<float> residual = random_vector(table.size(), 1, 0.2);
        const std::vector<float> before = residual;
        const std::vector<float> gradients = random_vector(table.size(), 2);
        ErrorFeedback feedback(*codec, table, residual);
        const Range all{0, table.size()};
        const auto segments = segments_of(*codec, table, all);
        std::vector<std::byte> codes(encoded_bytes(*codec, segments));
        feedback.begin(gradients, all);
        feedback.encode(segments, gradients, codes.data());
        std::vector<float> decoded(gradients.size(), 0);
        add_decoded_range(*codec, segments, codes, decoded, 0);
        double sent = 0;
        for (size_t i = 0; i < gradients.size(); ++i) {
            const float whole = before[i] + gradients[i];
            EXPECT_NEAR(decoded[i] + residual[i], whole,
                        1.2e-7F * std::max(std::fabs(whole), std::fabs(decoded[i])));
            sent += std::fabs(decoded[i]);
        }
        EXPECT_GT(sent, 0);
    }
}

// The 2-bit codec's single pass gives the bits of the three that define it.
TEST(ErrorFeedback, OnePassEqualsThree) {
    const auto codec = make_two_bit_codec(0.4F);
    for (const int64_t count : {1, 15, 16, 17, 100}) {
        const auto gradients = random_vector(count, 8);
        std::vector<float> fused = random_vector(count, 9, 0.3), plain = fused;
        std::vector<std::byte> fused_codes(codec->code_bytes(count)), plain_codes = fused_codes;
        codec->encode_with_feedback(gradients, fused, 0.4F, fused_codes.data());
        codec->Codec::encode_with_feedback(gradients, plain, 0.4F, plain_codes.data());
        EXPECT_EQ(fused, plain) << count;
        EXPECT_EQ(fused_codes, plain_codes) << count;
    }
}

// Nothing drifts: after many steps the sum of what was sent is the sum of the gradients, less
// one bounded residual.
TEST(ErrorFeedback, DoesNotDrift) {
    const TensorTable table = table_of({64});
    const auto codec = make_two_bit_codec(0.05F);
    std::vector<float> residual(64, 0);
    ErrorFeedback feedback(*codec, table, residual);
    const auto segments = segments_of(*codec, table, {0, 64});
    std::vector<std::byte> codes(encoded_bytes(*codec, segments));
    std::vector<double> sent(64, 0), wanted(64, 0);
    for (uint64_t step = 0; step < 2000; ++step) {
        const auto gradients = random_vector(64, 100 + step, 0.02);
        feedback.begin(gradients, {0, 64});
        feedback.encode(segments, gradients, codes.data());
        std::vector<float> decoded(64, 0);
        add_decoded_range(*codec, segments, codes, decoded, 0);
        for (size_t i = 0; i < 64; ++i) {
            sent[i] += static_cast<double>(decoded[i]);
            wanted[i] += static_cast<double>(gradients[i]);
        }
    }
    for (size_t i = 0; i < 64; ++i) {
        EXPECT_NEAR(sent[i] + static_cast<double>(residual[i]), wanted[i], 1e-3);
        EXPECT_LT(std::fabs(residual[i]), 0.1);
    }
}

TEST(ErrorFeedback, AnExactPushMayFlush) {
    const TensorTable table = table_of({4});
    const auto codec = make_two_bit_codec(1.0F);
    std::vector<float> residual{0.5F, -0.25F, 0, 2};
    std::vector<float> gradients{1, 1, 1, 1};
    ErrorFeedback feedback(*codec, table, residual);
    feedback.flush(gradients, {1, 3});
    EXPECT_EQ(gradients, (std::vector<float>{1, 0.75F, 1, 3}));
    EXPECT_EQ(residual, (std::vector<float>{0.5F, 0, 0, 0}));
}

// An `auto` threshold is measured on whole tensors, however many servers share them.
TEST(ErrorFeedback, AutoThresholdDoesNotDependOnTheServers) {
    const TensorTable table = table_of({100, 37, 5000});
    const auto codec = make_two_bit_codec(std::nullopt);
    const auto gradients = random_vector(table.size(), 3);
    std::vector<float> reference;
    for (const int64_t servers : {1, 2, 3, 7}) {
        std::vector<float> residual(gradients.size(), 0);
        ErrorFeedback feedback(*codec, table, residual);
        feedback.begin(gradients, {0, table.size()});
        std::vector<float> decoded(gradients.size(), 0);
        for (int64_t server = 0; server < servers; ++server) {
            const Range shard = part_of(table.size(), server, servers);
            const auto segments = segments_of(*codec, table, shard);
            std::vector<std::byte> codes(encoded_bytes(*codec, segments));
            feedback.encode(segments, gradients, codes.data());
            add_decoded_range(*codec, segments, codes,
                              std::span(decoded).subspan(static_cast<size_t>(shard.first),
                                                         static_cast<size_t>(shard.count)),
                              shard.first);
        }
        if (reference.empty())
            reference = decoded;
        EXPECT_EQ(decoded, reference) << servers << " servers";
    }
    const double mean = std::accumulate(gradients.begin(), gradients.begin() + 100, 0.0,
                                        [](double sum, float g) { return sum + std::fabs(g); }) /
                        100;
    const auto largest = *std::max_element(reference.begin(), reference.begin() + 100);
    EXPECT_NEAR(static_cast<double>(largest), two_bit_auto_factor * mean, 1e-6);
}

TEST(ErrorFeedback, ZeroTensorSendsZeros) {
    const TensorTable table = table_of({20});
    const auto codec = make_two_bit_codec(std::nullopt);
    const std::vector<float> zeros(20, 0);
    std::vector<float> residual(20, 0), decoded(20, 0);
    ErrorFeedback feedback(*codec, table, residual);
    const auto segments = segments_of(*codec, table, {0, 20});
    std::vector<std::byte> codes(encoded_bytes(*codec, segments));
    feedback.begin(zeros, {0, 20});
    feedback.encode(segments, zeros, codes.data());
    add_decoded_range(*codec, segments, codes, decoded, 0);
    EXPECT_EQ(decoded, zeros);
    EXPECT_EQ(residual, zeros);
}

TEST(Raw, IsBitwise) {
    const auto codec = make_raw_codec();
    const auto values = random_vector(1001, 4);
    EXPECT_EQ(decode_whole(*codec, encode_whole(*codec, values), 0, values.size()), values);
    EXPECT_TRUE(codec->lossless());
}

TEST(SixteenBit, RoundsToNearestEven) {
    const auto value_of = [](const Codec& codec, float value) {
        return decode_whole(codec, encode_whole(codec, {value}), 0, 1)[0];
    };
    const auto half = make_fp16_codec();
    EXPECT_EQ(value_of(*half, 1.0F + 0x1p-11F), 1.0F);                // tie: to even
    EXPECT_EQ(value_of(*half, 1.0F + 3 * 0x1p-11F), 1.0F + 0x1p-9F);  // tie: to even
    EXPECT_EQ(value_of(*half, 65504.0F), 65504.0F);
    EXPECT_TRUE(std::isinf(value_of(*half, 1e6F)));
    EXPECT_EQ(value_of(*half, 0x1p-24F), 0x1p-24F);  // the smallest subnormal
    const auto brain = make_bf16_codec();
    EXPECT_EQ(value_of(*brain, 1.0F + 0x1p-8F), 1.0F);
    EXPECT_EQ(value_of(*brain, 1.0F + 3 * 0x1p-8F), 1.0F + 0x1p-6F);
    EXPECT_TRUE(std::isnan(value_of(*brain, std::nanf("1"))));
    EXPECT_TRUE(std::isinf(value_of(*brain, std::numeric_limits<float>::max())));
}

TEST(SixteenBit, VectorAndTailAgree) {
    for (const auto& codec : {make_fp16_codec(), make_bf16_codec()}) {
        const auto values = random_vector(61, 5);
        const auto together = encode_whole(*codec, values);
        for (size_t i = 0; i < values.size(); ++i) {
            const auto alone = encode_whole(*codec, {values[i]});
            EXPECT_EQ(std::memcmp(alone.data(), together.data() + 2 * i, 2), 0) << i;
        }
    }
}

TEST(Decoding, RefusesAWrongLengthAndABadScale) {
    const auto codec = make_two_bit_codec(1.0F);
    const TensorTable table = table_of({32});
    const auto segments = segments_of(*codec, table, {0, 32});
    std::vector<float> sum(32, 0);
    std::vector<std::byte> codes(encoded_bytes(*codec, segments) - 1);
    EXPECT_THROW(add_decoded_range(*codec, segments, codes, sum, 0), Error);
    codes.resize(codes.size() + 1);
    const float bad = std::nanf("");
    std::memcpy(codes.data(), &bad, 4);
    EXPECT_THROW(add_decoded_range(*codec, segments, codes, sum, 0), Error);
}

}  // namespace
}  // namespace trainer
