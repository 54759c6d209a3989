// One forward and backward pass of each model against PyTorch's in float64
// (tests/golden/make_gradients.py), on the reference in double and on the CPU engine.
#include <gtest/gtest.h>

#include <iostream>

#include "engine/executor.h"
#include "models/models.h"
#include "tests/golden/golden.h"
#include "tests/gpu.h"

namespace trainer {
namespace {

struct Case {
    const char* model;
    int64_t batch, size, classes;
};

constexpr Case resnet20{"resnet20", 8, 32, 10};
constexpr Case resnet18{"resnet18", 8, 64, 100};
constexpr Case resnet50{"resnet50", 16, 64, 100};
constexpr Case vgg11_bn{"vgg11_bn", 8, 32, 10};
constexpr Case vgg16{"vgg16", 8, 32, 10};

struct Bounds {
    double loss;        ///< absolute
    double gradient;    ///< of the whole vector, relative
    double body;        ///< the same without the last layer, whose gradient is the largest
    double tensor;      ///< of each tensor, relative to its norm, or `floor` of the whole's
    double floor;       ///< biases that batch norm cancels have a gradient of rounding errors
    double statistics;  ///< of the vector of running statistics, relative
};

// Float arithmetic flips the sign of a few values near a ReLU's zero, each a jump of the gradient:
// PyTorch's own float is 4e-4 (one layer 7e-3) away from its double on resnet50, and its bf16
// autocast, whose flips are many, 4e-3 (resnet20) to 1.4e-1, single tensors up to 8e-1.
constexpr Bounds double_bounds{1e-10, 1e-9, 1e-9, 1e-8, 1e-6, 1e-10};
constexpr Bounds float_bounds{1e-5, 2e-3, 5e-3, 2e-2, 1e-4, 1e-5};
constexpr Bounds bf16_bounds{5e-2, 0.2, 0.45, 0.8, 1e-2, 2e-2};

template <typename T>
void expect_pytorchs_step(const Case& which, Backend& backend, const Bounds& bounds) {
    golden::File expected = golden::read(std::string("gradients_") + which.model + ".txt");
    const Network network = build_model(
        which.model, {.num_classes = which.classes, .height = which.size, .width = which.size});
    const DType type = backend.parameter_type();
    const auto allocate = [&](size_t bytes) {
        return backend.allocate_slabs(bytes, SlabHome::device);
    };
    const ParameterArena parameters(network.parameters(), type,
                                    {std::string(slab::weights), std::string(slab::gradients)},
                                    allocate);
    ParameterArena statistics(network.statistics(), type, {std::string(slab::weights)}, allocate);
    golden::fill_weights<T>(parameters);
    initialize_weights(statistics, 0);
    const golden::Batch batch = golden::make_batch(0, which.batch, which.size, which.classes);
    Executor executor(network, backend, parameters, statistics, {.batch = which.batch});
    const LossSums sums = executor.train(
        {.images = batch.images.data(), .labels = batch.labels.data(), .batch = which.batch});
    EXPECT_NEAR(sums.loss / static_cast<double>(which.batch), expected["loss"][which.model].at(0),
                bounds.loss);

    auto tensors = golden::distances<T>(parameters, slab::gradients, expected["gradients"]);
    double squared_norm = 0;
    for (const golden::Distance& tensor : tensors)
        squared_norm += tensor.squared_norm;
    const double whole = golden::relative(tensors);
    const auto worst = golden::worst(tensors, bounds.floor * std::sqrt(squared_norm));
    std::erase_if(tensors, [](const golden::Distance& distance) {
        return distance.tensor.starts_with("fc.") || distance.tensor.starts_with("classifier.");
    });
    const double body = golden::relative(tensors);
    std::cout << which.model << ": gradient off by " << whole << ", without the last layer by "
              << body << ", worst tensor " << worst.second << " by " << worst.first << "\n";
    EXPECT_LE(whole, bounds.gradient);
    EXPECT_LE(body, bounds.body);
    EXPECT_LE(worst.first, bounds.tensor) << worst.second;
    if (!network.statistics().tensors().empty()) {
        const auto running =
            golden::distances<T>(statistics, slab::weights, expected["statistics"]);
        EXPECT_LE(golden::relative(running), bounds.statistics);
    }
}

void expect_in_double(const Case& which) {
    const auto backend = make_reference_backend(DType::f64);
    expect_pytorchs_step<double>(which, *backend, double_bounds);
}

TEST(GradientsInDouble, ResNet20) {
    expect_in_double(resnet20);
}
TEST(GradientsInDouble, ResNet18) {
    expect_in_double(resnet18);
}
TEST(GradientsInDouble, Vgg11WithBatchNorm) {
    expect_in_double(vgg11_bn);
}
TEST(GradientsInDouble, Vgg16) {
    expect_in_double(vgg16);
}

class GradientsOnCpu : public testing::TestWithParam<Case> {
  protected:
    void expect_with(Precision precision, const Bounds& bounds) {
        std::unique_ptr<Backend> backend;
        try {
            backend = make_cpu_backend({.threads = 2, .precision = precision, .pin = false});
        } catch (const UsageError& error) {
            GTEST_SKIP() << error.what();
        }
        expect_pytorchs_step<float>(GetParam(), *backend, bounds);
    }
};

TEST_P(GradientsOnCpu, Float) {
    expect_with(Precision::fp32, float_bounds);
}
TEST_P(GradientsOnCpu, Bf16) {
    expect_with(Precision::bf16, bf16_bounds);
}

const auto all_models = testing::Values(resnet20, resnet18, resnet50, vgg11_bn, vgg16);
const auto name_of_model = [](const auto& which) { return std::string(which.param.model); };
INSTANTIATE_TEST_SUITE_P(Models, GradientsOnCpu, all_models, name_of_model);

class GradientsOnGpu : public testing::TestWithParam<Case> {};

TEST_P(GradientsOnGpu, Float) {
    TRAINER_NEEDS_GPU();
    expect_pytorchs_step<float>(GetParam(), *make_cuda_backend({}), float_bounds);
}
TEST_P(GradientsOnGpu, Bf16) {
    TRAINER_NEEDS_GPU();
    expect_pytorchs_step<float>(GetParam(), *make_cuda_backend({.precision = Precision::bf16}),
                                bf16_bounds);
}

INSTANTIATE_TEST_SUITE_P(Models, GradientsOnGpu, all_models, name_of_model);

}  // namespace
}  // namespace trainer
