// A data set that needs no files: noise around one coarse pattern a class, which a model can learn.
#include <algorithm>

#include "data/formats.h"
#include "engine/error.h"
#include "engine/random.h"

namespace trainer {

namespace {

// A pattern is grid x grid blocks a channel, so that it survives a shifted crop.
constexpr int64_t grid = 4;
constexpr int pattern_height = 48;  // a block is 128 plus or minus at most this much
constexpr int noise_height = 64;    // and so is the noise of a pixel

// Keeps patterns and the noise of both splits apart in the key of a stream.
enum class Stream : uint64_t { pattern, train_noise, test_noise };

void check_options(const SyntheticOptions& options) {
    const auto at_least = [](const char* what, int64_t value, int64_t least) {
        if (value < least)
            throw UsageError(std::string("synthetic data: ") + what + " is " +
                             std::to_string(value) + ", at least " + std::to_string(least) +
                             " is needed");
    };
    at_least("train_count", options.train_count, 1);
    at_least("test_count", options.test_count, 1);
    at_least("classes", options.classes, 2);
    at_least("channels", options.channels, 1);
    at_least("height", options.height, 1);
    at_least("width", options.width, 1);
}

Random stream(const SyntheticOptions& options, Stream which, int64_t index) {
    return Random{options.seed, static_cast<uint64_t>(RandomPurpose::synthetic),
                  static_cast<uint64_t>(which), static_cast<uint64_t>(index)};
}

// Brightness of each block of each class, int16 [classes, channels, grid, grid].
std::vector<int16_t> draw_patterns(const SyntheticOptions& options) {
    std::vector<int16_t> patterns;
    for (int64_t label = 0; label < options.classes; ++label) {
        Random random = stream(options, Stream::pattern, label);
        for (int64_t block = 0; block < options.channels * grid * grid; ++block)
            patterns.push_back(
                static_cast<int16_t>(128 - pattern_height + random.below(2 * pattern_height + 1)));
    }
    return patterns;
}

// `pattern` [channels, grid, grid] and the noise of `random` to `image` [channels, height, width].
void draw_image(const SyntheticOptions& options, const int16_t* pattern, Random random,
                uint8_t* image) {
    uint64_t bits = 0;
    int64_t drawn = 0;  // pixels; one draw of 64 bits serves eight
    for (int64_t channel = 0; channel < options.channels; ++channel)
        for (int64_t y = 0; y < options.height; ++y)
            for (int64_t x = 0; x < options.width; ++x, ++drawn, bits >>= 8) {
                if (drawn % 8 == 0)
                    bits = random.next();
                const int block = pattern[(channel * grid + y * grid / options.height) * grid +
                                          x * grid / options.width];
                const int noise = static_cast<int>(bits & 0xff) / 2 - noise_height;
                *image++ = static_cast<uint8_t>(std::clamp(block + noise, 0, 255));
            }
}

}  // namespace

Dataset make_synthetic(const DatasetOptions& options) {
    const SyntheticOptions& sizes = options.synthetic;
    check_options(sizes);
    const bool train = options.split == Split::train;
    Dataset dataset{.name = options.dataset,
                    .description = {},
                    .count = train ? sizes.train_count : sizes.test_count,
                    .channels = sizes.channels,
                    .height = sizes.height,
                    .width = sizes.width,
                    .pixels = {},
                    .labels = {},
                    .classes = sizes.classes,
                    .class_names = {}};
    allocate_images(dataset);
    const std::vector<int16_t> patterns = draw_patterns(sizes);
    for (int64_t i = 0; i < dataset.count; ++i) {
        const int64_t label = i % sizes.classes;
        dataset.labels.push_back(static_cast<int32_t>(label));
        draw_image(sizes, patterns.data() + label * sizes.channels * grid * grid,
                   stream(sizes, train ? Stream::train_noise : Stream::test_noise, i),
                   dataset.image(i));
    }
    dataset.description =
        describe(dataset, options.split, "seed " + std::to_string(sizes.seed) + ", made up");
    return dataset;
}

}  // namespace trainer
