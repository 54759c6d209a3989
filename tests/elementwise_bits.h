// Every functor of engine/elementwise.h on drawn numbers, as bits: what two compilers and a GPU
// have to agree on.
#pragma once

#include <cstdint>
#include <cstring>

#include "engine/elementwise.h"

namespace trainer::elementwise_bits {

/// Words that one case makes.
inline constexpr int words = 15;

/// A float from random bits: mostly of training's sizes, some tiny, huge, infinite or NaN.
TRAINER_HOST_DEVICE inline float drawn(uint64_t state, uint64_t index) {
    const uint64_t number = Random::number_at(state, index);
    if (number % 16 == 0)
        return float_of_bits(static_cast<uint32_t>(number >> 32));
    return static_cast<float>(Random::uniform_of(number) - 0.5);
}

/// Case `index` into out[words]. A NaN counts as one, whichever.
TRAINER_HOST_DEVICE inline void make(uint64_t index, uint32_t* out) {
    const DropoutMask stream = DropoutMask::of(1, 2, 3, 4, 0.5);
    const float a = drawn(stream.state, 4 * index), b = drawn(stream.state, 4 * index + 1),
                c = drawn(stream.state, 4 * index + 2), d = drawn(stream.state, 4 * index + 3);
    const auto put = [&out](float value) {
        *out++ = value != value ? 0x7fc00000U : bits_of(value);
    };
    const auto update = [&](const auto& functor) {
        float weight = a, velocity = b;
        functor(weight, velocity, c);
        put(weight);
        put(velocity);
    };
    update(MomentumUpdate<float>{0.1F, 0.9F, 1e-4F});
    update(NesterovUpdate<float>{0.1F, 0.9F, 1e-4F});
    update(LarsUpdate<float>{0.1F, 0.9F, 1e-4F});
    put(LocalSgdUpdate{0.1F, 1e-4F}(a, b));
    put(LocalDcUpdate{0.1F, 1e-4F, 0.04F}(a, b, c));
    put(LocalGluUpdate{0.1F, 1e-4F, 2.0F, 0.5F}(a, b, c));
    float velocity = 0;
    put(LocalMomentumUpdate{0.1F, 1e-4F, 0.9F}(a, b, c, velocity));
    put(velocity);
    const TwoBitCode code{0.05F};
    *out++ = code.encode(d);
    put(code.rest(d, code.encode(d)));
    *out++ = d != d ? 0x7fc0U : bf16_of(d);
    *out++ = stream.keeps(index) ? 1U : 0U;
}

}  // namespace trainer::elementwise_bits
