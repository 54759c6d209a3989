// What --profile prints: where a step's time goes, by kind of operation and by operation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/executor.h"

namespace trainer {

/// Lines of two tables: milliseconds a step forward and backward of each kind of operation, with
/// the rate of what multiplies, and of each operation in forward order, with how it is computed.
/// `times` are of lane 0 over `steps` steps (0: as if 1) of `images` images each. A rate counts
/// two operations a multiply-add of the direct computation, once forward and twice backward;
/// Winograd's convolutions do fewer and so may be above what the processor can.
std::vector<std::string> profile_lines(const std::vector<OperationTime>& times, int64_t steps,
                                       int64_t images);

}  // namespace trainer
