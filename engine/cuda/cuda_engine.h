// The CUDA engine as the rest of the program sees it: a plugin, libengine_cuda.so, opened at run
// time, so that one program serves machines with and without GPUs.
//
// The plugin is looked for beside the executable, and in the environment variable
// TRAINER_CUDA_ENGINE (its path) before that. Once opened it stays so.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "engine/backend.h"

namespace trainer {

struct CudaOptions {
    int device = 0;  ///< index, as the driver counts
    Precision precision = Precision::fp32;
    /// Only algorithms that give the same bits each time.
    bool deterministic = true;
    /// fp32 products of 10-bit mantissas on tensor cores, several times as fast.
    bool tf32 = false;
    /// Records forward and backward as CUDA graphs after two steps, and replays them.
    bool graphs = true;
    /// So many, from `device` on, compute one batch together, each a part of it. More than one need
    /// NCCL, and record no graphs.
    int gpus = 1;
    /// How long one of several waits for the others (comm.timeout).
    std::chrono::milliseconds timeout{30000};
};

/// Why GPU `device` cannot compute here, and what to do, in one line: the driver, the device, the
/// plugin or one of its libraries, the GPU's compute capability. nullopt where it can. Opens the
/// plugin only where there is a driver and such a device.
std::optional<std::string> why_no_cuda(int device);

/// Whether this machine has a driver with at least one GPU.
bool has_cuda_device();

/// Why GPUs cannot work together here, and what to do, in one line; nullopt where they can.
/// REQUIRES: why_no_cuda() of some device is nullopt.
std::optional<std::string> why_no_nccl();

/// Zeroed memory of the host that GPUs copy from fast: what a step's images lie in best. No GPU but
/// `device` is opened for it.
/// REQUIRES: why_no_cuda(device) is nullopt. Throws Error where there is too little.
Memory allocate_for_cuda(size_t bytes, int device);

/// A backend with one lane on that GPU. Throws UsageError with why_no_cuda(), or where the GPU has
/// not the precision; Error where the GPU fails.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

}  // namespace trainer
