#include "tools/trainer/predict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <numeric>

#include "data/photo_transform.h"
#include "engine/executor.h"
#include "engine/file.h"
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

std::vector<float> logits_of(LoadedModel& model, const std::vector<std::vector<float>>& inputs) {
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
    std::vector<float> logits;
    const int32_t label = 0;
    for (const std::vector<float>& input : inputs) {
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
    const int64_t inner_height = height - 2 * edge, inner_width = width - 2 * edge;
    const Image cut = middle(image, inner_height, inner_width);
    ResampleAxis rows, columns;
    rows.plan(cut.height, inner_height, 0, inner_height);
    columns.plan(cut.width, inner_width, 0, inner_width);
    Image fitted;
    Resampler().run(cut, rows, columns, fitted);
    if (edge > 0 || channels == 1)
        make_gray(fitted);
    std::vector<uint8_t> planes(static_cast<size_t>(channels * height * width));
    for (int64_t c = 0; c < channels; ++c)
        for (int64_t y = 0; y < inner_height; ++y)
            for (int64_t x = 0; x < inner_width; ++x)
                planes[static_cast<size_t>((c * height + y + edge) * width + x + edge)] =
                    fitted.pixels[static_cast<size_t>((y * inner_width + x) * 3 +
                                                      std::min<int64_t>(c, 2))];
    return planes;
}

std::vector<float> network_input(std::span<const std::byte> file, const ModelCard& card) {
    const Normalizer normalizer(card.normalization, card.input[0]);
    std::vector<float> input(static_cast<size_t>(element_count(card.input)));
    ImageDecoder decoder(card.upright);
    decoder.open(file);
    if (card.of_photos()) {
        PhotoTransformer transformer(card.input[1], card.resize);
        normalize_photo(transformer.evaluate(decoder), normalizer, input.data());
        return input;
    }
    Image image;
    decoder.decode({0, 0, decoder.height(), decoder.width()}, image);
    apply_transform({}, normalizer, fit_image(image, card).data(), card.input[0], card.input[1],
                    card.input[2], input.data());
    return input;
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
    std::vector<std::vector<float>> inputs;
    for (const std::string& name : files) {
        const File file = File::open_to_read(name);
        std::vector<std::byte> bytes(static_cast<size_t>(file.size()));
        file.read_at(0, bytes.data(), bytes.size());
        try {
            inputs.push_back(network_input(bytes, model.card));
        } catch (const CorruptImage& error) {
            throw CorruptImage("'" + name + "': " + error.what());
        }
    }
    const auto result = likeliest(logits_of(model, inputs), model.card.classes, guesses);
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
