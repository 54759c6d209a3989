// Worker: the loop of one worker, a step at a time.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "data/loader.h"
#include "engine/executor.h"
#include "optim/clip.h"
#include "optim/next_weights.h"
#include "optim/schedule.h"
#include "optim/sgd.h"

namespace trainer {

struct WorkerOptions {
    uint64_t seed = 1;           ///< of dropout
    double label_smoothing = 0;  ///< of the training loss
    double clip_grad_norm = 0;   ///< 0: no clipping
    double step_seconds = 0;     ///< ExecutorOptions::step_seconds
};

/// What one step did.
struct StepResult {
    LossSums sums;  ///< over this worker's part of the batch, before the update
    double lr = 0;
};

/// Everything that a worker works with; all of it outlives the worker.
struct WorkerParts {
    const Network& network;
    Backend& backend;
    const ParameterArena& parameters;  ///< slabs "weights", "gradients" and the optimizer's
    const ParameterArena& statistics;  ///< slab "weights": the running statistics
    Loader& loader;
    const Optimizer& optimizer;
    const LearningRate& schedule;
    /// What makes the next weights of the gradients; nullptr: the optimizer, at once, on the
    /// backend's device. The parameters are at home there (SlabHome), with servers on the host.
    NextWeights* exchange = nullptr;
    /// The images of the loader's data set, where the backend keeps them.
    const DeviceImages* kept = nullptr;
};

class Worker {
  public:
    Worker(const WorkerParts& parts, const WorkerOptions& options);

    /// Goes on as a worker that has completed `step` global steps.
    void start(int64_t step);

    /// The same, where the next step is the loader's start_share() of these.
    void start(int64_t step, int64_t worker, int64_t workers, int64_t epoch, int64_t first_sample);

    /// Global steps completed.
    int64_t steps() const { return steps_; }

    /// One step: the next batch, forward, loss, backward, update or exchange. Of N workers each
    /// gives the gradient of N / (samples of the global batch) times its sum of losses, so that
    /// their mean is that of the global batch. Allocates nothing, but for the first batch of
    /// another size. Throws Error that names the step and the layer where the loss
    /// is not finite; the weights are then still those of before the step.
    StepResult step();

    /// The executor of whole batches.
    Executor& executor() { return *executors_.front().executor; }

  private:
    /// An executor runs batches of one size only.
    struct SizedExecutor {
        int64_t batch;
        std::unique_ptr<Executor> executor;
    };

    Executor& executor_for(int64_t batch);
    LossSums compute_gradients(const Batch& batch);
    void give_nothing();
    void scale(Range range) const;
    void range_done(Range range);
    void update(Lane& lane);
    [[noreturn]] void stop_not_finite(const Executor& executor, double loss) const;

    WorkerParts parts_;
    WorkerOptions options_;
    GradientClipper clipper_;
    std::vector<SizedExecutor> executors_;
    std::function<void(Lane&)> update_work_, clip_work_;  // made once: to make one allocates
    Executor::RangeLeaves range_leaves_;                  // likewise
    Executor::RangeDone range_done_;                      // empty: nobody wants to know
    bool taken_ = false;         // gradients of this step, by the exchange, from the device
    float gradient_factor_ = 1;  // of this step, applied before a push
    int64_t steps_ = 0;
    double lr_ = 0;
};

}  // namespace trainer
