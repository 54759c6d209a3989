// What benchmarks measure with.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace trainer {

/// How long `work` takes.
template <typename Work>
double seconds(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Of an even number the upper one. REQUIRES: not empty.
inline double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
}

}  // namespace trainer
