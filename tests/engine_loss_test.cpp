// Softmax cross entropy of the reference backend, and gradients of whole networks through the
// executor: the wiring that no layer alone shows.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "engine/executor.h"
#include "engine/random.h"
#include "models/models.h"

namespace trainer {
namespace {

// Logits [batch, classes] with their labels, and what the loss makes of them.
class LossBench {
  public:
    LossBench(std::vector<std::vector<double>> rows, std::vector<int32_t> labels,
              double smoothing = 0)
        : labels_(std::move(labels)), backend_(make_reference_backend(DType::f64)) {
        for (const auto& row : rows)
            logits.insert(logits.end(), row.begin(), row.end());
        const auto classes = static_cast<int64_t>(rows[0].size());
        gradient.assign(logits.size(), 1e9);
        logits_ = {reinterpret_cast<std::byte*>(logits.data()),
                   {classes},
                   DType::f64,
                   classes,
                   classes * 8};
        gradient_ = logits_;
        gradient_.data = reinterpret_cast<std::byte*>(gradient.data());
        step.labels = labels_.data();
        step.batch = static_cast<int64_t>(labels_.size());
        training_ = backend_->build_loss(logits_, &gradient_, step, smoothing);
        evaluation_ = backend_->build_loss(logits_, nullptr, step, smoothing);
    }

    LossSums run(int64_t mean_over) {
        Lane lane(backend_->lanes(), 0, 1);
        return training_->run(lane, mean_over);
    }
    LossSums evaluate() {
        Lane lane(backend_->lanes(), 0, 1);
        return evaluation_->run(lane, 1);
    }

    std::vector<double> logits, gradient;
    StepInput step;

  private:
    std::vector<int32_t> labels_;
    std::unique_ptr<Backend> backend_;
    Buffer logits_, gradient_;
    std::unique_ptr<Loss> training_, evaluation_;
};

TEST(Loss, EqualLogitsCostLogOfTheClasses) {
    LossBench bench({{3, 3, 3, 3}, {-700, -700, -700, -700}}, {0, 2});
    const LossSums sums = bench.run(2);
    EXPECT_NEAR(sums.loss, 2 * std::log(4.0), 1e-12);
    EXPECT_EQ(sums.samples, 2);
    const std::vector<double> expected{-0.375, 0.125, 0.125, 0.125, 0.125, 0.125, -0.375, 0.125};
    for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(bench.gradient[i], expected[i], 1e-15);
}

TEST(Loss, LargeLogitsDoNotOverflow) {
    LossBench bench({{1000, 0, -1000}}, {1});
    EXPECT_NEAR(bench.run(1).loss, 1000, 1e-9);
    EXPECT_NEAR(bench.gradient[0], 1, 1e-12);
    EXPECT_NEAR(bench.gradient[1], -1, 1e-12);
}

TEST(Loss, SmoothingIsItsFormula) {
    const double z[] = {0.5, -1, 2};
    LossBench bench({{z[0], z[1], z[2]}}, {1}, 0.3);
    const double sum = std::exp(z[0]) + std::exp(z[1]) + std::exp(z[2]);
    const double target[] = {0.1, 0.8, 0.1};
    double loss = 0;
    for (int k = 0; k < 3; ++k)
        loss -= target[k] * std::log(std::exp(z[k]) / sum);
    EXPECT_NEAR(bench.run(5).loss, loss, 1e-12);
    for (size_t k = 0; k < 3; ++k)
        EXPECT_NEAR(bench.gradient[k], (std::exp(z[k]) / sum - target[k]) / 5, 1e-15);
}

TEST(Loss, CountsHitsAndBreaksTiesByClass) {
    LossBench bench(
        {
            {0, 9, 1, 2, 3, 4, 5},  // label 1: first
            {0, 9, 1, 9, 3, 4, 5},  // label 3: ties with class 1, which goes first
            {7, 6, 5, 4, 3, 2, 1},  // label 4: fifth
            {7, 6, 5, 4, 3, 2, 1},  // label 5: sixth
            {1, 1, 1, 1, 1, 1, 1},  // label 4: fifth of equals
            {1, 1, 1, 1, 1, 1, 1},  // label 5: sixth of equals
            {1, 1, 1, 1, 1, 1, 1},  // label 0: first of equals
        },
        {1, 3, 4, 5, 4, 5, 0});
    const LossSums sums = bench.evaluate();
    EXPECT_EQ(sums.top1, 2);
    EXPECT_EQ(sums.top5, 5);
    EXPECT_EQ(sums.samples, 7);
    EXPECT_EQ(bench.gradient[0], 1e9) << "an evaluation writes no gradient";
}

TEST(Loss, NotANumberIsWrong) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    LossBench bench({{nan, nan, nan}, {5, nan, 1}}, {0, 0});
    const LossSums sums = bench.evaluate();
    EXPECT_EQ(sums.top1, 0);
    EXPECT_EQ(sums.top5, 0);
    EXPECT_EQ(sums.samples, 2);
    EXPECT_TRUE(std::isnan(sums.loss));
}

TEST(Loss, PaddingCountsNothing) {
    LossBench bench({{1, 2}, {3, 1}, {9, 0}}, {1, 0, 1});
    bench.step.batch = 2;
    const LossSums sums = bench.evaluate();
    EXPECT_EQ(sums.samples, 2);
    EXPECT_EQ(sums.top1, 2);
    EXPECT_NEAR(sums.loss, std::log(1 + std::exp(-1.0)) + std::log(1 + std::exp(-2.0)), 1e-12);
}

TEST(Loss, RefusesALabelThatIsNoClass) {
    EXPECT_THROW(LossBench({{1, 2}}, {2}).evaluate(), Error);
    EXPECT_THROW(LossBench({{1, 2}}, {-1}).evaluate(), Error);
}

// A network with random data behind an executor of the reference backend.
template <typename T>
class NetworkBench {
  public:
    NetworkBench(Network network, int64_t batch, double smoothing = 0, bool training = true)
        : network_(std::move(network)),
          backend_(make_reference_backend(sizeof(T) == 8 ? DType::f64 : DType::f32)),
          parameters(network_.parameters(), backend_->parameter_type(), {"weights", "gradients"}),
          statistics(network_.statistics(), backend_->parameter_type(), {"weights"}),
          executor(network_, *backend_, parameters, statistics,
                   {.batch = batch, .training = training, .label_smoothing = smoothing}) {
        initialize_weights(parameters, 7);
        initialize_weights(statistics, 7);
        Random random{5, 5};
        // BN gains and all biases off their constants, so that their gradients are as general.
        for (const TensorInfo& tensor : network_.parameters().tensors())
            if (tensor.shape.size() == 1)
                for (T& value : parameters.template tensor<T>(slab::weights, tensor))
                    value += static_cast<T>(0.2 * random.normal());
        images_.resize(static_cast<size_t>(batch * element_count(network_.node(0).shape)));
        for (float& pixel : images_)
            pixel = static_cast<float>(random.normal());
        for (int64_t i = 0; i < batch; ++i)
            labels_.push_back(
                static_cast<int32_t>(random.below(static_cast<uint64_t>(network_.classes()))));
        input = {.images = images_.data(), .labels = labels_.data(), .batch = batch, .seed = 3};
    }

    std::span<T> weights() { return parameters.template slab<T>(slab::weights); }
    std::span<T> gradients() { return parameters.template slab<T>(slab::gradients); }

  private:
    Network network_;
    std::unique_ptr<Backend> backend_;
    std::vector<float> images_;
    std::vector<int32_t> labels_;

  public:
    ParameterArena parameters, statistics;
    Executor executor;
    StepInput input;
};

void expect_network_gradients(const Network& network, int64_t batch, double smoothing,
                              int64_t mean_over) {
    NetworkBench<double> bench(network, batch, smoothing);
    bench.executor.train(bench.input, mean_over);
    const std::vector<double> gradient(bench.gradients().begin(), bench.gradients().end());
    const auto mean_loss = [&] {
        return bench.executor.train(bench.input, mean_over).loss /
               static_cast<double>(mean_over > 0 ? mean_over : batch);
    };
    const size_t every = std::max<size_t>(1, gradient.size() / 300);
    double norm = 0;
    for (size_t i = 0; i < gradient.size(); i += every) {
        constexpr double h = 1e-5;
        double& weight = bench.weights()[i];
        const double kept = weight;
        weight = kept + h;
        const double above = mean_loss();
        weight = kept - h;
        const double below = mean_loss();
        weight = kept;
        const double numeric = (above - below) / (2 * h);
        ASSERT_NEAR(gradient[i], numeric, 1e-7 * std::max(1.0, std::abs(numeric)))
            << "parameter " << i;
        norm += numeric * numeric;
    }
    EXPECT_GT(norm, 1e-6) << "gradients that are all zero prove nothing";
}

TEST(NetworkGradients, ResidualBlocksWithPaddedShortcuts) {
    expect_network_gradients(
        resnet_cifar(8, {.num_classes = 7, .channels = 2, .height = 8, .width = 6}), 3, 0.1, 0);
}

TEST(NetworkGradients, BottlenecksWithProjections) {
    Network net;
    NodeId x = net.input(2, 7, 7);
    x = net.max_pool(net.convolution("stem", x, {.out_channels = 4}), 3, 2, 1);
    const NodeId shortcut = net.batch_norm(
        "down.1",
        net.convolution("down.0", x, {.out_channels = 6, .kernel = 1, .stride = 2, .padding = 0}),
        {});
    NodeId y = net.convolution("a", x, {.out_channels = 3, .kernel = 1, .padding = 0});
    y = net.batch_norm("a.bn", y, {.relu = true});
    y = net.convolution("b", y, {.out_channels = 6, .stride = 2});
    y = net.batch_norm("b.bn", y, {.relu = true, .residual = shortcut});
    // A second block, whose input goes three ways.
    NodeId z = net.convolution("c", y, {.out_channels = 6});
    z = net.batch_norm("c.bn", z, {.relu = true, .residual = y});
    z = net.batch_norm("d.bn", z, {.relu = true, .residual = y});
    net.linear("fc", net.global_average_pool(z), 5);
    expect_network_gradients(net, 3, 0, 8);
}

TEST(NetworkGradients, PlainNetworks) {
    expect_network_gradients(lenet5({.num_classes = 10, .channels = 1, .height = 28, .width = 28}),
                             2, 0, 0);
    expect_network_gradients(linear_classifier({.num_classes = 3, .height = 4, .width = 5}), 4, 0.2,
                             0);
    Network net;
    NodeId x = net.linear("fc1", net.input(2, 3, 3), 30);
    x = net.dropout("drop", net.relu(x), 0.5);
    net.linear("fc2", x, 6);
    expect_network_gradients(net, 5, 0, 0);
}

TEST(Reference, FloatAgreesWithDouble) {
    const Network network = resnet_cifar(20, {});
    NetworkBench<double> exact(network, 4);
    NetworkBench<float> rounded(network, 4);
    for (size_t i = 0; i < exact.weights().size(); ++i)
        exact.weights()[i] = static_cast<double>(rounded.weights()[i]);
    const LossSums expected = exact.executor.train(exact.input);
    EXPECT_NEAR(rounded.executor.train(rounded.input).loss, expected.loss, 1e-4);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < exact.gradients().size(); ++i) {
        const double g = exact.gradients()[i];
        difference += std::pow(static_cast<double>(rounded.gradients()[i]) - g, 2);
        norm += g * g;
    }
    EXPECT_LE(std::sqrt(difference / norm), 2e-3);
    EXPECT_GT(norm, 0);
}

TEST(Reference, InferenceOfAPartialBatchIgnoresThePadding) {
    const Network network = resnet_cifar(8, {.height = 8, .width = 8});
    NetworkBench<double> whole(network, 4, 0, false), part(network, 4, 0, false);
    part.input.batch = 3;
    LossSums three = part.executor.evaluate(part.input);
    const LossSums four = whole.executor.evaluate(whole.input);
    EXPECT_EQ(three.samples, 3);
    EXPECT_EQ(four.samples, 4);
    std::vector<float> logits = whole.executor.logits();
    logits.resize(30);
    EXPECT_EQ(part.executor.logits(), logits);
    EXPECT_LT(three.loss, four.loss);
}

}  // namespace
}  // namespace trainer
