#include "optim/step_schedule.h"

#include "engine/error.h"

namespace trainer {

StepSchedule::StepSchedule(const StepScheduleOptions& options) : options_(options) {
    check(options.warmup_steps >= 0 && options.delay_steps >= 1 && options.local_steps >= 1 &&
              options.exact_every >= 0,
          "a step schedule's periods are at least one step");
}

StepActions StepSchedule::at(int64_t t) const {
    using Kind = StepScheduleOptions::Kind;
    if (t < options_.warmup_steps)
        return {.warm_up = true, .exact = true, .wait_pull = true};
    const int64_t n = t - options_.warmup_steps;
    const bool exact = options_.exact_every > 0 && n % options_.exact_every == 0;
    switch (options_.kind) {
        case Kind::synchronous:
            return {.exact = exact, .wait_pull = true};
        case Kind::delayed: {
            const int64_t k = options_.delay_steps;
            return {.local_rule = true,
                    .exact = exact,
                    .take_pull = n > 0 && n % k == 0,
                    .request_pull = n % k == k - 1};
        }
        case Kind::local: {
            const bool last = n % options_.local_steps == options_.local_steps - 1;
            return {.local_rule = true, .push = last, .exact = true, .wait_pull = last};
        }
    }
    return {};
}

}  // namespace trainer
