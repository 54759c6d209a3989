// Elementwise arithmetic of training, one functor each, the same on every device: the base
// optimizers' updates, the local rules', the 2-bit code, dropout's mask, bf16.
//
// Fused multiply-adds are spelled out, so that a processor and a GPU, and every compiler, give the
// same bits. No dependence between elements: any range of a slab may be worked on by itself.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "engine/host_device.h"
#include "engine/random.h"

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

/// Local rule sgd (optim/local_sgd.cpp): B - eta (g + lambda B).
struct LocalSgdUpdate {
    float lr, decay;

    TRAINER_HOST_DEVICE float operator()(float base, float gradient) const {
        return std::fma(-lr, std::fma(decay, base, gradient), base);
    }
};

/// Local rule dc (optim/local_dc.cpp): B - eta (g + lambda B + lambda_dc g g (B - w)).
struct LocalDcUpdate {
    float lr, decay, lambda;

    TRAINER_HOST_DEVICE float operator()(float base, float gradient, float weight) const {
        const float compensation = lambda * gradient * gradient * (base - weight);
        return std::fma(-lr, std::fma(decay, base, gradient) + compensation, base);
    }
};

/// Local rule glu (optim/local_glu.cpp): B - eta (alpha g + beta global + lambda B).
struct LocalGluUpdate {
    float lr, decay, alpha, beta;

    TRAINER_HOST_DEVICE float operator()(float base, float gradient, float global) const {
        const float direction = std::fma(alpha, gradient, std::fma(beta, global, decay * base));
        return std::fma(-lr, direction, base);
    }
};

/// Local rule momentum (optim/local_momentum.cpp): u <- mu u' + g + lambda B; B - eta u, with u'
/// the velocity before.
struct LocalMomentumUpdate {
    float lr, decay, momentum;

    TRAINER_HOST_DEVICE float operator()(float base, float gradient, float before,
                                         float& velocity) const {
        velocity = std::fma(momentum, before, std::fma(decay, base, gradient));
        return std::fma(-lr, velocity, base);
    }
};

/// A local rule's g^ (optim/local_rule.h): global <- (pulled - incoming) factor; pulled <-
/// incoming.
struct GlobalGradientUpdate {
    float factor;

    TRAINER_HOST_DEVICE void operator()(float& global, float& pulled, float incoming) const {
        global = (pulled - incoming) * factor;
        pulled = incoming;
    }
};

/// The 2-bit code (optim/codec.h) of one value: 1 for +threshold, 2 for -threshold, 0 for 0.
struct TwoBitCode {
    float threshold;  ///< above zero

    TRAINER_HOST_DEVICE uint32_t encode(float value) const {
        return static_cast<uint32_t>(value >= threshold) |
               static_cast<uint32_t>(value <= -threshold) << 1;
    }
    /// What is left of a value once its code has been sent.
    TRAINER_HOST_DEVICE float rest(float value, uint32_t code) const {
        return value - threshold * static_cast<float>(static_cast<int>(code & 1) -
                                                      static_cast<int>(code >> 1 & 1));
    }
};

/// A float's bits, and back.
TRAINER_HOST_DEVICE inline uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    return std::bit_cast<uint32_t>(value);
#endif
}
TRAINER_HOST_DEVICE inline float float_of_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    return std::bit_cast<float>(bits);
#endif
}

/// A float in its upper half, rounded to nearest, ties to even; a NaN stays one.
TRAINER_HOST_DEVICE inline uint16_t bf16_of(float value) {
    const uint32_t word = bits_of(value);
    const uint32_t rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    return static_cast<uint16_t>(value != value ? (word >> 16) | 0x40 : rounded);
}

TRAINER_HOST_DEVICE inline float float_of_bf16(uint16_t bits) {
    return float_of_bits(static_cast<uint32_t>(bits) << 16);
}

/// Dropout of one sample: element `index`, in C, H, W order, is kept where keeps(index). The same
/// numbers as Random{seed, dropout, step, sample, node} draws one after the other.
struct DropoutMask {
    uint64_t state;  ///< of that stream before its first number
    double drop;     ///< probability of a zero

    TRAINER_HOST_DEVICE static DropoutMask of(uint64_t seed, uint64_t step, uint64_t sample,
                                              uint64_t node, double drop) {
        uint64_t state = 0;
        const uint64_t key[] = {seed, static_cast<uint64_t>(RandomPurpose::dropout), step, sample,
                                node};
        for (const uint64_t part : key)
            state = Random::absorb(state, part);
        return {state, drop};
    }

    TRAINER_HOST_DEVICE bool keeps(uint64_t index) const {
        return Random::uniform_of(Random::number_at(state, index)) >= drop;
    }
};

}  // namespace trainer
