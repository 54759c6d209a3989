// Whole networks on the CPU engine: gradients against the reference in double, the same for any
// number of lanes, the same bits twice, evaluation with padding.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/executor.h"
#include "engine/random.h"
#include "models/models.h"

namespace trainer {
namespace {

using Values = std::vector<double>;

struct Batch {
    std::vector<float> images;
    std::vector<int32_t> labels;
};

Batch random_batch(const Network& network, int64_t size) {
    Batch batch;
    Random random{3, 77};
    batch.images.resize(static_cast<size_t>(size * element_count(network.node(0).shape)));
    for (float& value : batch.images)
        value = static_cast<float>(random.normal());
    for (int64_t i = 0; i < size; ++i)
        batch.labels.push_back(
            static_cast<int32_t>(random.below(static_cast<uint64_t>(network.classes()))));
    return batch;
}

StepInput input_of(const Batch& batch, int64_t step = 0) {
    StepInput input;
    input.images = batch.images.data();
    input.labels = batch.labels.data();
    input.batch = static_cast<int64_t>(batch.labels.size());
    input.seed = 9;
    input.step = step;
    return input;
}

// A network with its parameters on one backend.
class Model {
  public:
    Model(const Network& network, std::unique_ptr<Backend> backend)
        : backend_(std::move(backend)),
          network_(network),
          parameters(network.parameters(), backend_->parameter_type(), {"weights", "gradients"}),
          statistics(network.statistics(), backend_->parameter_type(), {"weights"}) {
        initialize_weights(parameters, 1);
        initialize_weights(statistics, 1);
        // Batch norms that do something: their initial weights hide what they are multiplied with.
        Random random{5, 77};
        for (const TensorInfo& tensor : network.parameters().tensors())
            if (!tensor.decay)
                for (int64_t i = 0; i < tensor.size(); ++i)
                    add(tensor.offset + i, 0.1 * random.normal());
    }

    Executor& executor(const ExecutorOptions& options) {
        executor_ =
            std::make_unique<Executor>(network_, *backend_, parameters, statistics, options);
        return *executor_;
    }

    Values gradients() const { return values(parameters, slab::gradients); }
    Values running() const { return values(statistics, slab::weights); }

  private:
    static Values values(const ParameterArena& arena, std::string_view name) {
        if (arena.type() == DType::f64) {
            const auto slab = arena.slab<double>(name);
            return {slab.begin(), slab.end()};
        }
        const auto slab = arena.slab<float>(name);
        return {slab.begin(), slab.end()};
    }

    void add(int64_t at, double value) {
        const auto i = static_cast<size_t>(at);
        if (parameters.type() == DType::f64)
            parameters.slab<double>(slab::weights)[i] += static_cast<float>(value);
        else
            parameters.slab<float>(slab::weights)[i] += static_cast<float>(value);
    }

    std::unique_ptr<Backend> backend_;
    const Network& network_;
    std::unique_ptr<Executor> executor_;

  public:
    ParameterArena parameters, statistics;
};

std::unique_ptr<Backend> cpu(int lanes, Precision precision = Precision::fp32) {
    return make_cpu_backend({.threads = lanes, .precision = precision, .pin = false});
}

double relative_error(const Values& value, const Values& truth) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < truth.size(); ++i) {
        error += (value[i] - truth[i]) * (value[i] - truth[i]);
        norm += truth[i] * truth[i];
    }
    return std::sqrt(error / norm);
}

struct Outcome {
    LossSums sums;
    Values gradients, running;
};

Outcome train_once(const Network& network, std::unique_ptr<Backend> backend, int64_t batch,
                   double smoothing = 0.1) {
    Model model(network, std::move(backend));
    Executor& executor =
        model.executor({.batch = batch, .training = true, .label_smoothing = smoothing});
    const Batch data = random_batch(network, batch);
    Outcome outcome;
    outcome.sums = executor.train(input_of(data));
    outcome.gradients = model.gradients();
    outcome.running = model.running();
    return outcome;
}

struct NetworkCase {
    std::string name;
    int64_t batch = 6;
    double bf16_error = 0.1;  // of the gradient vector
    double fp32_error = 2e-3;
};

// A rounding error that takes one activation over a ReLU's edge costs 2e-3 here.
const NetworkCase resnet20{.name = "resnet20", .bf16_error = 0.2, .fp32_error = 6e-3};

class CpuNetwork : public testing::TestWithParam<NetworkCase> {
  protected:
    const Network network_ = build_model(GetParam().name, usual_options(GetParam().name));
    const int64_t batch_ = GetParam().batch;
};

TEST_P(CpuNetwork, gradients_agree_with_the_reference) {
    const Outcome truth = train_once(network_, make_reference_backend(DType::f64), batch_);
    for (const int lanes : {1, 2, 3}) {
        SCOPED_TRACE(lanes);
        const Outcome fp32 = train_once(network_, cpu(lanes), batch_);
        EXPECT_NEAR(fp32.sums.loss / truth.sums.loss, 1, 2e-6);
        EXPECT_EQ(fp32.sums.samples, batch_);
        EXPECT_LE(relative_error(fp32.gradients, truth.gradients), GetParam().fp32_error);
        if (!truth.running.empty()) {
            EXPECT_LE(relative_error(fp32.running, truth.running), 1e-5);
        }
        RecordProperty("fp32_error_" + std::to_string(lanes),
                       std::to_string(relative_error(fp32.gradients, truth.gradients)));
    }
    try {
        const Outcome bf16 = train_once(network_, cpu(2, Precision::bf16), batch_);
        EXPECT_NEAR(bf16.sums.loss / truth.sums.loss, 1, 1e-2);
        EXPECT_LE(relative_error(bf16.gradients, truth.gradients), GetParam().bf16_error);
    } catch (const UsageError&) {
        // A processor without bf16.
    }
}

TEST(CpuNetwork, without_winograd_gradients_are_nearer) {
    const Network network = build_model("resnet20", usual_options("resnet20"));
    const Outcome truth = train_once(network, make_reference_backend(DType::f64), 6);
    const Outcome fp32 =
        train_once(network, make_cpu_backend({.threads = 2, .pin = false, .winograd = false}), 6);
    EXPECT_LE(relative_error(fp32.gradients, truth.gradients), 2e-3);
}

TEST_P(CpuNetwork, lanes_change_the_order_of_sums_only) {
    const Outcome one = train_once(network_, cpu(1), batch_);
    for (const int lanes : {2, 3, 8}) {  // 8: more lanes than samples
        SCOPED_TRACE(lanes);
        const Outcome more = train_once(network_, cpu(lanes), batch_);
        EXPECT_NEAR(more.sums.loss / one.sums.loss, 1, 1e-6);
        EXPECT_EQ(more.sums.top1, one.sums.top1);
        EXPECT_EQ(more.sums.top5, one.sums.top5);
        EXPECT_LE(relative_error(more.gradients, one.gradients), GetParam().fp32_error);
        if (!one.running.empty()) {
            EXPECT_LE(relative_error(more.running, one.running), 1e-5);
        }
    }
}

TEST_P(CpuNetwork, gives_the_same_bits_twice) {
    for (const int lanes : {1, 2, 3}) {
        SCOPED_TRACE(lanes);
        const Outcome first = train_once(network_, cpu(lanes), batch_);
        for (int again = 0; again < 3; ++again) {
            const Outcome second = train_once(network_, cpu(lanes), batch_);
            EXPECT_EQ(first.sums, second.sums);
            EXPECT_EQ(first.gradients, second.gradients);
            EXPECT_EQ(first.running, second.running);
        }
    }
}

TEST_P(CpuNetwork, evaluates_a_padded_batch) {
    const Batch all = random_batch(network_, batch_);
    for (const int64_t samples : {batch_, batch_ - 1, int64_t{1}}) {
        Model truth(network_, make_reference_backend(DType::f64));
        StepInput input = input_of(all);
        input.batch = samples;
        const ExecutorOptions options{.batch = batch_, .training = false};
        const LossSums expected = truth.executor(options).evaluate(input);
        for (const int lanes : {1, 2, 3}) {
            SCOPED_TRACE(std::to_string(samples) + " samples, lanes " + std::to_string(lanes));
            Model model(network_, cpu(lanes));
            Executor& executor = model.executor(options);
            for (const bool reload : {true, false}) {
                const LossSums sums = executor.evaluate(input, reload);
                EXPECT_NEAR(sums.loss / expected.loss, 1, 1e-5);
                EXPECT_EQ(sums.top1, expected.top1);
                EXPECT_EQ(sums.top5, expected.top5);
                EXPECT_EQ(sums.samples, samples);
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Models, CpuNetwork,
                         testing::Values(resnet20, NetworkCase{.name = "lenet5"},
                                         NetworkCase{.name = "mlp"}, NetworkCase{.name = "linear"}),
                         [](const auto& instance) { return instance.param.name; });

TEST(CpuNetwork, a_wrong_label_is_an_error_on_every_lane) {
    const Network network = build_model("linear", usual_options("linear"));
    Model model(network, cpu(3));
    Executor& executor = model.executor({.batch = 6});
    Batch batch = random_batch(network, 6);
    batch.labels[4] = 10;
    EXPECT_THROW(executor.train(input_of(batch)), Error);
    batch.labels[4] = 9;
    EXPECT_EQ(executor.train(input_of(batch)).samples, 6);
}

// Dropout draws the reference's masks, anew at each step: with equal masks equal gradients.
TEST(CpuNetwork, dropout_is_a_function_of_seed_step_and_sample) {
    Network network;
    NodeId x = network.input(3, 8, 8);
    x = network.relu(network.convolution("conv", x, {.out_channels = 10}));
    x = network.dropout("d1", x, 0.4);
    x = network.relu(network.linear("fc1", x, 50));
    network.linear("fc2", network.dropout("d2", x, 0.5), 10);
    Model truth(network, make_reference_backend(DType::f64));
    Executor& reference = truth.executor({.batch = 5});
    Model model(network, cpu(2));
    Executor& executor = model.executor({.batch = 5});
    const Batch batch = random_batch(network, 5);
    Values last;
    for (const int64_t step : {0, 1, 2}) {
        const LossSums expected = reference.train(input_of(batch, step));
        EXPECT_NEAR(executor.train(input_of(batch, step)).loss / expected.loss, 1, 1e-6);
        EXPECT_LE(relative_error(model.gradients(), truth.gradients()), 1e-5);
        EXPECT_NE(model.gradients(), last);
        last = model.gradients();
    }
}

// LeNet's first layer in bf16 once took oneDNN's reference code backward, eighty times slower.
TEST(CpuBackend, no_layer_falls_to_reference_code) {
#if !defined(__AVX512BF16__)
    GTEST_SKIP() << "oneDNN has fast code for every shape with AVX-512 and bf16 only";
#endif
    for (const char* name : {"lenet5", "resnet20", "resnet18", "vgg11_bn"})
        for (const Precision precision : {Precision::fp32, Precision::bf16}) {
            const Network network = build_model(name, {});
            const auto backend =
                make_cpu_backend({.threads = 1, .precision = precision, .pin = false});
            const ParameterArena parameters(network.parameters(), DType::f32,
                                            {"weights", "gradients"});
            const ParameterArena statistics(network.statistics(), DType::f32, {"weights"});
            const Executor executor(network, *backend, parameters, statistics, {.batch = 4});
            for (const OperationTime& operation : executor.times())
                EXPECT_EQ(operation.implementation.find("ref"), std::string::npos)
                    << name << " " << operation.name << ": " << operation.implementation;
        }
}

TEST(CpuBackend, describes_itself) {
    const auto backend = cpu(2);
    EXPECT_NE(backend->description().find("oneDNN"), std::string::npos);
    EXPECT_NE(backend->description().find("2 threads"), std::string::npos);
    EXPECT_EQ(backend->lanes().count(), 2);
}

}  // namespace
}  // namespace trainer
