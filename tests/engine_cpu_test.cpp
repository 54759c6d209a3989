// The CPU engine's operations against the reference backend in double: one struct an operation,
// each with its own tolerance, over shapes, batches, lanes and both precisions.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/operation_bench.h"

namespace trainer {
namespace {

using namespace operation_bench;

class CpuOperation : public OperationTest {
  protected:
    static void check_implementation(const Result& result) {
        // Older processors have gaps, which the engine reports.
        if (make_cpu_backend({.threads = 1, .pin = false})->description().find("avx512") !=
            std::string::npos) {
            EXPECT_EQ(result.implementation.find("ref"), std::string::npos)
                << result.implementation;
        }
    }

    void check_precision(Precision precision, double tolerance) const {
        for (const int64_t batch : {1, 5, 8}) {
            const Data data = random_data(batch, precision == Precision::bf16);
            for (const bool training : {true, false}) {
                const Result truth = reference(data, batch, training);
                for (const int lanes : {1, 2, 3}) {
                    SCOPED_TRACE("batch " + std::to_string(batch) + ", lanes " +
                                 std::to_string(lanes) + (training ? "" : ", inference"));
                    const auto backend =
                        make_cpu_backend({.threads = lanes, .precision = precision, .pin = false});
                    const Result result = Bench(*backend, network_, id_, batch, training).run(data);
                    compare(result, truth, tolerance);
                    check_implementation(result);
                }
            }
        }
    }
};

TEST_P(CpuOperation, agrees_with_the_reference_in_fp32) {
    check_precision(Precision::fp32, GetParam().fp32);
}

bool has_bf16() {
    try {
        make_cpu_backend({.threads = 1, .precision = Precision::bf16, .pin = false});
        return true;
    } catch (const UsageError&) {
        return false;
    }
}

TEST_P(CpuOperation, agrees_with_the_reference_in_bf16) {
    if (!has_bf16())
        GTEST_SKIP() << "this processor has no bf16";
    check_precision(Precision::bf16, GetParam().bf16);
}

// Sums of plain squares would lose the variance behind a mean a thousand times as large.
TEST(CpuBatchNorm, keeps_a_small_variance_around_a_large_mean) {
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
    const auto reference = make_reference_backend(DType::f64);
    const Result truth = Bench(*reference, network, id, 6, true).run(data);
    for (const int lanes : {1, 3}) {
        const auto backend = make_cpu_backend({.threads = lanes, .pin = false});
        const Result result = Bench(*backend, network, id, 6, true).run(data);
        EXPECT_LE(relative_error(result.output, truth.output), 5e-5);  // the mean as a float
        EXPECT_LE(relative_error(result.statistics, truth.statistics), 1e-6);
        EXPECT_LE(relative_error(result.input_gradients[0], truth.input_gradients[0]), 5e-5);
        EXPECT_LE(relative_error(result.weight_gradients, truth.weight_gradients), 5e-5);
    }
}

INSTANTIATE_TEST_SUITE_P(All, CpuOperation, testing::ValuesIn(all_cases()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace trainer
