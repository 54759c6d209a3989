// Team: the devices that share an executor's batch with its own (Backend::followers), a thread
// each.
//
// Each follower has the whole model in an arena of its own, and a contiguous part of the batch. Its
// backend takes the first one's weights at the start of a step, and sums statistics and gradients
// with the others'; so a step is that of one device with the whole batch, up to the order of sums.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/first_failure.h"

namespace trainer {

class Team {
  public:
    /// `first` is the backend whose followers they are; `options` are of the whole batch, which has
    /// a sample for each of them. `network` and the backends outlive the team.
    Team(const Network& network, Backend& first, const ExecutorOptions& options);
    ~Team();

    /// What a member does with a part of the batch.
    using Train = std::function<LossSums(const StepInput&, int64_t mean_over)>;
    using Check = std::function<std::optional<std::string>()>;

    /// Executor::train for the whole batch; the first member's part is `own`'s, on this thread. Of
    /// several that fail the first is told, with its number; there is no step after.
    LossSums train(const StepInput& input, int64_t mean_over, const Train& own);

    /// Executor::first_not_finite, of whichever member finds something.
    std::optional<std::string> first_not_finite(const Check& own);

    /// Samples of the first member's part of a batch of so many.
    static int64_t first_part(int64_t batch, const Backend& first);
    /// Whether a batch is shared at all: else the first member has it alone.
    static bool shares(const ExecutorOptions& options, const Backend& first);

  private:
    struct Follower;

    Range part(int member) const {
        return part_of(batch_, member, static_cast<int64_t>(followers_.size()) + 1);
    }
    StepInput input_of(int member) const;
    void run(const std::function<void(int member)>& work);

    Backend& first_;
    const int64_t batch_, image_elements_;
    std::vector<std::unique_ptr<Follower>> followers_;
    LaneTeam threads_;

    // Of the step under way.
    StepInput input_;
    int64_t mean_over_ = 1;
    const Train* own_ = nullptr;
    std::vector<LossSums> sums_;  // by member
    std::function<void(int)> train_work_;
    std::function<void(Lane&)> lane_work_;  // made once: to make one allocates
    FirstFailure failure_;
    const std::function<void(int)>* work_ = nullptr;
};

}  // namespace trainer
