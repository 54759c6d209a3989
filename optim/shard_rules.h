// The rules of a shard, one file each; Shard::make chooses.
#pragma once

#include <memory>

#include "optim/shard.h"

namespace trainer {

/// ShardOptions::Rule::average and average_weights.
std::unique_ptr<Shard> make_average_shard(const ShardOptions& options, const Optimizer& optimizer,
                                          const ParameterArena& arena, Range range);
/// ShardOptions::Rule::on_arrival and the delay compensated ones.
std::unique_ptr<Shard> make_on_arrival_shard(const ShardOptions& options,
                                             const Optimizer& optimizer,
                                             const ParameterArena& arena, Range range);

}  // namespace trainer
