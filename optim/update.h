// Loops of the base optimizers over slabs on the processor; the arithmetic of one element is in
// engine/elementwise.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/elementwise.h"

namespace trainer {

/// Runs `update` over `count` elements on the calling thread.
template <typename T, typename Update>
void update_elements(const Update& update, T* __restrict weights, T* __restrict velocity,
                     const T* __restrict gradients, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        update(weights[i], velocity[i], gradients[i]);
}

/// Sum of the squares of `count` elements in double, in a fixed order.
template <typename T>
double sum_of_squares(const T* values, int64_t count) {
    // Independent partial sums, so that the loop is not bound by the latency of one addition.
    constexpr int64_t width = 16;
    double sums[width] = {};
    int64_t i = 0;
    for (; i + width <= count; i += width)
        for (int64_t j = 0; j < width; ++j) {
            const double value = static_cast<double>(values[i + j]);
            sums[j] = std::fma(value, value, sums[j]);
        }
    for (; i < count; ++i) {
        const double value = static_cast<double>(values[i]);
        sums[i % width] = std::fma(value, value, sums[i % width]);
    }
    double total = 0;
    for (double sum : sums)
        total += sum;
    return total;
}

}  // namespace trainer
