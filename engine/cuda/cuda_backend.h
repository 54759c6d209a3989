// The backend on CUDA, as the plugin makes it.
#pragma once

#include <memory>

#include "engine/cuda/cuda_engine.h"

namespace trainer::cuda {

/// Throws UsageError where the device has not the precision, Error where CUDA fails.
std::unique_ptr<Backend> make_backend(const CudaOptions& options);

/// "CUDA 13.0, cuDNN 9.19": of the libraries at run time.
std::string library_versions();

}  // namespace trainer::cuda
