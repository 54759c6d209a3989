// The worked examples of optim/README.md, taken from the page itself when this is built.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "optim/codec.h"
#include "optim/local_rule.h"

namespace trainer {
namespace {

#include "optim_readme_examples.inc"

TEST(Example, ALocalRule) {
    TensorTable table;
    table.add("w", {2}, true, {});
    const LocalSign rule({.weight_decay = 0.5}, table);
    const ParameterArena arena(table, DType::f32, {"weights", "gradients", "incoming"});
    const auto weights = arena.slab<float>(slab::weights),
               gradients = arena.slab<float>(slab::gradients);
    const auto incoming = arena.slab<float>(slab::incoming);
    weights[0] = 1;
    weights[1] = 2;
    gradients[0] = 0.001F;
    gradients[1] = -7;
    rule.step(arena, {0, 2}, false, 0.1, 0);
    EXPECT_NEAR(weights[0], 1 - 0.1 * (1 + 0.5 * 1), 1e-6);
    EXPECT_NEAR(weights[1], 2 - 0.1 * (-1 + 0.5 * 2), 1e-6);
    incoming[0] = incoming[1] = 4;
    rule.step(arena, {0, 2}, true, 0.1, 0);
    EXPECT_NEAR(weights[0], 4 - 0.1 * (1 + 0.5 * 4), 1e-6);
}

TEST(Example, ACodecWithErrorFeedback) {
    TensorTable table;
    table.add("a", {3}, true, {});
    table.add("b", {10}, true, {});
    const SignCodec codec;
    std::vector<float> residual(13, 0), gradients(13), decoded(13, 0);
    for (size_t i = 0; i < 13; ++i)
        gradients[i] = (i % 2 == 0 ? 1.0F : -1.0F) * static_cast<float>(i + 1);
    ErrorFeedback feedback(codec, table, residual);
    const auto segments = segments_of(codec, table, {0, 13});
    std::vector<std::byte> codes(encoded_bytes(codec, segments));
    EXPECT_EQ(codes.size(), 4U + 1 + 4 + 2);
    feedback.begin(gradients, {0, 13});
    feedback.encode(segments, gradients, codes.data());
    add_decoded_range(codec, segments, codes, decoded, 0);
    EXPECT_EQ(decoded[0], 2);  // mean of 1, 2, 3
    EXPECT_EQ(decoded[1], -2);
    EXPECT_EQ(decoded[12], 8.5F);  // mean of 4 to 13
    for (size_t i = 0; i < 13; ++i)
        EXPECT_NEAR(decoded[i] + residual[i], gradients[i], 1e-6);
}

}  // namespace
}  // namespace trainer
