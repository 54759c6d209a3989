// JobCoordinator: leads the run from server 0: its start, evaluations, checkpoints, logs, its end.
//
// Server 0 alone writes to disk what a run leaves: metrics.jsonl and whole checkpoints, so that no
// file system need be shared. Evaluations are worker 0's; what the other servers hold comes and
// goes through it. cluster_messages.h has what is said.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <thread>
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
    ~JobCoordinator() override;

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
    /// Steps are as this says, on the endpoint's thread; for the server's learning rate.
    const job::Rhythm& rhythm() const { return rhythm_; }
    /// Waits for a checkpoint that is being written. On the endpoint's thread.
    void join_saver();

    /// What the other servers are told of a change of members.
    void adopt_rhythm(std::span<const std::byte> bytes);

    void call(const Request& request, const std::string& name, PooledBytes body) override;
    void note(int worker, int64_t step, const std::string& name, PooledBytes body) override;
    void left(int worker) override;
    void lost(int worker, const std::string& who, const std::string& reason,
              int64_t pushed) override;
    void restarted(const std::string& why) override;
    bool is_over() const override { return ended_; }

  private:
    void introduce();
    void restore();
    void start_afresh();

    void gather(const Request& request, std::string word);
    void start(const Request& request, std::string device);
    job::Start start_of(int worker) const;
    void answer_start(const Request& request, bool leads);
    void answer_part(const Request& request, int server);
    void await_workers();
    void turn_away(int worker, job::Late why);
    void start_all(bool late);
    void all_started();

    void progress(int worker, int64_t step, const job::Progress& progress);
    void log_progress();
    void log_comm(int64_t step, const std::vector<job::Progress>& progress,
                  const std::vector<int>& ranks);
    void log_training(RecordType type, int64_t step, const std::vector<job::Progress>& progress,
                      LossSums job::Progress::*sums, job::Spent job::Progress::*spent);

    void boundary(const Request& request, PooledBytes body);
    void look_at_boundary();
    void appoint_scorer();
    void average_statistics();
    void scored(const Request& request, std::span<const std::byte> body);
    void note_score(const job::Scored& scored);
    void take_parts(std::span<const std::byte> parts);
    void save();
    void saved(bool whole);
    void end_boundary();
    bool members_change() const;
    void change_members();
    void take_in(int worker, int from);
    void count_lost_samples(int64_t until);

    void announce_stop(const std::string& who);
    void send_stop();
    int64_t step_ahead() const;
    void ask_for_change();

    std::vector<bool> server_members() const;
    static std::string worker_entry(int worker, std::string_view what);
    static bool has_worker(const Checkpoint& checkpoint, int worker);
    static int first_worker(const Checkpoint& checkpoint, int workers);
    static void restore_members(const Checkpoint& checkpoint, job::Rhythm& rhythm);
    void add_members(Metadata& metadata) const;
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
    int64_t hinted_ = -1;          // the step that the last hint was given at
    bool from_elsewhere_ = false;  // resumed from another directory's checkpoint
    int64_t start_step_ = 0;

    struct Word {
        Request request;
        std::string text;
    };
    std::map<int, Word> words_;  // by worker, until all have said theirs

    struct Starting {
        std::optional<Request> request;
        std::string device;
    };
    std::vector<Starting> starting_;  // by worker, until it is answered
    bool opened_ = false;
    bool awaiting_ = false;
    int64_t generation_ = 0;     // how often all has begun again
    std::optional<int> leader_;  // of a start under way
    bool started_ = false;
    job::Members there_;           // who takes part and is there
    job::Members leaving_;         // of them, who wants to leave
    int64_t change_at_ = -1;       // the step to change members at; -1: none is asked for
    std::map<int, int64_t> lost_;  // members that are lost, and the first step they have not pushed
    int64_t lost_samples_ = 0;

    // The boundary under way, by worker.
    struct AtBoundary {
        Request request;
        PooledBytes body;
        job::Boundary head;
        std::span<const std::byte> rest;  // statistics and slabs
    };
    std::vector<std::optional<AtBoundary>> boundary_;
    std::optional<int> scorer_;  // who has been asked to score the model
    std::optional<Request> scored_;
    std::thread saver_;  // writes a checkpoint, so that this thread goes on giving signs of life
    bool is_saved_ = false;
    bool ended_ = false;  // nothing is left but good-byes

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
