// Executor: a network made runnable on one backend for one batch size.
//
// Plans all buffers once (those whose lives do not meet share memory), builds the operations, and
// then runs steps without allocating.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend.h"

namespace trainer {

struct ExecutorOptions {
    int64_t batch = 1;           ///< samples of one step
    bool training = true;        ///< false: forward only, with the running statistics
    double label_smoothing = 0;  ///< training loss only
    /// Gradients are announced in ranges of at least so many elements, from the end of the arena
    /// to its start; 0: once, all together.
    int64_t range_elements = 0;
    /// Stretches forward and backward of a training step to so many seconds, operation by
    /// operation in proportion to their work, by sleeping: what a device of that speed would take.
    /// 0: as fast as it goes.
    double step_seconds = 0;
    /// Where this executor has a part of a batch that a team shares (team.h): samples of the whole.
    int64_t team_batch = 0;
};

/// Time spent in one operation, for the profile.
struct OperationTime {
    std::string name, kind, implementation;
    double forward_s = 0, backward_s = 0;
    int64_t multiply_adds = 0;  ///< of one sample's forward pass
};

class Team;

class Executor {
  public:
    /// Where the backend has followers, a training batch that has a sample for each is shared with
    /// them. `network`, `backend`, `parameters` (slabs "weights" and, for training, "gradients")
    /// and `statistics` (slab "weights") outlive the executor. Several executors may share them.
    Executor(const Network& network, Backend& backend, const ParameterArena& parameters,
             const ParameterArena& statistics, const ExecutorOptions& options);
    ~Executor();

    /// Called on lane 0, in backward's order, when gradients of `range` are final in the
    /// "gradients" slab, while backward goes on in the other lanes.
    using RangeDone = std::function<void(Range)>;

    /// Asked, where the backend computes on a device apart, for each range that has been lined up,
    /// with the device's slab of gradients: true where it takes them from there, and they are not
    /// copied to the slab. RangeDone is called for the range then, too, as soon as it may be. Of a
    /// batch that a team shares nothing can be taken there.
    using RangeLeaves = std::function<bool(Range, float*)>;

    /// Forward, loss, backward: leaves in "gradients" the gradient of the mean loss over
    /// `mean_over` samples (0: over input.batch), updates the running statistics, returns sums
    /// over this batch. REQUIRES: training, input.batch == options.batch.
    LossSums train(const StepInput& input, int64_t mean_over = 0, const RangeDone& done = {},
                   const RangeLeaves& leaves = {});

    /// Forward and loss with the running statistics over the first input.batch <= options.batch
    /// samples; images must hold options.batch. With `reload` false the weights are those of the
    /// last call. REQUIRES: not training.
    LossSums evaluate(const StepInput& input, bool reload = true);

    /// The ranges that train() announces, in that order.
    std::vector<Range> ranges() const;

    /// Training steps that took more than options.step_seconds, and so could not be stretched to
    /// it.
    int64_t late_steps() const;

    /// Logits of the last pass, row after row, [batch, classes].
    std::vector<float> logits() const;

    /// Name of the first node (in forward order) whose output, or else whose parameter gradient,
    /// holds a NaN or an infinity after the last pass; nullopt where all is finite.
    std::optional<std::string> first_not_finite() const;

    /// Bytes of activations, their gradients and per-lane parameter gradients that an executor of
    /// these options takes, without building it.
    static size_t bytes_needed(const Network& network, const Backend& backend, int lanes,
                               const ExecutorOptions& options);

    /// Bytes of buffers in this executor.
    size_t bytes() const;

    /// Starts timing every operation (lane 0), or stops it.
    void profile(bool on);
    /// Times since profile(true), in forward order.
    std::vector<OperationTime> times() const;

  private:
    struct Plan;
    LossSums train_own(const StepInput& input, int64_t mean_over, const RangeDone& done,
                       const RangeLeaves& leaves);
    std::optional<std::string> own_first_not_finite() const;

    int64_t batch_;
    std::unique_ptr<Plan> plan_;
    std::unique_ptr<Team> team_;  // nullptr: this device has the whole batch
};

}  // namespace trainer
