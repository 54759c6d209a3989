// ClusterPlan: what every process of a cluster works out of the config, and must find the same.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/hello.h"
#include "comm/secret.h"
#include "comm/shards.h"
#include "comm/transport.h"
#include "data/dataset.h"
#include "engine/network.h"
#include "optim/schedule.h"
#include "optim/sgd.h"
#include "optim/variant.h"
#include "tools/trainer/config.h"
#include "tools/trainer/rhythm.h"

namespace trainer {

struct ClusterPlan {
    /// Throws UsageError where the config asks for what makes no sense, e.g. a variant with a
    /// codec that it cannot have.
    ClusterPlan(const Config& config, const Dataset& training);

    bool allreduce;  ///< distributed.topology: workers sum among themselves, server 0 only leads
    Network network;
    std::unique_ptr<Optimizer> optimizer;
    int64_t steps_per_epoch, total_steps;
    LearningRate schedule;
    Variant variant;  ///< points to `schedule`: a plan stays where it is made
    Cuts cuts;        ///< of the arena, between the servers
    Terms terms;

    ClusterPlan(const ClusterPlan&) = delete;
    ClusterPlan& operator=(const ClusterPlan&) = delete;

    /// Slabs of a server's arena.
    std::vector<std::string> server_slabs() const;
    /// Those of them that a checkpoint holds besides the weights; the others follow from them.
    std::vector<std::string> saved_server_slabs() const;
    /// Slabs of a worker's arena.
    std::vector<std::string> worker_slabs() const;
    /// Those of them that a checkpoint holds, of each worker.
    std::vector<std::string> saved_worker_slabs() const;
    bool has_shard(int server) const { return shard_of(cuts, server).count > 0; }
};

/// The run's secret; nullptr where it has none. Throws UsageError as Secret::read does.
std::shared_ptr<const Secret> secret_of(const Config& config);

/// The run with all its workers, from its first step on.
job::Rhythm rhythm_of(const Config& config, const Dataset& training);

/// η(step) with the members that the rhythm has.
double learning_rate(const ClusterPlan& plan, const job::Rhythm& rhythm, int64_t step);

/// Whether the config asks for what a lone worker cannot do without a server.
bool needs_cluster(const Config& config);

/// The config's comm keys, for the transport of one process.
TransportOptions transport_options(const Config& config,
                                   std::function<void(const std::string&)> log);

std::chrono::milliseconds comm_timeout(const Config& config);

}  // namespace trainer
