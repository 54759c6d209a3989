// Tests that need a GPU ask here whether there is one.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include "engine/cuda/cuda_engine.h"

namespace trainer {

/// Why tests on a GPU are skipped here; nullopt where GPU 0 can compute with the plugin of this
/// build (or that of TRAINER_CUDA_ENGINE).
inline std::optional<std::string> why_no_gpu() {
    setenv("TRAINER_CUDA_ENGINE", TRAINER_BINARY_DIR "/tools/trainer/libengine_cuda.so", 0);
    return why_no_cuda(0);
}

}  // namespace trainer

/// In the body of a test; only a macro can leave it.
#define TRAINER_NEEDS_GPU()                       \
    if (const auto why = ::trainer::why_no_gpu()) \
    GTEST_SKIP() << "needs a GPU that works: " << *why
