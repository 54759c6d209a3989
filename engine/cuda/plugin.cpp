// The plugin's one symbol.
#include "engine/cuda/plugin.h"

#include <cuda_runtime_api.h>

#include <cstdio>

#include "engine/cuda/context.h"
#include "engine/cuda/cuda_backend.h"

namespace trainer::cuda {
namespace {

constexpr int capabilities[] = {TRAINER_CUDA_CAPABILITIES, 0};

int device_count(char* message, size_t size) {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess)
        return count;
    std::snprintf(message, size, "%s", cudaGetErrorString(status));
    static_cast<void>(cudaGetLastError());
    return 0;
}

bool has_nccl(char* message, size_t size) {
    const std::optional<std::string> why = why_no_nccl();
    std::snprintf(message, size, "%s", why.value_or("").c_str());
    return !why;
}

Memory allocate_pinned(size_t bytes, int device) {
    TRAINER_CUDA(cudaSetDevice(device));  // else GPU 0 would be opened, too
    return Context::allocate_pinned(bytes);
}

Backend* make(const CudaOptions& options) {
    return make_backend(options).release();
}

constexpr PluginTable table{.version = plugin_version,
                            .layout = plugin_layout,
                            .capabilities = capabilities,
                            .device_count = device_count,
                            .has_nccl = has_nccl,
                            .allocate_pinned = allocate_pinned,
                            .make = make};

}  // namespace
}  // namespace trainer::cuda

extern "C" __attribute__((visibility("default"))) const trainer::cuda::PluginTable*
trainer_cuda_plugin();

const trainer::cuda::PluginTable* trainer_cuda_plugin() {
    return &trainer::cuda::table;
}
