// What a worker does at each step, written out.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "optim/step_schedule.h"

namespace trainer {
namespace {

using Kind = StepScheduleOptions::Kind;

// One letter an action, in the order of a step: W warm-up, p push, x exact, t take, L local rule,
// w wait for a pull, r request one.
std::string letters(const StepActions& a) {
    std::string text;
    for (const auto& [on, letter] : {std::pair{a.warm_up, 'W'},
                                     {a.push, 'p'},
                                     {a.exact, 'x'},
                                     {a.take_pull, 't'},
                                     {a.local_rule, 'L'},
                                     {a.wait_pull, 'w'},
                                     {a.request_pull, 'r'}})
        if (on)
            text += letter;
    return text;
}

std::string letters(const StepScheduleOptions& options, int64_t steps) {
    const StepSchedule schedule(options);
    std::string text;
    for (int64_t t = 0; t < steps; ++t)
        text += (t > 0 ? " " : "") + letters(schedule.at(t));
    return text;
}

TEST(StepSchedule, SynchronousPullsAndWaitsAtEveryStep) {
    EXPECT_EQ(letters({.kind = Kind::synchronous}, 3), "pw pw pw");
    EXPECT_EQ(letters({.kind = Kind::synchronous, .warmup_steps = 1}, 3), "Wpxw pw pw");
    EXPECT_EQ(letters({.kind = Kind::synchronous, .exact_every = 2}, 4), "pxw pw pxw pw");
}

// OD-SGD is k = 1: its first delayed base is G(T_w + 1) at step T_w + 1.
TEST(StepSchedule, OdsgdTakesEveryPullOneStepLate) {
    EXPECT_EQ(letters({.kind = Kind::delayed, .delay_steps = 1}, 4), "pLr ptLr ptLr ptLr");
    EXPECT_EQ(letters({.kind = Kind::delayed, .warmup_steps = 2, .delay_steps = 1}, 5),
              "Wpxw Wpxw pLr ptLr ptLr");
}

TEST(StepSchedule, SsdsgdPullsEveryKthStep) {
    EXPECT_EQ(letters({.kind = Kind::delayed, .warmup_steps = 1, .delay_steps = 3}, 8),
              "Wpxw pL pL pLr ptL pL pLr ptL");
}

TEST(StepSchedule, CdsgdIsExactEveryCthPush) {
    EXPECT_EQ(
        letters({.kind = Kind::delayed, .warmup_steps = 1, .delay_steps = 1, .exact_every = 3}, 6),
        "Wpxw pxLr ptLr ptLr pxtLr ptLr");
}

TEST(StepSchedule, LocalSgdTalksEveryHthStep) {
    EXPECT_EQ(letters({.kind = Kind::local, .local_steps = 3}, 6), "xL xL pxLw xL xL pxLw");
    EXPECT_EQ(letters({.kind = Kind::local, .warmup_steps = 2, .local_steps = 1}, 3),
              "Wpxw Wpxw pxLw");
}

TEST(StepSchedule, RefusesPeriodsBelowOne) {
    EXPECT_THROW(StepSchedule({.kind = Kind::delayed, .delay_steps = 0}), std::logic_error);
    EXPECT_THROW(StepSchedule({.kind = Kind::local, .local_steps = 0}), std::logic_error);
    EXPECT_THROW(StepSchedule({.warmup_steps = -1}), std::logic_error);
}

}  // namespace
}  // namespace trainer
