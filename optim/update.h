// The arithmetic of the base optimizers for one element, the same on every device.
//
// Fused multiply-adds are spelled out, so that a processor and a GPU, and every compiler, give the
// same bits. No dependence between elements: any range of a slab may be updated on its own.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/host_device.h"

namespace trainer {

/// Momentum SGD (PyTorch's, without dampening): v <- mu v + g + lambda w; w <- w - eta v.
template <typename T>
struct MomentumUpdate {
    T lr, momentum, decay;

    TRAINER_HOST_DEVICE void operator()(T& weight, T& velocity, T gradient) const {
        velocity = std::fma(momentum, velocity, std::fma(decay, weight, gradient));
        weight = std::fma(-lr, velocity, weight);
    }
};

/// Nesterov's momentum as PyTorch has it: d = g + lambda w; v <- mu v + d; w <- w - eta (d + mu v).
template <typename T>
struct NesterovUpdate {
    T lr, momentum, decay;

    TRAINER_HOST_DEVICE void operator()(T& weight, T& velocity, T gradient) const {
        const T decayed = std::fma(decay, weight, gradient);
        velocity = std::fma(momentum, velocity, decayed);
        weight = std::fma(-lr, std::fma(momentum, velocity, decayed), weight);
    }
};

/// LARS, arXiv 1708.03888, algorithm 1: v <- mu v + rate (g + lambda w); w <- w - v, with `rate`
/// the global learning rate times the tensor's own.
template <typename T>
struct LarsUpdate {
    T rate, momentum, decay;

    TRAINER_HOST_DEVICE void operator()(T& weight, T& velocity, T gradient) const {
        velocity = std::fma(momentum, velocity, rate * std::fma(decay, weight, gradient));
        weight -= velocity;
    }
};

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
