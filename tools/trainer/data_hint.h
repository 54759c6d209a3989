// What to do where training waits for its data.
#pragma once

#include <string>

#include "data/sample_source.h"

namespace trainer {

/// A sentence that names the bottleneck, of a run that spends the share `wait` of its time waiting
/// for data, which `threads` threads load on a machine of so many processors; `times` is theirs
/// over the same while. Empty where `wait` is under a tenth.
std::string data_hint(double wait, const SourceTimes& times, int threads, int processors);

}  // namespace trainer
