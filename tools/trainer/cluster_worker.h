// ClusterWorker: one worker of a cluster, from its start to its good-bye; worker 0 also evaluates.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/link.h"
#include "data/loader.h"
#include "optim/collective_exchange.h"
#include "optim/exchange.h"
#include "optim/worker.h"
#include "tools/trainer/cluster_messages.h"
#include "tools/trainer/cluster_plan.h"
#include "tools/trainer/command_line.h"
#include "tools/trainer/data_hint.h"
#include "tools/trainer/evaluator.h"
#include "tools/trainer/exposition.h"

namespace trainer {

struct ClusterWorkerOptions {
    int threads = 1;           ///< computing ones
    int first_processor = -1;  ///< theirs alone are so many from it on; -1: no matter which
    int beside = 1;            ///< workers of this machine that this process runs, this one too
    std::optional<int> gpu{};  ///< its first, in place of the config's device
    std::function<int()> signal{};                  ///< number of one that asks to stop; 0: none
    std::function<void(const std::string&)> log{};  ///< one line for people
    Exposition* exposition = nullptr;               ///< is told of each step
    /// Of topology allreduce: joins this worker with the others.
    std::function<std::unique_ptr<Collective>(Link&, Backend&)> join{};
};

class ClusterWorker {
  public:
    /// All outlive the worker. `test` gives the test images, and is called where this worker
    /// evaluates: worker 0, or another in its stead.
    ClusterWorker(const Config& config, const ClusterPlan& plan, const Dataset& training,
                  std::function<const Dataset&()> test, Link& link,
                  const ClusterWorkerOptions& options);
    ~ClusterWorker();

    /// Trains to the end of the run, or to a stop, and takes leave. An Error ends the link too.
    ExitCode run();

    /// What --profile prints of its steps in this process.
    std::vector<std::string> profile();

  private:
    /// Of who evaluates: one version of the model, apart from what is being trained.
    struct Scorer;

    ExitCode train();
    job::Start start();
    ExitCode leave_at_once(bool stopped);
    void share_out(int64_t step);
    void take_part(int64_t step);
    void go_on_from(int64_t step);
    void adopt(const job::Start& start, std::span<const std::byte> body);
    void take_model(int64_t step, bool own_weights);
    void hand_in_model();
    void hear_of_stops();
    void warn(const std::vector<std::string>& notes);
    void hint_at_data(int64_t step);
    void step();
    void report_progress(int64_t step);
    void skip_what_others_did();
    bool stops_at(int64_t step) const;
    void expose();
    /// Whether this worker stops there.
    bool boundary();
    void score(std::span<const std::byte> statistics, bool evaluates, bool with_slabs,
               PooledBytes& verdict);
    void leave(bool run_ends, bool stopped);
    std::unique_ptr<NextWeights> make_exchange();
    LinkCounters traffic() const;
    std::unique_ptr<Loader> make_test_loader() const;

    std::unique_ptr<Backend> make_own_backend() const;
    job::WorkerState state() const;
    job::Spent spent() const;

    const Config& config_;
    const ClusterPlan& plan_;
    std::function<const Dataset&()> test_;
    Link& link_;
    ClusterWorkerOptions options_;
    job::Rhythm rhythm_;
    Loader loader_;  // before the backend, which may bind this thread to processors
    std::unique_ptr<Loader> test_loader_;
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<Collective> group_;   // nullptr: there are servers
    std::unique_ptr<DeviceImages> kept_;  // nullptr: the loader has them
    ParameterArena parameters_, statistics_;
    Exchange* with_servers_ = nullptr;  // the one or the other is exchange_
    CollectiveExchange* among_workers_ = nullptr;
    std::unique_ptr<NextWeights> exchange_;
    Worker worker_;
    std::unique_ptr<Scorer> scorer_;

    LossSums window_, epoch_;  // since the last records of them
    job::Spent spent_, window_start_, epoch_start_;
    LinkCounters window_link_;
    DataHint data_hint_;
    std::map<int64_t, int64_t> stops_;  // steps to stand at, and first_step of their rhythm
    int64_t skipped_ = 0;               // steps that were closed without this worker
    bool told_signal_ = false;
    bool leaves_ = false;  // alone, and the run goes on
};

}  // namespace trainer
