// Golden values: what tests/golden/golden.py draws, drawn again, and its files read.
//
// A vector is held as its norm and its dot products with vectors of +-1: for such a p and any d,
// E (p.d)^2 = |d|^2, so that the differences of the products estimate the norm of a difference.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/arena.h"
#include "engine/random.h"

namespace trainer::golden {

inline constexpr uint64_t seed = 2024;
inline constexpr size_t projections = 16;
enum Key : uint64_t { fill = 101, project = 102 };  // second parts of keys

/// 64-bit FNV-1a.
inline uint64_t name_key(std::string_view name) {
    uint64_t value = 0xcbf29ce484222325ULL;
    for (const char c : name)
        value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    return value;
}

/// A tensor's first values, from its name and shape alone.
inline float draw(const TensorInfo& tensor, Random& random) {
    const Shape& shape = tensor.shape;
    if (shape.size() == 4)
        return static_cast<float>(
            random.normal() * std::sqrt(2.0 / static_cast<double>(shape[0] * shape[2] * shape[3])));
    if (shape.size() == 2)
        return static_cast<float>((2 * random.uniform() - 1) /
                                  std::sqrt(static_cast<double>(shape[1])));
    const double scale = tensor.name.ends_with("weight") ? 0.1 : 0.5;
    return static_cast<float>(0.5 + scale * random.normal());
}

/// Fills the weights of an arena of element type T.
template <typename T>
void fill_weights(const ParameterArena& arena) {
    for (const TensorInfo& tensor : arena.table().tensors()) {
        Random random{seed, fill, name_key(tensor.name)};
        for (T& value : arena.tensor<T>(slab::weights, tensor))
            value = draw(tensor, random);
    }
}

/// One batch: images [count, 3, size, size] and labels [count].
struct Batch {
    std::vector<float> images;
    std::vector<int32_t> labels;
};

inline Batch make_batch(uint64_t index, int64_t count, int64_t size, int64_t classes) {
    constexpr auto synthetic = static_cast<uint64_t>(RandomPurpose::synthetic);
    Batch batch{std::vector<float>(static_cast<size_t>(count * 3 * size * size)),
                std::vector<int32_t>(static_cast<size_t>(count))};
    Random pixels{seed, synthetic, index, 0};
    for (float& value : batch.images)
        value = static_cast<float>(pixels.normal());
    Random classes_drawn{seed, synthetic, index, 1};
    for (int32_t& label : batch.labels)
        label = static_cast<int32_t>(classes_drawn.below(static_cast<uint64_t>(classes)));
    return batch;
}

/// What a file holds of one vector.
struct Summary {
    double norm = 0;
    std::array<double, projections> products{};
};

template <typename T>
Summary summarize(std::string_view name, std::span<const T> values) {
    Random random{seed, project, name_key(name)};
    Summary result;
    double squares = 0;
    for (const T element : values) {
        const auto value = static_cast<double>(element);
        const uint64_t bits = random.next();
        squares += value * value;
        for (size_t p = 0; p < projections; ++p)
            result.products[p] += (bits >> p & 1) != 0 ? value : -value;
    }
    result.norm = std::sqrt(squares);
    return result;
}

/// An estimate of |a - b|^2.
inline double squared_distance(const Summary& a, const Summary& b) {
    double sum = 0;
    for (size_t p = 0; p < projections; ++p)
        sum += (a.products[p] - b.products[p]) * (a.products[p] - b.products[p]);
    return sum / projections;
}

/// A golden file: kind -> name -> the numbers of its line.
using File = std::map<std::string, std::map<std::string, std::vector<double>>>;

inline File read(const std::string& name) {
    const std::string path = std::string(TRAINER_SOURCE_DIR) + "/tests/golden/" + name;
    std::ifstream in(path);
    if (!in)
        throw std::runtime_error("cannot read " + path);
    File file;
    for (std::string line; std::getline(in, line);) {
        if (line.starts_with("#"))
            continue;
        std::istringstream words(line);
        std::string kind, tensor;
        words >> kind >> tensor;
        std::vector<double>& values = file[kind][tensor];
        for (double value = 0; words >> value;)
            values.push_back(value);
        if (values.empty() || !words.eof())
            throw std::runtime_error(path + ": a line that is not numbers: " + line);
    }
    return file;
}

/// A line of kind "weights", "gradients" or "statistics".
inline Summary summary_of(const std::vector<double>& numbers) {
    if (numbers.size() != projections + 1)
        throw std::runtime_error("a golden summary has a norm and its products");
    Summary result{.norm = numbers[0], .products = {}};
    std::copy(numbers.begin() + 1, numbers.end(), result.products.begin());
    return result;
}

/// How far a tensor is from its golden one.
struct Distance {
    std::string tensor;
    double squared = 0;       ///< estimate of |difference|^2
    double squared_norm = 0;  ///< of the golden tensor
};

/// Compares each tensor of a slab with its line in `lines`. REQUIRES: the same names on both sides.
template <typename T>
std::vector<Distance> distances(const ParameterArena& arena, std::string_view slab_name,
                                const std::map<std::string, std::vector<double>>& lines) {
    if (lines.size() != arena.table().tensors().size())
        throw std::runtime_error("the golden file has another number of tensors");
    std::vector<Distance> result;
    for (const TensorInfo& tensor : arena.table().tensors()) {
        const Summary expected = summary_of(lines.at(tensor.name));
        const std::span<const T> values = arena.tensor<T>(slab_name, tensor);
        result.push_back({tensor.name, squared_distance(summarize(tensor.name, values), expected),
                          expected.norm * expected.norm});
    }
    return result;
}

/// Relative distance of the vector that all of them make up.
inline double relative(const std::vector<Distance>& tensors) {
    double squared = 0, squared_norm = 0;
    for (const Distance& tensor : tensors) {
        squared += tensor.squared;
        squared_norm += tensor.squared_norm;
    }
    return std::sqrt(squared / squared_norm);
}

/// The largest relative distance of one tensor, its norm taken for no less than `floor`; a NaN is
/// an infinite one.
inline std::pair<double, std::string> worst(const std::vector<Distance>& tensors,
                                            double floor = 0) {
    std::pair<double, std::string> result;
    for (const Distance& tensor : tensors) {
        double distance =
            std::sqrt(tensor.squared) / std::max(std::sqrt(tensor.squared_norm), floor);
        if (std::isnan(distance))
            distance = std::numeric_limits<double>::infinity();
        result = std::max(result, {distance, tensor.tensor});
    }
    return result;
}

}  // namespace trainer::golden
