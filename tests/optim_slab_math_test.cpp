// Optimizers and clipping whose arithmetic runs where the slabs are at home: on a device that is
// plain loops, which have to give what the optimizers' own give.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/random.h"
#include "models/models.h"
#include "optim/clip.h"
#include "optim/local_rule.h"
#include "optim/sgd.h"
#include "optim/update.h"

namespace trainer {
namespace {

class Loops final : public SlabMath {
  public:
    void update(const MomentumUpdate<float>& update, float* weights, float* velocity,
                const float* gradients, int64_t count) override {
        run(update, weights, velocity, gradients, count);
    }
    void update(const NesterovUpdate<float>& update, float* weights, float* velocity,
                const float* gradients, int64_t count) override {
        run(update, weights, velocity, gradients, count);
    }
    void update(const LarsUpdate<float>& update, float* weights, float* velocity,
                const float* gradients, int64_t count) override {
        run(update, weights, velocity, gradients, count);
    }
    void local(const LocalSgdUpdate& update, float* weights, const float* base,
               const float* gradients, int64_t count) override {
        for (int64_t i = 0; i < count; ++i)
            weights[i] = update(base[i], gradients[i]);
        worked_on(count);
    }
    void local(const LocalDcUpdate& update, float* weights, const float* base,
               const float* gradients, int64_t count) override {
        for (int64_t i = 0; i < count; ++i)
            weights[i] = update(base[i], gradients[i], weights[i]);
        worked_on(count);
    }
    void local(const LocalGluUpdate& update, float* weights, const float* base,
               const float* gradients, const float* global, int64_t count) override {
        for (int64_t i = 0; i < count; ++i)
            weights[i] = update(base[i], gradients[i], global[i]);
        worked_on(count);
    }
    void local(const LocalMomentumUpdate& update, float* weights, const float* base,
               const float* gradients, const float* before, float* velocity,
               int64_t count) override {
        for (int64_t i = 0; i < count; ++i)
            weights[i] = update(base[i], gradients[i], before[i], velocity[i]);
        worked_on(count);
    }
    void local(const GlobalGradientUpdate& update, float* global, float* pulled,
               const float* incoming, int64_t count) override {
        for (int64_t i = 0; i < count; ++i)
            update(global[i], pulled[i], incoming[i]);
        worked_on(count);
    }
    double sum_of_squares(const float* values, int64_t count) override {
        return trainer::sum_of_squares(values, count);
    }
    void scale(float* values, float factor, int64_t count) override {
        for (int64_t i = 0; i < count; ++i)
            values[i] *= factor;
        worked_on(count);
    }
    void wait() override { waited = true; }

    int64_t elements = 0;  // worked on
    bool waited = true;    // since the last work

  private:
    template <typename Update>
    void run(const Update& update, float* weights, float* velocity, const float* gradients,
             int64_t count) {
        update_elements(update, weights, velocity, gradients, count);
        worked_on(count);
    }
    void worked_on(int64_t count) {
        elements += count;
        waited = false;
    }
};

ParameterArena drawn_arena(const TensorTable& table) {
    ParameterArena arena(table, DType::f32, {"weights", "gradients", "momentum"});
    Random random{1};
    for (const char* name : {"weights", "gradients", "momentum"})
        for (float& value : arena.slab<float>(name))
            value = static_cast<float>(random.normal());
    return arena;
}

void expect_same(const ParameterArena& a, const ParameterArena& b) {
    for (const char* name : {"weights", "gradients", "momentum"})
        for (int64_t i = 0; i < a.size(); ++i)
            ASSERT_EQ(a.slab<float>(name)[static_cast<size_t>(i)],
                      b.slab<float>(name)[static_cast<size_t>(i)])
                << name << " " << i;
}

TEST(SlabMathOptimizer, UpdatesAllThatTheProcessorDoesAndWaits) {
    const Network network = build_model("resnet20", {.num_classes = 10, .height = 32, .width = 32});
    const TensorTable& table = network.parameters();
    for (const char* name : {"sgd", "nesterov", "lars"})
        for (const bool decay_bn_bias : {true, false}) {
            OptimizerOptions options;
            options.name = name;
            options.weight_decay = 1e-3;
            options.decay_bn_bias = decay_bn_bias;
            options.frozen = {"conv1.", "layer2.0.bn1"};
            const auto optimizer = make_optimizer(options, table);
            const ParameterArena expected = drawn_arena(table), arena = drawn_arena(table);
            Loops device;
            for (int step = 0; step < 2; ++step) {
                optimizer->update(expected, {0, table.size()}, 0.1);
                optimizer->update(arena, {0, table.size()}, 0.1, &device);
                EXPECT_TRUE(device.waited);
            }
            expect_same(arena, expected);
            int64_t frozen = 0;
            for (const TensorInfo& tensor : table.tensors())
                if (tensor.name.starts_with("conv1.") || tensor.name.starts_with("layer2.0.bn1"))
                    frozen += tensor.size();
            EXPECT_EQ(device.elements, 2 * (table.size() - frozen));
        }
}

TEST(SlabMathLocalRule, StepsAsTheProcessorDoes) {
    TensorTable table;
    table.add("a", {30, 7}, true, {});
    table.add("b", {30}, false, {});
    table.add("c", {5}, true, {});
    for (const char* name : {"sgd", "dc", "glu", "momentum"}) {
        SCOPED_TRACE(name);
        const auto rule = make_local_rule({.rule = name,
                                           .weight_decay = 1e-3,
                                           .decay_bn_bias = false,
                                           .seeded = true,
                                           .frozen = {"c"}},
                                          table);
        std::vector<std::string> names = rule->slabs();
        names.insert(names.end(), {"weights", "gradients", "incoming"});
        const ParameterArena expected(table, DType::f32, names), arena(table, DType::f32, names);
        Random random{2};
        for (const std::string& slab : names)
            for (int64_t i = 0; i < table.size(); ++i)
                expected.slab<float>(slab)[static_cast<size_t>(i)] =
                    arena.slab<float>(slab)[static_cast<size_t>(i)] =
                        static_cast<float>(random.normal());
        Loops device;
        for (const bool pulled : {false, true}) {
            rule->step(expected, {0, table.size()}, pulled, 0.1, 0.3);
            rule->step(LocalSlabs::of(arena), {0, table.size()}, pulled, 0.1, 0.3, &device);
        }
        for (const std::string& slab : names)
            EXPECT_TRUE(std::ranges::equal(arena.slab<float>(slab), expected.slab<float>(slab)))
                << slab;
        EXPECT_FALSE(device.waited);
        const bool takes_global = arena.has_slab("global_gradient");
        EXPECT_EQ(device.elements, 2 * (table.size() - 5) + (takes_global ? table.size() : 0));
    }
}

TEST(SlabMathOptimizer, ClipsAsTheProcessorDoes) {
    TensorTable table;
    table.add("a", {300, 70}, true, {});
    for (const double max_norm : {0.5, 1e6}) {
        const ParameterArena expected = drawn_arena(table), arena = drawn_arena(table);
        GradientClipper clipper(max_norm, table.size());
        Loops device;
        LaneTeam lanes(1, false);
        lanes.run([&](Lane& lane) {
            const double norm = clipper.run(lane, expected);
            EXPECT_NEAR(clipper.run(lane, arena, &device), norm, 1e-9 * norm);
        });
        EXPECT_TRUE(device.waited);
        for (size_t i = 0; i < static_cast<size_t>(table.size()); ++i)
            ASSERT_NEAR(arena.slab<float>("gradients")[i], expected.slab<float>("gradients")[i],
                        1e-7);
        EXPECT_EQ(device.elements, max_norm == 0.5 ? table.size() : 0);
    }
}

}  // namespace
}  // namespace trainer
