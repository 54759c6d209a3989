// Whole steps on the CUDA engine: recorded or not, with slabs at home on the device or on the host,
// gradients that leave while backward goes on.
#include <gtest/gtest.h>

#include "models/models.h"
#include "tests/device_training.h"
#include "tests/gpu.h"

namespace trainer {
namespace {

using device_training::Training;

constexpr int64_t batch_size = 8, image_size = 32, classes = 10;

Training train_model(const std::string& model, const CudaOptions& options, SlabHome home,
                     int64_t range_elements = 0) {
    return {build_model(model, {.num_classes = classes, .height = image_size, .width = image_size}),
            options, home, batch_size, range_elements};
}

// Three models: batch norms and shortcuts, biases and dropout, nothing but a linear layer.
class CudaTraining : public testing::TestWithParam<const char*> {};

void expect_same_steps(Training& a, Training& b) {
    for (uint64_t step = 0; step < 6; ++step) {
        EXPECT_EQ(a.step(step), b.step(step)) << "at step " << step;
        ASSERT_EQ(a.values(a.parameters, slab::gradients), b.values(b.parameters, slab::gradients))
            << "at step " << step;
        ASSERT_EQ(a.values(a.statistics, slab::weights), b.values(b.statistics, slab::weights))
            << "at step " << step;
    }
}

TEST_P(CudaTraining, a_recorded_step_gives_the_bits_of_a_plain_one) {
    TRAINER_NEEDS_GPU();
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        Training recorded = train_model(GetParam(), {.precision = precision}, SlabHome::device);
        Training plain =
            train_model(GetParam(), {.precision = precision, .graphs = false}, SlabHome::device);
        expect_same_steps(recorded, plain);
    }
}

TEST_P(CudaTraining, slabs_on_the_host_give_the_bits_of_slabs_on_the_device) {
    TRAINER_NEEDS_GPU();
    Training device = train_model(GetParam(), {}, SlabHome::device);
    Training host = train_model(GetParam(), {}, SlabHome::host);
    expect_same_steps(device, host);
}

TEST_P(CudaTraining, two_runs_give_the_same_bits) {
    TRAINER_NEEDS_GPU();
    Training first = train_model(GetParam(), {.precision = Precision::bf16}, SlabHome::device);
    Training second = train_model(GetParam(), {.precision = Precision::bf16}, SlabHome::device);
    expect_same_steps(first, second);
}

TEST_P(CudaTraining, ranges_are_final_when_they_are_announced) {
    TRAINER_NEEDS_GPU();
    for (const SlabHome home : {SlabHome::device, SlabHome::host}) {
        Training whole = train_model(GetParam(), {}, home);
        Training ranges = train_model(GetParam(), {}, home, 2000);
        for (uint64_t step = 0; step < 5; ++step) {
            std::vector<float> seen(static_cast<size_t>(ranges.parameters.size()), -1.0F);
            std::vector<Range> announced;
            whole.step(step);
            ranges.step(step, [&](Range range) {
                announced.push_back(range);
                const auto g = ranges.parameters.slab<float>(slab::gradients);
                std::copy(g.begin() + range.first, g.begin() + range.end(),
                          seen.begin() + range.first);
            });
            EXPECT_EQ(announced, ranges.executor.ranges());
            EXPECT_EQ(seen, whole.values(whole.parameters, slab::gradients)) << "step " << step;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaTraining,
                         testing::Values("resnet20", "vgg11_bn", "lenet5", "linear"),
                         [](const auto& which) { return std::string(which.param); });

TEST(CudaEvaluation, agrees_with_the_reference_on_a_batch_with_padding) {
    TRAINER_NEEDS_GPU();
    const Network network = build_model(
        "resnet20", {.num_classes = classes, .height = image_size, .width = image_size});
    const golden::Batch batch = golden::make_batch(1, batch_size, image_size, classes);
    const StepInput input{.images = batch.images.data(), .labels = batch.labels.data(), .batch = 5};
    const auto evaluate = [&](Backend& backend) {
        const ParameterArena parameters(
            network.parameters(), DType::f32, {std::string(slab::weights)},
            [&](size_t bytes) { return backend.allocate_slabs(bytes, SlabHome::device); });
        ParameterArena statistics(
            network.statistics(), DType::f32, {std::string(slab::weights)},
            [&](size_t bytes) { return backend.allocate_slabs(bytes, SlabHome::device); });
        golden::fill_weights<float>(parameters);
        initialize_weights(statistics, 0);
        Executor executor(network, backend, parameters, statistics,
                          {.batch = batch_size, .training = false});
        std::pair<LossSums, std::vector<float>> result;
        for (int time = 0; time < 4; ++time)  // the last from a recording
            result = {executor.evaluate(input, time == 0), executor.logits()};
        return result;
    };
    const auto [expected, logits] = evaluate(*make_reference_backend(DType::f32));
    const auto [sums, rows] = evaluate(*make_cuda_backend({}));
    EXPECT_EQ(sums.samples, 5);
    EXPECT_NEAR(sums.loss, expected.loss, 1e-4 * expected.loss);
    EXPECT_EQ(sums.top1, expected.top1);
    ASSERT_EQ(rows.size(), logits.size());
    for (size_t i = 0; i < rows.size(); ++i)
        EXPECT_NEAR(rows[i], logits[i], 1e-3);
}

TEST(CudaErrors, a_label_out_of_range_and_a_layer_that_is_not_finite_are_named) {
    TRAINER_NEEDS_GPU();
    Training training = train_model("resnet20", {}, SlabHome::device);
    golden::Batch batch = training.images(0);
    const StepInput input{
        .images = batch.images.data(), .labels = batch.labels.data(), .batch = batch_size};
    batch.labels[3] = 10;
    EXPECT_THROW(training.executor.train(input), Error);
    batch.labels[3] = 0;
    const TensorInfo* const tensor = training.parameters.table().find("layer2.0.conv1.weight");
    training.parameters.tensor<float>(slab::weights, *tensor)[0] = INFINITY;
    EXPECT_FALSE(std::isfinite(training.executor.train(input).loss));
    EXPECT_EQ(training.executor.first_not_finite(), "layer2.0.conv1");
}

TEST(CudaErrors, more_memory_than_the_gpu_has_is_refused_in_one_line) {
    TRAINER_NEEDS_GPU();
    const auto backend = make_cuda_backend({});
    try {
        backend->allocate(size_t{1} << 50);
        FAIL() << "a pebibyte was given";
    } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("the GPU refused 1073741824 MiB of memory"), std::string::npos) << text;
        EXPECT_NE(text.find("take a smaller data.batch_size"), std::string::npos) << text;
    }
    EXPECT_EQ(backend->allocate(1024).bytes, 1024U);  // it goes on
}

}  // namespace
}  // namespace trainer
