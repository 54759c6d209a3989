// Every call of NVIDIA's libraries is checked: what fails throws Error with the text of the call.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

namespace trainer::cuda {

/// Throws Error where a call failed: "CUDA: cudaFree(p) failed at file:line: invalid argument".
void check_call(cudaError_t status, const char* call, const char* file, int line);
void check_call(cudnnStatus_t status, const char* call, const char* file, int line);
void check_call(cublasStatus_t status, const char* call, const char* file, int line);

/// Throws Error where the kernel launched last, `what`, could not be. One that fails while it runs
/// is told by a later call that waits for it.
void check_launch(const char* what);

}  // namespace trainer::cuda

/// A macro, since only one has the call's text.
#define TRAINER_CUDA(call) ::trainer::cuda::check_call((call), #call, __FILE__, __LINE__)
