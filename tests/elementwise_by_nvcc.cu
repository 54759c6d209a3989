#include <cuda_runtime.h>

#include "tests/elementwise_bits.h"
#include "tests/elementwise_by_nvcc.h"

namespace bits = trainer::elementwise_bits;

namespace {

__global__ void bits_kernel(uint64_t count, uint32_t* out) {
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count)
        bits::make(i, out + i * bits::words);
}

}  // namespace

#define TRAINER_EXPORT __attribute__((visibility("default")))

TRAINER_EXPORT void trainer_bits_by_nvcc(uint64_t count, uint32_t* out) {
    for (uint64_t i = 0; i < count; ++i)
        bits::make(i, out + i * bits::words);
}

TRAINER_EXPORT int trainer_bits_by_gpu(uint64_t count, uint32_t* out) {
    const size_t bytes = count * bits::words * sizeof(uint32_t);
    uint32_t* device = nullptr;
    cudaError_t status = cudaMalloc(&device, bytes);
    if (status != cudaSuccess)
        return static_cast<int>(status);
    bits_kernel<<<static_cast<unsigned>((count + 255) / 256), 256>>>(count, device);
    status = cudaGetLastError();
    if (status == cudaSuccess)
        status = cudaMemcpy(out, device, bytes, cudaMemcpyDeviceToHost);
    const cudaError_t freed = cudaFree(device);
    return static_cast<int>(status != cudaSuccess ? status : freed);
}
