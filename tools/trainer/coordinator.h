// JobCoordinator: leads the run from server 0: its start, evaluations, checkpoints, logs, its end.
//
// Server 0 alone writes to disk what a run leaves: metrics.jsonl and whole checkpoints, so that no
// file system need be shared. Evaluations are worker 0's; what the other servers hold comes and
// goes through it. cluster_messages.h has what is said.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "engine/checkpoint.h"
#include "optim/server.h"
#include "tools/trainer/cluster_messages.h"
#include "tools/trainer/cluster_plan.h"
#include "tools/trainer/command_line.h"
#include "tools/trainer/metrics.h"
#include "tools/trainer/run_state.h"

namespace trainer {

/// Every server has one, since it may learn only from its first worker which server it is; those
/// but server 0's are told nothing but the run's end.
class JobCoordinator final : public Coordinator {
  public:
    /// All outlive the coordinator. `arena` is the server's.
    JobCoordinator(const Config& config, const ClusterPlan& plan, const Dataset& training,
                   ParameterArena& arena);

    /// To be called before the first worker is there.
    void attach(Server& server, ServerEndpoint& endpoint);

    /// Opens logs and checkpoints, and begins with the newest one or from the start. Happens by
    /// itself when the first worker starts. Throws Error and UsageError.
    void open();

    /// Asks for the run to stop soon, with a checkpoint; from any thread.
    void request_stop(int signal);

    /// Once the endpoint is gone. Says how it was, and returns what the program exits with.
    ExitCode finish();
    /// The same for a run that has failed.
    void failed(const std::string& why);

    /// Server 0's, once its logs are open; else nullptr. On the endpoint's thread.
    Exposition* exposition() { return log_ ? &log_->exposition() : nullptr; }
    /// Workers that have not left. On the endpoint's thread.
    int members() const { return workers_ - departed_; }

    void call(const Request& request, const std::string& name, PooledBytes body) override;
    void note(int worker, int64_t step, const std::string& name, PooledBytes body) override;
    void left(int worker) override;

  private:
    void introduce();
    void restore();
    void start_afresh();

    void start(const Request& request, std::string device);
    void answer_start(const Request& request);
    void answer_part(const Request& request, int server);
    void start_all();

    void progress(int worker, int64_t step, const job::Progress& progress);
    void log_comm(int64_t step, const std::vector<job::Progress>& progress);
    void log_window(int64_t step, const std::vector<job::Progress>& progress);
    void log_epoch(int64_t step, const std::vector<job::Progress>& progress);

    void boundary(const Request& request, PooledBytes body);
    void average_statistics();
    void scored(const Request& request, std::span<const std::byte> body);
    void note_score(const job::Scored& scored);
    void take_parts(std::span<const std::byte> parts);
    void save();

    void announce_stop(const std::string& who);
    void send_stop();

    std::string worker_entry(int worker, std::string_view what) const;
    int64_t epoch_of(int64_t step) const;
    Position position(int64_t step) const;

    const Config& config_;
    const ClusterPlan& plan_;
    const Dataset& training_;
    ParameterArena& arena_;
    ParameterArena statistics_;
    const int workers_;
    job::Rhythm rhythm_;
    Server* server_ = nullptr;
    ServerEndpoint* endpoint_ = nullptr;

    std::optional<RunLog> log_;
    std::optional<CheckpointStore> store_;
    std::optional<Checkpoint> resumed_;  // until all workers have started
    RunState state_;
    bool fresh_ = true;
    bool from_elsewhere_ = false;  // resumed from another directory's checkpoint
    int64_t start_step_ = 0;

    struct Starting {
        std::optional<Request> request;
        std::string device;
    };
    std::vector<Starting> starting_;  // by worker
    bool started_ = false;
    int departed_ = 0;

    // The boundary under way, by worker.
    struct AtBoundary {
        Request request;
        PooledBytes body;
        job::Boundary head;
        std::span<const std::byte> rest;  // statistics and slabs
    };
    std::vector<std::optional<AtBoundary>> boundary_;

    std::map<int64_t, std::vector<std::optional<job::Progress>>> progress_;
    std::vector<job::Spent> totals_;
    std::vector<LinkCounters> traffic_;
    std::vector<Shard::Staleness> staleness_;  // by worker, at the last record

    bool stopping_ = false;
    int signal_ = 0;
    int64_t stop_at_ = -1;
    ExitCode outcome_ = ExitCode::done;
};

}  // namespace trainer
