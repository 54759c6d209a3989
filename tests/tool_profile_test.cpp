// What --profile prints, of times that are known.
#include <gtest/gtest.h>

#include "tools/trainer/profile.h"

namespace trainer {
namespace {

TEST(Profile, adds_up_kinds_and_tells_their_rates) {
    const std::vector<OperationTime> times{{.name = "conv1",
                                            .kind = "convolution",
                                            .implementation = "jit",
                                            .forward_s = 0.2,
                                            .backward_s = 0.4,
                                            .multiply_adds = 1'000'000},
                                           {.name = "bn1",
                                            .kind = "batch_norm",
                                            .implementation = "fused",
                                            .forward_s = 0.1,
                                            .backward_s = 0.1},
                                           {.name = "conv2",
                                            .kind = "convolution",
                                            .implementation = "winograd",
                                            .forward_s = 0.1,
                                            .backward_s = 0.1,
                                            .multiply_adds = 3'000'000}};
    // Convolutions: 0.8 s of 1.0; 6 * 4e6 * 50 images * 10 steps = 12 GFLOP in them.
    const std::vector<std::string> expected{
        "profile      ms a step forward, backward; share; GFLOP/s of the first thread; kind",
        "   30.000    50.000  80.0 %      15.0  convolution",
        "   10.000    10.000  20.0 %            batch_norm",
        "profile      ms a step forward, backward; kind; implementation; name",
        "   20.000    40.000  convolution   jit                      conv1",
        "   10.000    10.000  batch_norm    fused                    bn1",
        "   10.000    10.000  convolution   winograd                 conv2"};
    EXPECT_EQ(profile_lines(times, 10, 50), expected);
}

TEST(Profile, of_no_step_is_of_zeros) {
    const auto lines = profile_lines(
        {{.name = "fc", .kind = "linear", .implementation = "brgemm", .multiply_adds = 10}}, 0, 8);
    ASSERT_EQ(lines.size(), 4U);
    EXPECT_EQ(lines[1], "    0.000     0.000   0.0 %            linear");
}

}  // namespace
}  // namespace trainer
