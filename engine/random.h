// Random numbers that are pure functions of a key, so that they are the same on any number of
// threads, workers and after a resume.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>

namespace trainer {

/// A stream of random numbers that its key alone decides (a SplitMix64 sequence started at a hash
/// of the key). Cheap to make: make one wherever a key is at hand.
class Random {
  public:
    /// The key is e.g. {seed, purpose, epoch, sample}.
    Random(std::initializer_list<uint64_t> key) {
        for (uint64_t part : key)
            state_ = mix(state_ + 0x9e3779b97f4a7c15ULL) ^ mix(part + 1);
    }

    /// 64 random bits.
    uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15ULL); }

    /// Uniform in [0, n); n > 0.
    uint64_t below(uint64_t n) {
        return static_cast<uint64_t>((static_cast<Wide>(next()) * n) >> 64);
    }

    /// Uniform in [0, 1), in steps of 2^-53.
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

    /// Standard normal (Box-Muller, one draw a call).
    double normal() {
        const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
        return radius * std::cos(2.0 * std::numbers::pi * uniform());
    }

  private:
    __extension__ using Wide = unsigned __int128;

    static uint64_t mix(uint64_t z) {
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
