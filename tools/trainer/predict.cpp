#include "tools/trainer/predict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <numeric>

#include "engine/executor.h"
#include "tools/trainer/config.h"
#include "tools/trainer/setup.h"

namespace trainer {
namespace {

constexpr int64_t guesses = 5;

/// The middle of an image, of the form height : width.
Image middle(const Image& image, int64_t height, int64_t width) {
    Image cut;
    cut.height = std::min(image.height, std::max<int64_t>(1, image.width * height / width));
    cut.width = std::min(image.width, std::max<int64_t>(1, image.height * width / height));
    const int64_t top = (image.height - cut.height) / 2, left = (image.width - cut.width) / 2;
    for (int64_t y = top; y < top + cut.height; ++y) {
        const auto row = image.pixels.begin() + (y * image.width + left) * 3;
        cut.pixels.insert(cut.pixels.end(), row, row + cut.width * 3);
    }
    return cut;
}

/// Brightness in all channels (ITU-R BT.601).
void make_gray(Image& image) {
    for (size_t i = 0; i < image.pixels.size(); i += 3) {
        const double gray =
            0.299 * image.pixels[i] + 0.587 * image.pixels[i + 1] + 0.114 * image.pixels[i + 2];
        std::fill_n(image.pixels.begin() + static_cast<int64_t>(i), 3,
                    static_cast<uint8_t>(std::lround(gray)));
    }
}

/// Pixels of a black edge around images of that data set, at each side.
int64_t edge_of(const std::string& dataset) {
    return dataset == "mnist" || dataset == "fashion_mnist" ? 2 : 0;
}

/// How much of an image's middle the model was tested on, by length.
double share_of(const std::string& dataset) {
    return dataset == "imagenet" || dataset == "folder" ? 224.0 / 256 : 1;
}

std::vector<float> logits_of(LoadedModel& model, const std::vector<std::vector<uint8_t>>& images) {
    Config config;
    const std::unique_ptr<Backend> backend = make_backend(config, std::nullopt);
    const std::vector<std::string> slabs{std::string(slab::weights)};
    const auto allocate = [&](size_t bytes) {
        return backend->allocate_slabs(bytes, SlabHome::device);
    };
    ParameterArena parameters(model.network.parameters(), DType::f32, slabs, allocate);
    ParameterArena statistics(model.network.statistics(), DType::f32, slabs, allocate);
    std::ranges::copy(model.parameters.slab<float>(slab::weights),
                      parameters.slab<float>(slab::weights).begin());
    std::ranges::copy(model.statistics.slab<float>(slab::weights),
                      statistics.slab<float>(slab::weights).begin());
    Executor executor(model.network, *backend, parameters, statistics,
                      {.batch = 1, .training = false});
    const Shape& shape = model.card.input;
    const Normalizer normalizer(model.card.normalization, shape[0]);
    std::vector<float> input(static_cast<size_t>(element_count(shape))), logits;
    const int32_t label = 0;
    for (const std::vector<uint8_t>& image : images) {
        apply_transform({}, normalizer, image.data(), shape[0], shape[1], shape[2], input.data());
        executor.evaluate({.images = input.data(), .labels = &label, .batch = 1}, logits.empty());
        const std::vector<float> row = executor.logits();
        logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
}

}  // namespace

std::vector<uint8_t> fit_image(const Image& image, const ModelCard& card) {
    const int64_t channels = card.input[0], height = card.input[1], width = card.input[2];
    const int64_t edge = edge_of(card.dataset);
    const auto whole = [&](int64_t extent) {
        return std::lround(static_cast<double>(extent - 2 * edge) / share_of(card.dataset));
    };
    Image fitted =
        resize_image(middle(image, whole(height), whole(width)), whole(height), whole(width));
    if (edge > 0 || channels == 1)
        make_gray(fitted);
    const int64_t top = (fitted.height - (height - 2 * edge)) / 2 - edge;
    const int64_t left = (fitted.width - (width - 2 * edge)) / 2 - edge;
    std::vector<uint8_t> planes(static_cast<size_t>(channels * height * width));
    for (int64_t c = 0; c < channels; ++c)
        for (int64_t y = edge; y < height - edge; ++y)
            for (int64_t x = edge; x < width - edge; ++x)
                planes[static_cast<size_t>((c * height + y) * width + x)] =
                    fitted.pixels[static_cast<size_t>(((y + top) * fitted.width + x + left) * 3 +
                                                      std::min<int64_t>(c, 2))];
    return planes;
}

std::vector<std::vector<Guess>> likeliest(const std::vector<float>& logits, int64_t classes,
                                          int64_t count) {
    std::vector<std::vector<Guess>> result;
    std::vector<int64_t> order(static_cast<size_t>(classes));
    for (auto row = logits.begin(); row != logits.end(); row += classes) {
        const double largest = *std::max_element(row, row + classes);
        double sum = 0;
        for (int64_t c = 0; c < classes; ++c)
            sum += std::exp(row[c] - largest);
        std::iota(order.begin(), order.end(), int64_t{0});
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return row[a] > row[b]; });
        std::vector<Guess>& best = result.emplace_back();
        for (int64_t i = 0; i < std::min(count, classes); ++i) {
            const int64_t label = order[static_cast<size_t>(i)];
            best.push_back({label, std::exp(row[label] - largest) / sum});
        }
    }
    return result;
}

int run_prediction(const std::string& checkpoint, const std::vector<std::string>& files) {
    LoadedModel model = load_model(checkpoint);
    std::vector<std::vector<uint8_t>> images;
    for (const std::string& file : files)
        images.push_back(fit_image(read_image(file), model.card));
    const auto result = likeliest(logits_of(model, images), model.card.classes, guesses);
    for (size_t i = 0; i < files.size(); ++i) {
        std::cout << (i > 0 ? "\n" : "") << files[i] << "\n";
        for (const Guess& guess : result[i]) {
            char percent[32];
            std::snprintf(percent, sizeof percent, "%8.2f %%  ", 100 * guess.probability);
            std::cout << percent << model.card.class_name(guess.label) << "\n";
        }
    }
    return 0;
}

}  // namespace trainer
