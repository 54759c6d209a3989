// The order in which an epoch visits the samples.
#pragma once

#include <cstdint>
#include <vector>

namespace trainer {

/// Writes the order of epoch `epoch` over `count` samples to `order` (resized to `count`; takes no
/// memory where it had that size). Without `shuffle` 0, 1, 2, ...; with it a uniform permutation, a
/// pure function of (seed, epoch): Fisher-Yates from the last place down to 1, place i swapped with
/// place below(i + 1) of Random{seed, RandomPurpose::permutation, epoch}.
void epoch_order(int64_t count, bool shuffle, uint64_t seed, int64_t epoch,
                 std::vector<int32_t>& order);

}  // namespace trainer
