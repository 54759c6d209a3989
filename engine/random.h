// Random numbers that are pure functions of a key, so that they are the same on any number of
// threads, workers and after a resume.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>

#include "engine/host_device.h"

namespace trainer {

/// A stream of random numbers that its key alone decides (a SplitMix64 sequence started at a hash
/// of the key). Cheap to make: make one wherever a key is at hand.
class Random {
  public:
    /// The key is e.g. {seed, purpose, epoch, sample}.
    Random(std::initializer_list<uint64_t> key) {
        for (uint64_t part : key)
            state_ = absorb(state_, part);
    }

    /// 64 random bits.
    uint64_t next() { return mix(state_ += increment); }

    /// Uniform in [0, n); n > 0.
    uint64_t below(uint64_t n) { return below_of(next(), n); }

    /// Uniform in [0, 1), in steps of 2^-53.
    double uniform() { return uniform_of(next()); }

    /// Standard normal (Box-Muller, one draw a call).
    double normal() {
        const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
        return radius * std::cos(2.0 * std::numbers::pi * uniform());
    }

    // The stream taken apart, for code that wants any number of it at once: the state after one
    // more part of a key, the number `index` of a stream, and what below() and uniform() make of a
    // number.
    TRAINER_HOST_DEVICE static uint64_t absorb(uint64_t state, uint64_t part) {
        return mix(state + increment) ^ mix(part + 1);
    }
    TRAINER_HOST_DEVICE static uint64_t number_at(uint64_t state, uint64_t index) {
        return mix(state + (index + 1) * increment);
    }
    TRAINER_HOST_DEVICE static uint64_t below_of(uint64_t number, uint64_t n) {
        return static_cast<uint64_t>((static_cast<Wide>(number) * n) >> 64);
    }
    TRAINER_HOST_DEVICE static double uniform_of(uint64_t number) {
        return static_cast<double>(number >> 11) * 0x1p-53;
    }

  private:
    __extension__ typedef unsigned __int128 Wide;  // nvcc takes no using there
    static constexpr uint64_t increment = 0x9e3779b97f4a7c15ULL;

    TRAINER_HOST_DEVICE static uint64_t mix(uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31);
    }

    uint64_t state_ = 0;
};

/// What a random stream is for: the second part of its key, so that no two uses share a stream.
enum class RandomPurpose : uint64_t {
    initialization = 1,
    permutation = 2,
    augmentation = 3,
    dropout = 4,
    codec = 5,
    synthetic = 6
};

}  // namespace trainer
