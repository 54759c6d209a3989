// The arithmetic that the processor and the GPU share: known values, and the same bits by every
// compiler and on the device.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/elementwise_bits.h"
#include "tests/gpu.h"
#ifdef TRAINER_HAS_NVCC
#include "tests/elementwise_by_nvcc.h"
#endif

namespace trainer {
namespace {

constexpr uint64_t cases = 200'000;

std::vector<uint32_t> bits_by_this_compiler() {
    std::vector<uint32_t> result(cases * elementwise_bits::words);
    for (uint64_t i = 0; i < cases; ++i)
        elementwise_bits::make(i, result.data() + i * elementwise_bits::words);
    return result;
}

TEST(Elementwise, updates_by_hand) {
    float w = 1, v = 2;
    MomentumUpdate<float>{0.5F, 0.25F, 2}(w, v, 3);
    EXPECT_EQ(v, 5.5F);  // 0.25 * 2 + (2 * 1 + 3)
    EXPECT_EQ(w, -1.75F);
    w = 1, v = 2;
    NesterovUpdate<float>{0.5F, 0.25F, 2}(w, v, 3);
    EXPECT_EQ(v, 5.5F);
    EXPECT_EQ(w, 1 - 0.5F * (5 + 0.25F * 5.5F));
    EXPECT_EQ((LocalSgdUpdate{0.5F, 2}(1, 3)), -1.5F);
    EXPECT_EQ((LocalDcUpdate{0.5F, 2, 0.25F}(1, 3, 5)), 1 - 0.5F * (5 + 0.25F * 9 * -4));
    EXPECT_EQ((LocalGluUpdate{0.5F, 2, 3, 4}(1, 3, 5)), 1 - 0.5F * (3 * 3 + 4 * 5 + 2));
}

TEST(Elementwise, two_bit_code_and_its_rest) {
    const TwoBitCode code{0.5F};
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const auto& [value, expected] : std::vector<std::pair<float, uint32_t>>{
             {0.5F, 1}, {0.75F, 1}, {-0.5F, 2}, {-9, 2}, {0.499F, 0}, {-0.499F, 0}, {nan, 0}})
        EXPECT_EQ(code.encode(value), expected) << value;
    EXPECT_EQ(code.rest(0.75F, 1), 0.25F);
    EXPECT_EQ(code.rest(-0.75F, 2), -0.25F);
    EXPECT_EQ(code.rest(0.25F, 0), 0.25F);
}

TEST(Elementwise, bf16_rounds_to_nearest_even_and_keeps_nans) {
    EXPECT_EQ(bf16_of(1.0F), 0x3f80);
    EXPECT_EQ(bf16_of(float_of_bits(0x3f808000)), 0x3f80);  // half way: to the even one
    EXPECT_EQ(bf16_of(float_of_bits(0x3f818000)), 0x3f82);
    EXPECT_EQ(bf16_of(float_of_bits(0x3f808001)), 0x3f81);
    EXPECT_EQ(bf16_of(std::numeric_limits<float>::max()), 0x7f80);
    EXPECT_TRUE(std::isnan(float_of_bf16(bf16_of(float_of_bits(0x7f800001)))));
    EXPECT_EQ(float_of_bf16(0xc020), -2.5F);
}

TEST(Elementwise, a_dropout_mask_is_the_stream_of_its_key) {
    const DropoutMask mask = DropoutMask::of(7, 11, 13, 17, 0.3);
    Random random{7, static_cast<uint64_t>(RandomPurpose::dropout), 11, 13, 17};
    int kept = 0;
    for (uint64_t i = 0; i < 1000; ++i) {
        const bool keeps = random.uniform() >= 0.3;
        ASSERT_EQ(mask.keeps(i), keeps) << i;
        kept += keeps;
    }
    EXPECT_NEAR(kept, 700, 60);
}

TEST(Elementwise, nvcc_gives_the_bits_of_this_compiler) {
#ifdef TRAINER_HAS_NVCC
    std::vector<uint32_t> bits(cases * elementwise_bits::words);
    trainer_bits_by_nvcc(cases, bits.data());
    EXPECT_EQ(bits, bits_by_this_compiler());
#else
    GTEST_SKIP() << "this build has no CUDA: " << bits_by_this_compiler().size()
                 << " values have nothing to be compared with";
#endif
}

TEST(Elementwise, a_gpu_gives_the_bits_of_the_processor) {
    TRAINER_NEEDS_GPU();
#ifdef TRAINER_HAS_NVCC
    std::vector<uint32_t> bits(cases * elementwise_bits::words);
    ASSERT_EQ(trainer_bits_by_gpu(cases, bits.data()), 0);
    EXPECT_EQ(bits, bits_by_this_compiler());
#endif
}

}  // namespace
}  // namespace trainer
