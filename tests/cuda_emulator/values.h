// Elements of matrices and tensors, in fp32 or bf16, as floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/elementwise.h"

namespace cuda_emulator {

inline std::vector<float> read_values(const void* from, bool bf16, size_t count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i)
        values[i] = bf16 ? trainer::float_of_bf16(static_cast<const uint16_t*>(from)[i])
                         : static_cast<const float*>(from)[i];
    return values;
}

inline void write_values(void* to, bool bf16, const std::vector<float>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
        if (bf16)
            static_cast<uint16_t*>(to)[i] = trainer::bf16_of(values[i]);
        else
            static_cast<float*>(to)[i] = values[i];
    }
}

}  // namespace cuda_emulator
