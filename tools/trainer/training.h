// Training and evaluation as the command line starts them.
#pragma once

#include <optional>
#include <string>

#include "engine/dtype.h"
#include "tools/trainer/config.h"

namespace trainer {

/// Trains as the config says, or goes on where an earlier run stopped; returns the exit code: 0
/// done, 75 stopped by a signal with a checkpoint written. Throws Error and UsageError.
int run_training(const Config& config);

/// Evaluates the checkpoint (a directory, or a link to one) on the test images, exactly as
/// training did, prints loss and accuracy and returns 0. Throws Error and UsageError.
int run_evaluation(const Config& config, const std::string& checkpoint);

}  // namespace trainer
