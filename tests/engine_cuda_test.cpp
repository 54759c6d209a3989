// The CUDA engine's operations against the reference backend in double, the same cases as the CPU
// engine's; and its arithmetic over slabs against the processor's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "engine/slab_math.h"
#include "tests/gpu.h"
#include "tests/operation_bench.h"

namespace trainer {
namespace {

using namespace operation_bench;

class CudaOperation : public OperationTest {
  protected:
    void check(const CudaOptions& options, double tolerance) const {
        const auto backend = make_cuda_backend(options);
        for (const int64_t batch : {1, 5, 8}) {
            const Data data = random_data(batch, options.precision == Precision::bf16);
            for (const bool training : {true, false}) {
                SCOPED_TRACE("batch " + std::to_string(batch) + (training ? "" : ", inference"));
                const Result truth = reference(data, batch, training);
                compare(Bench(*backend, network_, id_, batch, training).run(data), truth,
                        tolerance);
            }
        }
    }
};

TEST_P(CudaOperation, agrees_with_the_reference_in_fp32) {
    TRAINER_NEEDS_GPU();
    check({.precision = Precision::fp32}, 1e-4);
}

TEST_P(CudaOperation, agrees_with_the_reference_in_tf32) {
    TRAINER_NEEDS_GPU();
    check({.precision = Precision::fp32, .tf32 = true}, 5e-3);
}

TEST_P(CudaOperation, agrees_with_the_reference_in_bf16) {
    TRAINER_NEEDS_GPU();
    check({.precision = Precision::bf16}, 2e-2);
}

TEST_P(CudaOperation, gives_the_same_bits_twice) {
    TRAINER_NEEDS_GPU();
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        const Data data = random_data(8, precision == Precision::bf16);
        const auto backend = make_cuda_backend({.precision = precision});
        const Result first = Bench(*backend, network_, id_, 8, true).run(data);
        const Result second = Bench(*backend, network_, id_, 8, true).run(data);
        EXPECT_EQ(first.output, second.output);
        EXPECT_EQ(first.input_gradients, second.input_gradients);
        EXPECT_EQ(own_gradients(first), own_gradients(second));
        EXPECT_EQ(first.statistics, second.statistics);
    }
}

INSTANTIATE_TEST_SUITE_P(All, CudaOperation, testing::ValuesIn(all_cases()),
                         [](const auto& instance) { return instance.param.name; });

TEST(CudaBatchNorm, keeps_a_small_variance_around_a_large_mean) {
    TRAINER_NEEDS_GPU();
    Network network;
    network.batch_norm("bn", activation(network, {16, 9, 9}), {});
    const NodeId id = network.output();
    Data data;
    data.inputs = {random_values(6 * 16 * 81, 1, false)};
    for (double& value : data.inputs[0])
        value = static_cast<double>(static_cast<float>(1000 + value));
    data.output_gradients = {random_values(6 * 16 * 81, 2, false)};
    data.weights = Values(32, 1.0);
    data.statistics = Values(32, 1.0);
    const Result truth = Bench(*make_reference_backend(DType::f64), network, id, 6, true).run(data);
    const auto backend = make_cuda_backend({});
    const Result result = Bench(*backend, network, id, 6, true).run(data);
    EXPECT_LE(relative_error(result.output, truth.output), 5e-5);  // the mean as a float
    EXPECT_LE(relative_error(result.statistics, truth.statistics), 1e-6);
    EXPECT_LE(relative_error(result.input_gradients[0], truth.input_gradients[0]), 5e-5);
    EXPECT_LE(relative_error(result.weight_gradients, truth.weight_gradients), 5e-5);
}

// A block that sums many rows hands its sums to the last one: more blocks than one, more channels
// than a block has, and counts that nothing divides.
TEST(CudaBatchNorm, sums_over_many_blocks) {
    TRAINER_NEEDS_GPU();
    for (const Shape& shape : {Shape{16, 61, 67}, Shape{520, 13, 11}, Shape{4, 33, 31}}) {
        Network network;
        network.batch_norm("bn", activation(network, shape), {.relu = true});
        const int64_t count = 9 * element_count(shape);
        Data data;
        data.inputs = {random_values(count, 1, false)};
        data.output_gradients = {random_values(count, 2, false)};
        data.weights = random_values(2 * shape[0], 3, false);
        data.statistics = Values(static_cast<size_t>(2 * shape[0]), 1.0);
        const NodeId id = network.output();
        const Result truth =
            Bench(*make_reference_backend(DType::f64), network, id, 9, true).run(data);
        const auto backend = make_cuda_backend({});
        const Result result = Bench(*backend, network, id, 9, true).run(data);
        EXPECT_LE(relative_error(result.output, truth.output), 1e-5);
        EXPECT_LE(relative_error(result.statistics, truth.statistics), 1e-6);
        EXPECT_LE(relative_error(result.input_gradients[0], truth.input_gradients[0]), 1e-4);
        EXPECT_LE(relative_error(result.weight_gradients, truth.weight_gradients), 1e-4);
    }
}

constexpr int64_t linear_batch = 3;

Network linear_layer(int64_t outputs) {
    Network network;
    network.linear("fc", activation(network, {3, 2, 2}), outputs);
    return network;
}
Data linear_data(int64_t outputs) {
    return {.inputs = {random_values(linear_batch * 12, 1, false)},
            .output_gradients = {random_values(linear_batch * outputs, 2, false)},
            .weights = random_values(13 * outputs, 3, false),
            .statistics = {}};
}

// More classes than a block has threads, or a fixed number of blocks could sum; and no vectors.
TEST(CudaLinear, sums_the_gradients_of_very_many_biases) {
    TRAINER_NEEDS_GPU();
    const Network network = linear_layer(70'001);
    const Data data = linear_data(70'001);
    const auto run = [&](Backend& backend) {
        return Bench(backend, network, network.output(), linear_batch, true).run(data);
    };
    const Result truth = run(*make_reference_backend(DType::f64));
    const Result result = run(*make_cuda_backend({}));
    EXPECT_LE(relative_error(result.output, truth.output), 1e-5);
    EXPECT_LE(relative_error(result.input_gradients[0], truth.input_gradients[0]), 1e-5);
    EXPECT_LE(relative_error(result.weight_gradients, truth.weight_gradients), 1e-5);
}

// On the emulated device, which finds what is left behind when the backend goes.
TEST(CudaLinear, without_an_algorithm_is_an_error_that_leaves_nothing_behind) {
    TRAINER_NEEDS_GPU();
    const auto backend = make_cuda_backend({});
    if (backend->description().find("emulated device") == std::string::npos)
        GTEST_SKIP() << "needs the emulated device, whose cuBLAS can be without algorithms";
    const Network network = linear_layer(10);
    Bench bench(*backend, network, network.output(), linear_batch, true);
    setenv("TRAINER_EMULATED_WITHOUT_PRODUCTS", "1", 1);
    EXPECT_THROW(bench.run(linear_data(10)), Error);
    unsetenv("TRAINER_EMULATED_WITHOUT_PRODUCTS");
}

// The functors of engine/elementwise.h: on the device as in the processor's loop, bit by bit.
TEST(CudaSlabMath, updates_give_the_processors_bits) {
    TRAINER_NEEDS_GPU();
    const auto backend = make_cuda_backend({});
    SlabMath* const math = backend->slab_math();
    if (math == nullptr)
        GTEST_SKIP() << "this GPU has no managed memory, updates run on the processor";
    constexpr int64_t count = 100'003;
    const Memory memory = backend->allocate_slabs(3 * count * sizeof(float), SlabHome::device);
    auto* const device = reinterpret_cast<float*>(memory.data.get());
    const auto compare = [&](const auto& update) {
        const Values drawn = random_values(3 * count, 9, false);
        std::vector<float> host(drawn.begin(), drawn.end());
        std::copy(host.begin(), host.end(), device);
        math->update(update, device, device + count, device + 2 * count, count);
        math->wait();
        for (int64_t i = 0; i < count; ++i)
            update(host[static_cast<size_t>(i)], host[static_cast<size_t>(count + i)],
                   host[static_cast<size_t>(2 * count + i)]);
        EXPECT_EQ(std::memcmp(host.data(), device, 3 * count * sizeof(float)), 0);
    };
    compare(MomentumUpdate<float>{0.1F, 0.9F, 1e-4F});
    compare(NesterovUpdate<float>{0.1F, 0.9F, 1e-4F});
    compare(LarsUpdate<float>{0.1F, 0.9F, 1e-4F});
    double squares = 0;
    for (int64_t i = 0; i < count; ++i)
        squares += static_cast<double>(device[i]) * static_cast<double>(device[i]);
    EXPECT_NEAR(math->sum_of_squares(device, count), squares, 1e-9 * squares);
    const float third = device[2];
    math->scale(device, 0.3F, count);
    math->wait();
    EXPECT_EQ(device[2], third * 0.3F);
}

}  // namespace
}  // namespace trainer
