// The base optimizers against trajectories worked by hand and straight-line code of their own.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/random.h"
#include "optim/clip.h"
#include "optim/sgd.h"

namespace trainer {
namespace {

TensorTable table_of(const std::vector<int64_t>& sizes) {
    TensorTable table;
    for (size_t i = 0; i < sizes.size(); ++i)
        table.add(std::string("t").append(std::to_string(i)), {sizes[i]}, i % 2 == 0, {});
    return table;
}

ParameterArena arena_of(const TensorTable& table, DType type) {
    return ParameterArena(table, type, {"weights", "gradients", "momentum"});
}

OptimizerOptions options_of(const std::string& name, double momentum, double decay) {
    OptimizerOptions options;
    options.name = name;
    options.momentum = momentum;
    options.weight_decay = decay;
    return options;
}

template <typename T>
void fill(const ParameterArena& arena, std::string_view slab_name, uint64_t seed) {
    Random random{seed};
    for (T& value : arena.slab<T>(slab_name))
        value = static_cast<T>(random.normal());
}

/// Bits of a slab, for comparisons that allow no difference.
std::vector<float> copy_of(const ParameterArena& arena, std::string_view slab_name) {
    const auto values = arena.slab<float>(slab_name);
    return {values.begin(), values.end()};
}

/// f(w) = w^2 / 2 from w = 1, so that the gradient is w, with eta 0.1, mu 0.9, lambda 0.01.
std::vector<double> trajectory(const std::string& name, int steps) {
    const TensorTable table = table_of({1});
    const ParameterArena arena = arena_of(table, DType::f64);
    const auto optimizer = make_optimizer(options_of(name, 0.9, 0.01), table);
    double& weight = arena.slab<double>("weights")[0];
    weight = 1;
    std::vector<double> weights;
    for (int step = 0; step < steps; ++step) {
        arena.slab<double>("gradients")[0] = weight;
        optimizer->update(arena, {0, 1}, 0.1);
        weights.push_back(weight);
    }
    return weights;
}

TEST(Sgd, MomentumAsWorkedByHand) {
    // v1 = 1.01, w1 = 0.899; v2 = 0.909 + 1.01 * 0.899 = 1.81699, w2 = 0.717301
    const auto weights = trajectory("sgd", 3);
    EXPECT_NEAR(weights[0], 0.899, 1e-12);
    EXPECT_NEAR(weights[1], 0.717301, 1e-12);
    // v3 = 0.9 * 1.81699 + 1.01 * 0.717301 = 1.635291 + 0.72447401 = 2.35976501
    EXPECT_NEAR(weights[2], 0.717301 - 0.235976501, 1e-12);
}

TEST(Sgd, NesterovAsWorkedByHand) {
    // step 1: d = 1.01, v = 1.01, w = 1 - 0.1 (1.01 + 0.909) = 0.8081
    // step 2: d = 0.816181, v = 0.909 + 0.816181 = 1.725181,
    //         w = 0.8081 - 0.1 (0.816181 + 1.5526629) = 0.57121561
    const auto weights = trajectory("nesterov", 2);
    EXPECT_NEAR(weights[0], 0.8081, 1e-12);
    EXPECT_NEAR(weights[1], 0.57121561, 1e-12);
}

TEST(Sgd, LarsAsWorkedByHand) {
    // |w| = |g| = 1: rate = 0.1 * 0.001 / 1.01; v = rate * 1.01 = 1e-4; w = 0.9999
    // step 2: |w| = |g|: rate the same; v = 0.9e-4 + 1e-4 * 0.9999 = 1.8999e-4
    const auto weights = trajectory("lars", 2);
    EXPECT_NEAR(weights[0], 0.9999, 1e-12);
    EXPECT_NEAR(weights[1], 0.9999 - 1.8999e-4, 1e-12);
}

struct Case {
    std::string name;
    bool decay_bn_bias;
};

class Trajectories : public testing::TestWithParam<Case> {};

/// Written from the papers with plain multiplications and additions, tensor by tensor.
void straight_line_step(const Case& which, const TensorTable& table, std::vector<double>& w,
                        std::vector<double>& v, const std::vector<double>& g, double lr) {
    const double mu = 0.9;
    for (const TensorInfo& tensor : table.tensors()) {
        const double lambda = tensor.decay || which.decay_bn_bias ? 5e-4 : 0;
        const auto first = static_cast<size_t>(tensor.offset);
        const auto end = first + static_cast<size_t>(tensor.size());
        double w2 = 0, g2 = 0;
        for (size_t i = first; i < end; ++i) {
            w2 += w[i] * w[i];
            g2 += g[i] * g[i];
        }
        double local = 1;
        if (lambda > 0 && w2 > 0 && g2 > 0)
            local = 0.001 * std::sqrt(w2) / (std::sqrt(g2) + lambda * std::sqrt(w2));
        for (size_t i = first; i < end; ++i) {
            const double d = g[i] + lambda * w[i];
            if (which.name == "lars") {
                v[i] = mu * v[i] + lr * local * d;
                w[i] = w[i] - v[i];
                continue;
            }
            v[i] = mu * v[i] + d;
            w[i] = w[i] - lr * (which.name == "nesterov" ? d + mu * v[i] : v[i]);
        }
    }
}

TEST_P(Trajectories, TwentyStepsAgainstStraightLineCode) {
    const TensorTable table = table_of({7, 1, 64, 33, 2});
    const ParameterArena arena = arena_of(table, DType::f64);
    OptimizerOptions options = options_of(GetParam().name, 0.9, 5e-4);
    options.decay_bn_bias = GetParam().decay_bn_bias;
    const auto optimizer = make_optimizer(options, table);
    fill<double>(arena, "weights", 1);
    const auto weights = arena.slab<double>("weights");
    std::vector<double> w(weights.begin(), weights.end()), v(w.size(), 0);
    for (int step = 0; step < 20; ++step) {
        fill<double>(arena, "gradients", 100 + static_cast<uint64_t>(step));
        const auto gradients = arena.slab<double>("gradients");
        const double lr = 0.3 / (1 + step);
        straight_line_step(GetParam(), table, w, v, {gradients.begin(), gradients.end()}, lr);
        optimizer->update(arena, {0, table.size()}, lr);
    }
    for (size_t i = 0; i < w.size(); ++i)
        ASSERT_NEAR(weights[i], w[i], 1e-12) << i;
}

TEST_P(Trajectories, PartsGiveTheBitsOfTheWhole) {
    const TensorTable table = table_of({5, 40, 1, 1, 300, 17});
    OptimizerOptions options = options_of(GetParam().name, 0.9, 1e-2);
    options.decay_bn_bias = GetParam().decay_bn_bias;
    const auto optimizer = make_optimizer(options, table);
    std::vector<float> expected;
    for (int64_t parts : {1, 2, 3, 8}) {
        const ParameterArena arena = arena_of(table, DType::f32);
        fill<float>(arena, "weights", 2);
        for (uint64_t step = 0; step < 3; ++step) {
            fill<float>(arena, "gradients", 50 + step);
            int64_t covered = 0;
            for (int64_t part = 0; part < parts; ++part) {
                const Range range = optimizer->part({0, table.size()}, part, parts);
                EXPECT_EQ(range.first, covered);
                covered = range.end();
                optimizer->update(arena, range, 0.05);
            }
            EXPECT_EQ(covered, table.size());
        }
        if (parts == 1)
            expected = copy_of(arena, "weights");
        EXPECT_EQ(copy_of(arena, "weights"), expected) << parts << " parts";
    }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Trajectories,
                         testing::Values(Case{"sgd", true}, Case{"sgd", false},
                                         Case{"nesterov", true}, Case{"nesterov", false},
                                         Case{"lars", true}, Case{"lars", false}),
                         [](const auto& instance) {
                             return instance.param.name +
                                    (instance.param.decay_bn_bias ? "" : "_exempt");
                         });

TEST(Sgd, FrozenTensorsStayStill) {
    const TensorTable table = table_of({3, 4, 5});
    OptimizerOptions options = options_of("sgd", 0.9, 0.1);
    options.frozen = {"t1"};
    const auto optimizer = make_optimizer(options, table);
    const ParameterArena arena = arena_of(table, DType::f32);
    fill<float>(arena, "weights", 3);
    fill<float>(arena, "gradients", 4);
    const auto before = copy_of(arena, "weights");
    optimizer->update(arena, {0, table.size()}, 0.1);
    const auto after = copy_of(arena, "weights");
    for (size_t i = 0; i < 12; ++i)
        EXPECT_EQ(before[i] == after[i], i >= 3 && i < 7) << i;
}

TEST(Sgd, UnknownNameIsAUsageError) {
    EXPECT_THROW(make_optimizer(options_of("adam", 0.9, 0), table_of({1})), UsageError);
}

/// Clips on `lanes` lanes and returns the norm; the arena keeps the gradient.
double clip(const ParameterArena& arena, double max_norm, int lanes) {
    LaneTeam team(lanes, false);
    GradientClipper clipper(max_norm, arena.size());
    double norm = 0;
    team.run([&](Lane& lane) {
        const double mine = clipper.run(lane, arena);
        if (lane.index() == 0)
            norm = mine;
    });
    return norm;
}

TEST(Clip, ScalesToTheNormOnly) {
    const TensorTable table = table_of({2, 1});
    const ParameterArena arena = arena_of(table, DType::f64);
    const auto gradients = arena.slab<double>("gradients");
    gradients[0] = 2;
    gradients[1] = 3;
    gradients[2] = 6;
    EXPECT_DOUBLE_EQ(clip(arena, 7.5, 1), 7);
    EXPECT_EQ(gradients[2], 6);
    EXPECT_DOUBLE_EQ(clip(arena, 3.5, 1), 7);
    EXPECT_NEAR(gradients[0], 1, 1e-6);
    EXPECT_NEAR(gradients[1], 1.5, 1e-6);
    EXPECT_NEAR(gradients[2], 3, 1e-6);
}

TEST(Clip, SameBitsOnAnyNumberOfLanes) {
    const TensorTable table = table_of({16384, 40000, 3});
    std::vector<float> expected;
    for (int lanes : {1, 2, 5}) {
        const ParameterArena arena = arena_of(table, DType::f32);
        fill<float>(arena, "gradients", 9);
        const double norm = clip(arena, 1, lanes);
        EXPECT_NEAR(norm, std::sqrt(56387.0), 2);
        if (lanes == 1)
            expected = copy_of(arena, "gradients");
        EXPECT_EQ(copy_of(arena, "gradients"), expected) << lanes << " lanes";
    }
}

}  // namespace
}  // namespace trainer
