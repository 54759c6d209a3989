// A training run in double against PyTorch's in float64 (tests/golden/make_resnet20_sgd.py).
#include <gtest/gtest.h>

#include "engine/executor.h"
#include "models/models.h"
#include "tests/golden/golden.h"

namespace trainer {
namespace {

constexpr int64_t batch_size = 8, classes = 10, image_size = 32;
constexpr uint64_t steps = 20, batches = 4;
constexpr double rate = 0.01, momentum = 0.9, decay = 5e-3;

// Momentum SGD as ALGORITHMS has it: v <- momentum v + g + decay w; w <- w - rate v.
void sgd_step(const ParameterArena& arena) {
    const auto w = arena.slab<double>(slab::weights);
    const auto v = arena.slab<double>(slab::momentum);
    const auto g = arena.slab<double>(slab::gradients);
    for (size_t i = 0; i < w.size(); ++i) {
        v[i] = momentum * v[i] + g[i] + decay * w[i];
        w[i] -= rate * v[i];
    }
}

TEST(Golden, TwentyStepsOfResNet20InDoubleFollowPyTorch) {
    golden::File expected = golden::read("resnet20_sgd.txt");
    const Network network = build_model(
        "resnet20", {.num_classes = classes, .height = image_size, .width = image_size});
    const auto backend = make_reference_backend(DType::f64);
    const ParameterArena parameters(
        network.parameters(), DType::f64,
        {std::string(slab::weights), std::string(slab::gradients), std::string(slab::momentum)});
    ParameterArena statistics(network.statistics(), DType::f64, {std::string(slab::weights)});
    golden::fill_weights<double>(parameters);
    initialize_weights(statistics, 0);
    Executor executor(network, *backend, parameters, statistics, {.batch = batch_size});
    for (uint64_t step = 0; step < steps; ++step) {
        const golden::Batch batch =
            golden::make_batch(step % batches, batch_size, image_size, classes);
        const LossSums sums = executor.train({.images = batch.images.data(),
                                              .labels = batch.labels.data(),
                                              .batch = batch_size,
                                              .step = static_cast<int64_t>(step)});
        sgd_step(parameters);
        const double loss = expected["loss"].at(std::to_string(step)).at(0);
        ASSERT_NEAR(sums.loss / batch_size, loss, 1e-8) << "at step " << step;
    }
    const auto weights =
        golden::worst(golden::distances<double>(parameters, slab::weights, expected["weights"]));
    EXPECT_LE(weights.first, 1e-9) << weights.second;
    const auto running =
        golden::worst(golden::distances<double>(statistics, slab::weights, expected["statistics"]));
    EXPECT_LE(running.first, 1e-9) << running.second;
}

}  // namespace
}  // namespace trainer
