// ServerNode: one parameter server of a run, in a process of its own or as a thread of another.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "comm/server_endpoint.h"
#include "engine/arena.h"
#include "optim/server.h"
#include "tools/trainer/cluster_plan.h"
#include "tools/trainer/coordinator.h"
#include "tools/trainer/exposition.h"
#include "tools/trainer/signals.h"

namespace trainer {

/// A server's part of the model, and what listens for workers.
class ServerNode {
  public:
    /// All that is handed over outlives the node. Server 0's coordinator writes the run's logs and
    /// checkpoints.
    ServerNode(const Config& config, const ClusterPlan& plan, const Dataset& training);
    /// As close().
    ~ServerNode();
    ServerNode(const ServerNode&) = delete;
    ServerNode& operator=(const ServerNode&) = delete;

    /// Starts to listen at `address`, a thread of its own from here on. `index` of this server; -1:
    /// as the first worker says. Throws Error where the address cannot be had. REQUIRED before all
    /// below.
    void listen(std::unique_ptr<Transport> transport, const std::string& address, int index,
                std::function<void(const std::string&)> log);

    /// Opens the job (logs, checkpoint to resume) before any worker asks for it, where an early
    /// one's request would too. Throws what opening throws.
    void open();

    /// Waits until all workers have left; throws what has ended the run. A signal that asks to stop
    /// is passed on to `stop`, once. Numbers for Prometheus go to `exposition` where the run's log
    /// is not here; may be nullptr.
    void serve(const StopSignals& signals, const std::function<void(int)>& stop,
               Exposition* exposition);

    /// After this nothing of it runs any more. Does nothing a second time.
    void close();

    ServerEndpoint& endpoint() { return *endpoint_; }
    JobCoordinator& coordinator() { return coordinator_; }

  private:
    void on_loop(const std::function<void()>& work);
    void expose(Exposition* own);
    ShardOptions shard_options() const;

    const Config& config_;
    const ClusterPlan& plan_;
    ParameterArena arena_;
    JobCoordinator coordinator_;
    Server server_;
    std::unique_ptr<ServerEndpoint> endpoint_;  // first to go: its thread uses the rest
};

}  // namespace trainer
