// Local rules against their equations, worked by hand.
#include <gtest/gtest.h>

#include "optim/local_rule.h"

namespace trainer {
namespace {

// One tensor that decays ("w") and one that may not ("b"), one element each.
struct Worker {
    explicit Worker(const LocalRuleOptions& options)
        : rule(make_local_rule(options, table())), arena(make_arena()) {
        rule->start(arena);
    }

    static TensorTable table() {
        TensorTable result;
        result.add("w", {1}, true, {});
        result.add("b", {1}, false, {});
        return result;
    }

    ParameterArena make_arena() const {
        std::vector<std::string> slabs{"weights", "gradients", "incoming"};
        for (const std::string& name : rule->slabs())
            slabs.push_back(name);
        ParameterArena result(table(), DType::f32, slabs);
        set(result, "weights", {1, 2});
        return result;
    }

    static void set(const ParameterArena& target, std::string_view name,
                    std::vector<float> values) {
        std::copy(values.begin(), values.end(), target.slab<float>(name).begin());
    }

    // A step with these gradients; with a pull where `incoming` is not empty.
    void step(std::vector<float> gradients, double lr, std::vector<float> incoming = {},
              double lr_sum = 0) {
        set(arena, "gradients", gradients);
        set(arena, "incoming", incoming);
        rule->step(arena, {0, 2}, !incoming.empty(), lr, lr_sum);
    }

    float weight(size_t i) const { return arena.slab<float>("weights")[i]; }

    std::unique_ptr<LocalRule> rule;
    ParameterArena arena;
};

TEST(LocalSgd, StepsFromItsBase) {
    Worker worker({.rule = "sgd", .weight_decay = 0.5, .decay_bn_bias = false});
    worker.step({0.2F, 0.2F}, 0.1);
    EXPECT_NEAR(worker.weight(0), 1 - 0.1 * (0.2 + 0.5 * 1), 1e-7);
    EXPECT_NEAR(worker.weight(1), 2 - 0.1 * 0.2, 1e-7);
    worker.step({0.4F, -1}, 0.1, {3, 5});
    EXPECT_NEAR(worker.weight(0), 3 - 0.1 * (0.4 + 0.5 * 3), 1e-6);
    EXPECT_NEAR(worker.weight(1), 5 + 0.1, 1e-6);
}

TEST(LocalDc, CompensatesForTheDistanceToTheBase) {
    Worker worker({.rule = "dc", .weight_decay = 0.5, .lambda_dc = 0.25});
    worker.step({2, 2}, 0.1);  // B is w: nothing to compensate
    const double w0 = 1 - 0.1 * (2 + 0.5 * 1);
    EXPECT_NEAR(worker.weight(0), w0, 1e-6);
    worker.step({2, 2}, 0.1, {3, 5});
    EXPECT_NEAR(worker.weight(0), 3 - 0.1 * (2 + 0.5 * 3 + 0.25 * 4 * (3 - w0)), 1e-6);
}

TEST(LocalGlu, AddsTheServersMeanVelocity) {
    Worker worker({.rule = "glu", .weight_decay = 0.5, .alpha = 2, .beta = 0.5});
    worker.step({0.1F, 0}, 0.1);  // ĝ = 0 until there are two pulls
    EXPECT_NEAR(worker.weight(0), 1 - 0.1 * (2 * 0.1 + 0.5 * 1), 1e-6);
    // The first pull, against the model at the end of warm-up: ĝ = (1 - 0.4) / 0.3 = 2.
    worker.step({0.1F, 0}, 0.1, {0.4F, 2}, 0.3);
    const double after_pull = 0.4 - 0.1 * (2 * 0.1 + 0.5 * 2 + 0.5 * 0.4);
    EXPECT_NEAR(worker.weight(0), after_pull, 1e-6);
    EXPECT_NEAR(worker.weight(1), 2 - 0.1 * 0.5 * 2, 1e-6);
    // Between pulls ĝ stays.
    worker.step({0.1F, 0}, 0.1);
    EXPECT_NEAR(worker.weight(0), after_pull - 0.1 * (2 * 0.1 + 0.5 * 2 + 0.5 * after_pull), 1e-6);
    // P_old is the pull before, not the worker's own weights: ĝ = (0.4 - 0.1) / 0.2 = 1.5.
    worker.step({0, 0}, 0.1, {0.1F, 2}, 0.2);
    EXPECT_NEAR(worker.weight(0), 0.1 - 0.1 * (0.5 * 1.5 + 0.5 * 0.1), 1e-6);
}

TEST(LocalGlu, NoVelocityWhereTheServersDidNotMove) {
    Worker worker({.rule = "glu"});
    worker.step({0, 0}, 0.1, {0, 0}, 0.0);  // Ση = 0
    EXPECT_EQ(worker.weight(0), 0);
}

TEST(LocalMomentum, KeepsItsOwnMomentumAcrossPulls) {
    Worker worker({.rule = "momentum", .weight_decay = 0.5, .momentum = 0.9});
    worker.step({1, 0}, 0.1);
    const double u1 = 1 + 0.5 * 1;
    EXPECT_NEAR(worker.weight(0), 1 - 0.1 * u1, 1e-6);
    worker.step({1, 0}, 0.1, {3, 5}, 0.1);
    const double u2 = 0.9 * u1 + 1 + 0.5 * 3;
    EXPECT_NEAR(worker.weight(0), 3 - 0.1 * u2, 1e-6);
}

TEST(LocalMomentum, SeededStartsAtTheServersVelocity) {
    Worker worker({.rule = "momentum", .momentum = 0.9, .seeded = true});
    worker.step({1, 0}, 0.1);
    // ĝ = (1 - 0.4) / 0.3 = 2 replaces u, then the line of the step.
    worker.step({1, 0}, 0.1, {0.4F, 2}, 0.3);
    const double u = 0.9 * 2 + 1;
    EXPECT_NEAR(worker.weight(0), 0.4 - 0.1 * u, 1e-6);
    worker.step({1, 0}, 0.1);
    EXPECT_NEAR(worker.weight(0), 0.4 - 0.1 * u - 0.1 * (0.9 * u + 1), 1e-6);
}

TEST(LocalRule, RangesTogetherAreTheWhole) {
    for (const std::string name : {"sgd", "dc", "glu", "momentum"}) {
        Worker whole({.rule = name, .weight_decay = 0.1}), cut({.rule = name, .weight_decay = 0.1});
        whole.step({0.3F, -0.7F}, 0.1, {4, 6}, 0.2);
        Worker::set(cut.arena, "gradients", {0.3F, -0.7F});
        Worker::set(cut.arena, "incoming", {4, 6});
        cut.rule->step(cut.arena, {0, 1}, true, 0.1, 0.2);
        cut.rule->step(cut.arena, {1, 1}, true, 0.1, 0.2);
        EXPECT_EQ(whole.weight(0), cut.weight(0)) << name;
        EXPECT_EQ(whole.weight(1), cut.weight(1)) << name;
    }
}

TEST(LocalRule, FrozenTensorsAreHeldStill) {
    for (const std::string name : {"sgd", "dc", "glu", "momentum"}) {
        LocalRuleOptions options{.rule = name};
        options.frozen = {"w"};
        Worker worker(options);
        worker.step({1, 1}, 0.1);
        EXPECT_EQ(worker.weight(0), 1) << name;
        EXPECT_NE(worker.weight(1), 2) << name;
    }
}

TEST(LocalRule, UnknownNameIsRefused) {
    EXPECT_THROW(make_local_rule({.rule = "adam"}, Worker::table()), UsageError);
}

}  // namespace
}  // namespace trainer
