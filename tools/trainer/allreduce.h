// distributed.topology: allreduce: what joins workers that have no servers.
//
// Rank 0's process leads the run as server 0 does, and keeps no model but for checkpoints and
// evaluations; sums go among the workers, by NCCL between GPUs and else by a Mesh.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/link.h"
#include "engine/backend.h"
#include "engine/collective.h"
#include "tools/trainer/cluster_plan.h"
#include "tools/trainer/config.h"

namespace trainer {

inline bool is_allreduce(const Config& config) {
    return config.distributed.topology == "allreduce";
}

/// Throws UsageError where the config's topology cannot do what it asks for, and says what can.
void check_topology(const Config& config);

/// What a worker needs to find the others.
struct WorkerGroup {
    const Config& config;
    const ClusterPlan& plan;
    std::function<std::unique_ptr<Transport>()> transport;  ///< makes one
    std::string listen;                                     ///< where the others can come, HOST:0
};

/// Joins the worker of that link with all others of the run, who do the same. Throws Error where
/// one does not come.
std::unique_ptr<Collective> join_group(const WorkerGroup& group, Link& link, Backend& backend);

}  // namespace trainer
