// Trainer: a whole run on this machine: epochs, evaluations, checkpoints, logs.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "engine/checkpoint.h"
#include "optim/worker.h"
#include "tools/trainer/command_line.h"
#include "tools/trainer/config.h"
#include "tools/trainer/data_hint.h"
#include "tools/trainer/evaluator.h"
#include "tools/trainer/metrics.h"
#include "tools/trainer/run_state.h"
#include "tools/trainer/signals.h"

namespace trainer {

struct TrainerOptions {
    /// Computes with plain loops of this type instead of on the config's device; f64 is for tests
    /// of long trajectories.
    std::optional<DType> reference;
};

class Trainer {
  public:
    /// Reads the data, builds everything, and takes up the checkpoint that the config says.
    /// `config` outlives the trainer. Throws Error and UsageError, before any training.
    explicit Trainer(const Config& config, const TrainerOptions& options = {});

    /// Trains to the end, or to a signal.
    ExitCode run();

    const RunState& state() const { return state_; }
    const ParameterArena& parameters() const { return parameters_; }
    const ParameterArena& statistics() const { return statistics_; }

  private:
    // Before training.
    ParameterArena make_parameters();
    void check_memory();
    struct Needs;
    void restore(const Checkpoint& checkpoint);
    void start_afresh();
    void introduce_model();
    void introduce_run();

    // Training.
    ExitCode train();
    void train_step();
    void tell_notes(Loader& loader);
    void hint_at_data();
    void log_step();
    void log_window();
    struct Spent;
    double speed_since(const Spent& before) const;  // images a second
    void log_epoch();
    bool evaluate_if_due();
    void save_if_due();
    void save();
    ExitCode stop_for_signal();
    void summarize();
    void print_profile();

    bool is_last() const { return state_.step >= total_steps_; }
    bool is_end_of(int64_t epochs) const;
    int64_t current_epoch() const;
    Position position() const;

    const Config& config_;
    TrainerOptions options_;
    StopSignals signals_;  // first, so that a signal while data is read stops the run in good order
    RunLog log_;
    CheckpointStore store_;
    std::optional<Checkpoint> resumed_;
    Dataset training_data_, test_data_;
    Network network_;
    std::unique_ptr<Optimizer> optimizer_;
    // Before the backend, which may bind this thread to a processor.
    Loader training_loader_, evaluation_loader_;
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<DeviceImages> kept_training_, kept_test_;  // nullptr: the loaders have them
    int64_t steps_per_epoch_, total_steps_;
    LearningRate schedule_;
    ParameterArena parameters_, statistics_;
    Worker worker_;
    Evaluator evaluator_;

    RunState state_;
    bool unsaved_ = true;  // there is more in state_ than in the newest checkpoint

    // Of this process.
    using Clock = std::chrono::steady_clock;
    struct Spent {
        double step_seconds = 0;  // in training steps
        double data_wait = 0;     // of them waiting for data
        int64_t images = 0;
        int64_t steps = 0;
    };
    Clock::time_point started_ = Clock::now();
    Spent spent_;
    Spent window_start_, epoch_start_;  // what it was at the last record of a step, of an epoch
    DataHint data_hint_;
    double lr_ = 0;
    double recent_step_seconds_ = 0;  // smoothed
};

}  // namespace trainer
