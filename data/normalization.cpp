#include "data/normalization.h"

#include <cmath>
#include <string>

#include "engine/error.h"

namespace trainer {

Normalization default_normalization(std::string_view dataset) {
    if (dataset == "cifar10")
        return {{0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}};
    if (dataset == "cifar100")
        return {{0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}};
    if (dataset == "mnist")
        return {{0.1307, 0.1307, 0.1307}, {0.3081, 0.3081, 0.3081}};
    if (dataset == "fashion_mnist")
        return {{0.2860, 0.2860, 0.2860}, {0.3530, 0.3530, 0.3530}};
    if (dataset == "imagenet" || dataset == "folder")
        return {{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
    if (dataset == "synthetic")
        return {{0.5, 0.5, 0.5}, {0.25, 0.25, 0.25}};
    throw UsageError("no normalisation is known for data set '" + std::string(dataset) +
                     "'; set data.mean and data.std");
}

Normalizer::Normalizer(const Normalization& normalization, int64_t channels) {
    const auto check_count = [&](const char* key, const std::vector<double>& values) {
        if (std::ssize(values) != channels)
            throw UsageError(std::string(key) + " has " + std::to_string(values.size()) +
                             " values, but images have " + std::to_string(channels) +
                             " channels; give one a channel");
    };
    check_count("data.mean", normalization.mean);
    check_count("data.std", normalization.std);
    for (size_t channel = 0; channel < normalization.mean.size(); ++channel) {
        const double mean = normalization.mean[channel], std = normalization.std[channel];
        if (!(std > 0) || !std::isfinite(std) || !std::isfinite(mean))
            throw UsageError("data.mean must be finite and data.std above 0; channel " +
                             std::to_string(channel) + " has mean " + std::to_string(mean) +
                             ", std " + std::to_string(std));
        std::array<float, 256>& table = tables_.emplace_back();
        for (size_t value = 0; value < table.size(); ++value)
            table[value] = static_cast<float>((static_cast<double>(value) / 255 - mean) / std);
        lines_.push_back({static_cast<float>(1 / (255 * std)), static_cast<float>(-mean / std)});
    }
}

}  // namespace trainer
