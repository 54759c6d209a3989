// StepSchedule: what a worker does at each global step, as a pure function of the step.
//
// The delayed family is that of OD-SGD (arXiv 2005.06728), SSD-SGD (arXiv 2012.05396) and CD-SGD
// (arXiv 2106.10796): after a warm-up of T_w steps of S-SGD, with n = t - T_w, a worker pushes at
// every step, asks for the new model at the end of every k-th (n mod k = k - 1), and takes it as
// its base one step later; every c-th push (n mod c = 0) is exact.
#pragma once

#include <cstdint>

namespace trainer {

struct StepScheduleOptions {
    enum class Kind {
        synchronous,  ///< push and pull at every step, waiting for the pull
        delayed,      ///< push at every step, pull every delay_steps, one step late
        local,        ///< local steps; every local_steps-th pushes the weights and waits for a pull
    } kind = Kind::synchronous;
    int64_t warmup_steps = 0;  ///< T_w: all kinds are synchronous and exact before it
    int64_t delay_steps = 1;   ///< k >= 1
    int64_t local_steps = 1;   ///< H >= 1
    int64_t exact_every = 0;   ///< c: 0 never
};

/// What step t does, in the order in which a worker does it.
struct StepActions {
    bool warm_up = false;
    bool local_rule = false;    ///< the next weights come from the local rule
    bool push = true;           ///< the gradient of this step (kind local: the weights)
    bool exact = false;         ///< the push is not encoded
    bool take_pull = false;     ///< the base is G(t), asked for at step t - 1
    bool wait_pull = false;     ///< asks for G(t + 1), waits for it and adopts it
    bool request_pull = false;  ///< asks for G(t + 1), to be taken by the next step
    bool operator==(const StepActions&) const = default;
};

class StepSchedule {
  public:
    explicit StepSchedule(const StepScheduleOptions& options);

    /// What global step t >= 0 does.
    StepActions at(int64_t t) const;

    const StepScheduleOptions& options() const { return options_; }

  private:
    StepScheduleOptions options_;
};

}  // namespace trainer
