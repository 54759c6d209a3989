// Learning-rate schedules against their closed forms.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/error.h"
#include "optim/schedule.h"

namespace trainer {
namespace {

/// Ten steps an epoch, 100 steps in all, base rate 0.1.
ScheduleOptions options_of(const std::string& type) {
    ScheduleOptions options;
    options.type = type;
    options.lr = 0.1;
    options.milestones = {4, 7.5};
    options.steps_per_epoch = 10;
    options.total_steps = 100;
    return options;
}

TEST(Schedule, Constant) {
    const LearningRate rate(options_of("constant"));
    EXPECT_EQ(rate.at(0), 0.1);
    EXPECT_EQ(rate.at(1000), 0.1);
}

TEST(Schedule, StepDropsAtTheMilestones) {
    const LearningRate rate(options_of("step"));
    EXPECT_DOUBLE_EQ(rate.at(39), 0.1);
    EXPECT_DOUBLE_EQ(rate.at(40), 0.01);
    EXPECT_DOUBLE_EQ(rate.at(74), 0.01);
    EXPECT_DOUBLE_EQ(rate.at(75), 0.001);
    EXPECT_DOUBLE_EQ(rate.at(99), 0.001);
}

TEST(Schedule, Poly) {
    ScheduleOptions options = options_of("poly");
    options.power = 2;
    options.final_lr = 0.02;
    const LearningRate rate(options);
    EXPECT_DOUBLE_EQ(rate.at(0), 0.1);
    EXPECT_DOUBLE_EQ(rate.at(50), 0.02 + 0.08 * 0.25);
    EXPECT_DOUBLE_EQ(rate.at(100), 0.02);
}

TEST(Schedule, CosineIsTheDesignsFormula) {
    const LearningRate rate(options_of("cosine"));
    for (int64_t t : {0, 1, 25, 50, 99})
        EXPECT_NEAR(rate.at(t), 0.1 * 0.5 * (1 + std::cos(M_PI * static_cast<double>(t) / 100)),
                    1e-16);
    ScheduleOptions options = options_of("cosine");
    options.final_lr = 0.01;
    EXPECT_NEAR(LearningRate(options).at(100), 0.01, 1e-16);
    EXPECT_NEAR(LearningRate(options).at(50), 0.055, 1e-16);
}

TEST(Schedule, OneCycle) {
    const LearningRate rate(options_of("onecycle"));
    EXPECT_DOUBLE_EQ(rate.at(0), 0.01);
    EXPECT_NEAR(rate.at(45), 0.1, 1e-15);
    EXPECT_NEAR(rate.at(20), 0.01 + 0.09 * 20 / 45, 1e-15);
    EXPECT_NEAR(rate.at(65), 0.1 - 0.09 * 20 / 45, 1e-15);
    EXPECT_NEAR(rate.at(90), 0.01, 1e-15);
    EXPECT_NEAR(rate.at(95), 0.005, 1e-15);
    EXPECT_NEAR(rate.at(100), 0, 1e-15);
}

TEST(Schedule, OneCycleWithItsOwnWayUp) {
    ScheduleOptions options = options_of("onecycle");
    options.warmup_epochs = 2;
    options.final_lr = 0.001;
    const LearningRate rate(options);
    EXPECT_DOUBLE_EQ(rate.at(0), 0.01);
    EXPECT_NEAR(rate.at(10), 0.055, 1e-15);
    EXPECT_NEAR(rate.at(20), 0.1, 1e-15);
    EXPECT_NEAR(rate.at(55), 0.055, 1e-15);
    EXPECT_NEAR(rate.at(100), 0.001, 1e-15);
}

TEST(Schedule, WarmUpEndsInTheSchedule) {
    for (const char* type : {"constant", "step", "poly", "cosine"}) {
        ScheduleOptions options = options_of(type);
        const LearningRate plain(options);
        options.warmup_epochs = 1;
        const LearningRate rate(options);
        for (int64_t t = 0; t < 10; ++t)
            EXPECT_NEAR(rate.at(t), plain.at(10) * static_cast<double>(t + 1) / 10, 1e-15) << type;
        for (int64_t t = 10; t < 100; ++t)
            EXPECT_EQ(rate.at(t), plain.at(t)) << type;
    }
}

TEST(Schedule, StaysAtItsEnd) {
    for (const char* type : {"constant", "step", "poly", "cosine", "onecycle"}) {
        const LearningRate rate(options_of(type));
        EXPECT_EQ(rate.at(100), rate.at(100000)) << type;
    }
}

TEST(Schedule, UnknownTypeIsAUsageError) {
    EXPECT_THROW(LearningRate{options_of("linear")}, UsageError);
}

}  // namespace
}  // namespace trainer
