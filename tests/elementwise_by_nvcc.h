// tests/elementwise_bits.h as nvcc compiles it, in a library of its own, so that the linker cannot
// take another compiler's code for it.
#pragma once

#include <cstdint>

extern "C" {
/// Cases [0, count) by nvcc's host pass, into out[count * words].
void trainer_bits_by_nvcc(uint64_t count, uint32_t* out);
/// The same by GPU 0; returns CUDA's error, 0 for none.
int trainer_bits_by_gpu(uint64_t count, uint32_t* out);
}
