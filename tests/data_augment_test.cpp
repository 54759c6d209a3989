// Augmentation and normalisation against expectations made by hand, and the epoch's order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "data/augment.h"
#include "data/permutation.h"
#include "engine/error.h"
#include "engine/random.h"
#include "tests/error_of.h"

namespace trainer {
namespace {

// A normalisation that is easy to read: pixel v becomes v - 100.
const Normalization minus_100{{100.0 / 255}, {1.0 / 255}};
constexpr float black = -100;

// 3 rows of 4 pixels: 11 12 13 14 / 21 22 23 24 / 31 32 33 34.
std::vector<uint8_t> small_image() {
    return {11, 12, 13, 14, 21, 22, 23, 24, 31, 32, 33, 34};
}

std::vector<float> apply(const Transform& transform) {
    std::vector<float> out(12, 1e9F);
    apply_transform(transform, Normalizer(minus_100, 1), small_image().data(), 1, 3, 4, out.data());
    for (float& value : out)  // 1.0 / 255 is not exact
        value = std::round(value * 1000) / 1000;
    return out;
}

// What a pixel of value v becomes, written as v; 0 is black.
std::vector<float> shown(std::vector<float> values) {
    for (float& value : values)
        value += black;
    return values;
}

TEST(Transform, NoneOnlyNormalises) {
    EXPECT_EQ(apply({}), shown({11, 12, 13, 14, 21, 22, 23, 24, 31, 32, 33, 34}));
}

TEST(Transform, ShiftsShowBlackPadding) {
    EXPECT_EQ(apply({.shift_y = 1, .shift_x = 2}), shown({23, 24, 0, 0, 33, 34, 0, 0, 0, 0, 0, 0}));
    EXPECT_EQ(apply({.shift_y = -1, .shift_x = -1}),
              shown({0, 0, 0, 0, 0, 11, 12, 13, 0, 21, 22, 23}));
    EXPECT_EQ(apply({.shift_y = 0, .shift_x = 4}), shown(std::vector<float>(12, 0)));
    EXPECT_EQ(apply({.shift_y = -3, .shift_x = 0}), shown(std::vector<float>(12, 0)));
}

TEST(Transform, FlipMirrorsTheShiftedWindow) {
    EXPECT_EQ(apply({.flip = true}), shown({14, 13, 12, 11, 24, 23, 22, 21, 34, 33, 32, 31}));
    EXPECT_EQ(apply({.shift_y = 1, .shift_x = 1, .flip = true}),
              shown({0, 24, 23, 22, 0, 34, 33, 32, 0, 0, 0, 0}));
    EXPECT_EQ(apply({.shift_y = 0, .shift_x = -3, .flip = true}),
              shown({11, 0, 0, 0, 21, 0, 0, 0, 31, 0, 0, 0}));
}

TEST(Transform, CutoutIsTheMeanNotBlack) {
    EXPECT_EQ(apply({.shift_y = 1,
                     .flip = true,
                     .cut_top = 0,
                     .cut_bottom = 2,
                     .cut_left = 1,
                     .cut_right = 3}),
              shown({24, 100, 100, 21, 34, 100, 100, 31, 0, 0, 0, 0}));
}

TEST(Transform, EachChannelHasItsTable) {
    const Normalization two{{0.5, 0.25}, {0.5, 0.125}};
    const std::vector<uint8_t> image{0, 255, 51, 102};
    std::vector<float> out(4);
    apply_transform({}, Normalizer(two, 2), image.data(), 2, 1, 2, out.data());
    EXPECT_FLOAT_EQ(out[0], -1);
    EXPECT_FLOAT_EQ(out[1], 1);
    EXPECT_FLOAT_EQ(out[2], (0.2 - 0.25) / 0.125);
    EXPECT_FLOAT_EQ(out[3], (0.4 - 0.25) / 0.125);
}

TEST(DrawTransform, FollowsTheDocumentedOrder) {
    const CropOptions options{.pad_crop = 4, .flip = true, .cutout = 5};
    for (uint64_t sample = 0; sample < 200; ++sample) {
        Random random{9, static_cast<uint64_t>(RandomPurpose::augmentation), 3, sample};
        Transform expected;
        expected.shift_y = static_cast<int64_t>(random.below(9)) - 4;
        expected.shift_x = static_cast<int64_t>(random.below(9)) - 4;
        expected.flip = random.below(2) == 1;
        const auto row = static_cast<int64_t>(random.below(32));
        const auto column = static_cast<int64_t>(random.below(20));
        expected.cut_top = std::max<int64_t>(row - 2, 0);
        expected.cut_bottom = std::min<int64_t>(row + 3, 32);
        expected.cut_left = std::max<int64_t>(column - 2, 0);
        expected.cut_right = std::min<int64_t>(column + 3, 20);
        const Transform drawn = Transform::draw(options, 32, 20, 9, 3, sample);
        EXPECT_EQ(drawn, expected);

        // Switching one off leaves the others as they were.
        const Transform no_crop = Transform::draw({0, true, 5}, 32, 20, 9, 3, sample);
        EXPECT_EQ(no_crop.shift_y, 0);
        EXPECT_EQ(no_crop.shift_x, 0);
        EXPECT_EQ(no_crop.flip, drawn.flip);
        EXPECT_EQ(no_crop.cut_left, drawn.cut_left);
        EXPECT_EQ(Transform::draw({0, false, 0}, 32, 20, 9, 3, sample), Transform{});
    }
}

TEST(DrawTransform, DrawsAreUniform) {
    const CropOptions options{.pad_crop = 4, .flip = true, .cutout = 8};
    std::vector<int> rows(9), columns(9);
    int flips = 0;
    constexpr uint64_t samples = 9000;
    std::set<int64_t> tops;
    for (uint64_t i = 0; i < samples; ++i) {
        const Transform drawn = Transform::draw(options, 32, 32, 1, i % 3, i / 3);
        ++rows.at(static_cast<size_t>(drawn.shift_y + 4));
        ++columns.at(static_cast<size_t>(drawn.shift_x + 4));
        flips += drawn.flip;
        tops.insert(drawn.cut_top);
        EXPECT_GE(drawn.cut_bottom - drawn.cut_top, 4);
        EXPECT_LE(drawn.cut_bottom - drawn.cut_top, 8);
    }
    for (int count : rows)
        EXPECT_NEAR(count, 1000, 5 * 30);
    for (int count : columns)
        EXPECT_NEAR(count, 1000, 5 * 30);
    EXPECT_NEAR(flips, samples / 2, 5 * 47);
    EXPECT_EQ(tops.size(), 28U);  // 0 to 27
}

TEST(Augmentation, BadOptionsAreUsageErrors) {
    EXPECT_EQ(error_of<UsageError>([] { check_crops({.pad_crop = 33}, 32, 40); }),
              "data.augment.pad_crop is 33; for images of 32x40 it is 0 to 32");
    EXPECT_EQ(error_of<UsageError>([] { check_crops({.pad_crop = -1}, 32, 40); }),
              "data.augment.pad_crop is -1; for images of 32x40 it is 0 to 32");
    EXPECT_EQ(error_of<UsageError>([] { check_crops({.cutout = -2}, 32, 32); }),
              "data.augment.cutout is -2; it is the side of a square in pixels, 0 for none");
    check_crops({.pad_crop = 32, .flip = true, .cutout = 100}, 32, 32);
}

TEST(Normalization, DefaultsAreTheDesigns) {
    const Normalization cifar10 = default_normalization("cifar10");
    EXPECT_EQ(cifar10.mean, (std::vector<double>{0.4914, 0.4822, 0.4465}));
    EXPECT_EQ(cifar10.std, (std::vector<double>{0.2470, 0.2435, 0.2616}));
    EXPECT_EQ(default_normalization("cifar100").mean.at(2), 0.4409);
    EXPECT_EQ(default_normalization("mnist").std, std::vector<double>(3, 0.3081));
    EXPECT_EQ(default_normalization("fashion_mnist").mean, std::vector<double>(3, 0.2860));
    EXPECT_EQ(default_normalization("imagenet").mean.at(0), 0.485);
    EXPECT_EQ(error_of<UsageError>([] { default_normalization("tiny"); }),
              "no normalisation is known for data set 'tiny'; set data.mean and data.std");
}

TEST(Normalization, BadValuesAreUsageErrors) {
    EXPECT_EQ(error_of<UsageError>([] {
                  Normalizer({{0.5, 0.5}, {1, 1, 1}}, 3);
              }),
              "data.mean has 2 values, but images have 3 channels; give one a channel");
    EXPECT_EQ(error_of<UsageError>([] {
                  Normalizer({{0.5, 0.5, 0.5}, {1}}, 3);
              }),
              "data.std has 1 values, but images have 3 channels; give one a channel");
    EXPECT_EQ(error_of<UsageError>([] {
                  Normalizer({{0.5, 0.5}, {1, 0}}, 2);
              }),
              "data.mean must be finite and data.std above 0; channel 1 has mean 0.500000, std "
              "0.000000");
    EXPECT_NE(error_of<UsageError>([] { Normalizer({{NAN}, {1}}, 1); }), "no error");
}

std::vector<int32_t> order_of(int64_t count, bool shuffle, uint64_t seed, int64_t epoch) {
    std::vector<int32_t> order;
    epoch_order(count, shuffle, seed, epoch, order);
    return order;
}

TEST(EpochOrder, IsAPermutation) {
    for (int64_t count : {0, 1, 2, 7, 50000}) {
        std::vector<int32_t> identity(static_cast<size_t>(count));
        std::iota(identity.begin(), identity.end(), 0);
        EXPECT_EQ(order_of(count, false, 1, 4), identity);
        std::vector<int32_t> shuffled = order_of(count, true, 1, 4);
        EXPECT_EQ(shuffled == identity, count < 2) << count;
        std::sort(shuffled.begin(), shuffled.end());
        EXPECT_EQ(shuffled, identity);
    }
}

TEST(EpochOrder, IsAFunctionOfSeedAndEpoch) {
    EXPECT_EQ(order_of(100, true, 1, 4), order_of(100, true, 1, 4));
    EXPECT_NE(order_of(100, true, 1, 4), order_of(100, true, 1, 5));
    EXPECT_NE(order_of(100, true, 1, 4), order_of(100, true, 2, 4));
}

TEST(EpochOrder, IsUniform) {
    // Each of the 24 orders of 4 about 1000 times in 24000.
    std::map<std::vector<int32_t>, int> counts;
    for (int64_t epoch = 0; epoch < 24000; ++epoch)
        ++counts[order_of(4, true, 3, epoch)];
    EXPECT_EQ(counts.size(), 24U);
    for (const auto& [order, count] : counts)
        EXPECT_NEAR(count, 1000, 5 * 32);
}

}  // namespace
}  // namespace trainer
