// 3x3 convolutions of stride 1 and padding 1 by Winograd's F(4x4, 3x3) (Lavin and Gray, "Fast
// Algorithms for Convolutional Neural Networks", 2016): 36 products for the 16 outputs of a tile,
// where the direct way has 144. All arithmetic is fp32, whatever the type of the activations; the
// output's rounding errors are 5e-7 to 3e-6 of its norm, more with more channels.
//
// Every tile of source and target is [4 + 2][4 + 2] and [4][4] pixels; a group of tiles goes
// through its transforms and products while it is in the cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cpu/simd.h"

namespace trainer::cpu::winograd {

/// Whether this build has the vectors for it (AVX-512); nothing below may be called where not.
bool available();

/// Of one lane's samples. Channels are whole blocks of 16, of a source
/// [samples, inputs / 16, height, width, 16] and a target [samples, outputs / 16, height, width,
/// 16].
struct Geometry {
    int64_t samples = 0, inputs = 0, outputs = 0, height = 0, width = 0;

    int64_t tiles() const { return samples * ((height + 3) / 4) * ((width + 3) / 4); }
};

/// Where the weights of blocks of channels lie, in floats: the taps of input block i and output
/// block o are at `data + i * input_stride + o * output_stride`, [3, 3, 16 in, 16 out].
struct Weights {
    const float* data = nullptr;
    int64_t input_stride = 0, output_stride = 0;
    bool rotated = false;  ///< the taps lie in reverse order, as backward data needs them
};

/// What convolve and weight_gradient need as scratch, in bytes.
size_t convolve_scratch(const Geometry& geometry);
size_t weight_gradient_scratch(const Geometry& geometry);

/// target = source * weights + bias; `bias` [outputs] may be null. T is float or Bf16.
template <typename T>
void convolve(const Geometry& geometry, const T* source, const Weights& weights, const float* bias,
              T* target, std::byte* scratch);

/// gradient [outputs / 16, inputs / 16, 3, 3, 16 in, 16 out] of the weights, from the source and
/// the target's gradient; `bias_gradient` [outputs] may be null. Both are overwritten.
template <typename T>
void weight_gradient(const Geometry& geometry, const T* source, const T* target_gradient,
                     float* gradient, float* bias_gradient, std::byte* scratch);

extern template void convolve(const Geometry&, const float*, const Weights&, const float*, float*,
                              std::byte*);
extern template void convolve(const Geometry&, const Bf16*, const Weights&, const float*, Bf16*,
                              std::byte*);
extern template void weight_gradient(const Geometry&, const float*, const float*, float*, float*,
                                     std::byte*);
extern template void weight_gradient(const Geometry&, const Bf16*, const Bf16*, float*, float*,
                                     std::byte*);

}  // namespace trainer::cpu::winograd
