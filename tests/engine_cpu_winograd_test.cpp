// Winograd's convolutions against sums in double, over shapes that fill tiles, rows of tiles and
// groups of them or leave them ragged; and where the CPU engine takes them.
#include <gtest/gtest.h>

#ifdef TRAINER_HAS_ONEDNN

#include <cmath>
#include <cstring>
#include <memory>

#include "engine/cpu/winograd.h"
#include "tests/operation_bench.h"

namespace trainer {
namespace {

using cpu::Bf16;
using cpu::winograd::Geometry;
using operation_bench::relative_error;
using operation_bench::Values;

// [samples, channels / 16, height, width, 16]
int64_t place(int64_t channels, int64_t height, int64_t width, int64_t sample, int64_t channel,
              int64_t row, int64_t column) {
    return (((sample * (channels / 16) + channel / 16) * height + row) * width + column) * 16 +
           channel % 16;
}

// [out / 16, in / 16, 3, 3, 16 in, 16 out]
int64_t weight_place(const Geometry& g, int64_t out, int64_t in, int64_t tap) {
    return (((out / 16) * (g.inputs / 16) + in / 16) * 9 + tap) * 256 + in % 16 * 16 + out % 16;
}

// visit(place in the source, in the target, of the weight) for every product of a convolution.
template <typename Visit>
void for_each_product(const Geometry& g, Visit visit) {
    for (int64_t n = 0; n < g.samples; ++n)
        for (int64_t o = 0; o < g.outputs; ++o)
            for (int64_t y = 0; y < g.height; ++y)
                for (int64_t x = 0; x < g.width; ++x)
                    for (int64_t tap = 0; tap < 9; ++tap) {
                        const int64_t row = y + tap / 3 - 1, column = x + tap % 3 - 1;
                        if (row < 0 || column < 0 || row >= g.height || column >= g.width)
                            continue;
                        for (int64_t i = 0; i < g.inputs; ++i)
                            visit(place(g.inputs, g.height, g.width, n, i, row, column),
                                  place(g.outputs, g.height, g.width, n, o, y, x),
                                  weight_place(g, o, i, tap));
                    }
}

template <typename T>
std::vector<T> as(const Values& values) {
    std::vector<T> result(values.size());
    for (size_t i = 0; i < values.size(); ++i)
        cpu::assign(result[i], static_cast<float>(values[i]));
    return result;
}

template <typename T>
Values doubles(const std::vector<T>& values) {
    Values result;
    for (const T& value : values)
        result.push_back(static_cast<double>(cpu::to_float(value)));
    return result;
}

// Full of NaN, so that whatever is read before it is written shows.
struct Scratch {
    explicit Scratch(size_t size) : bytes(size + 64, std::byte{0xff}) {}
    std::byte* data() {
        void* start = bytes.data();
        size_t space = bytes.size();
        return static_cast<std::byte*>(std::align(64, 1, start, space));
    }
    std::vector<std::byte> bytes;
};

template <typename T>
void expect_convolutions(const Geometry& g, double tolerance) {
    SCOPED_TRACE(std::to_string(g.samples) + "x" + std::to_string(g.inputs) + "x" +
                 std::to_string(g.height) + "x" + std::to_string(g.width) + " to " +
                 std::to_string(g.outputs));
    constexpr bool bf16 = std::is_same_v<T, Bf16>;
    const int64_t pixels = g.samples * g.height * g.width;
    const Values source = operation_bench::random_values(pixels * g.inputs, 1, bf16);
    const Values gradient = operation_bench::random_values(pixels * g.outputs, 2, bf16);
    const Values weights = operation_bench::random_values(9 * g.inputs * g.outputs, 3, false);
    const Values bias = operation_bench::random_values(g.outputs, 4, false);
    Values target(gradient.size()), source_gradient(source.size()), weight_gradient(weights.size());
    Values bias_gradient(bias.size());
    for_each_product(g, [&](int64_t s, int64_t t, int64_t w) {
        const auto is = static_cast<size_t>(s), it = static_cast<size_t>(t),
                   iw = static_cast<size_t>(w);
        target[it] += source[is] * weights[iw];
        source_gradient[is] += gradient[it] * weights[iw];
        weight_gradient[iw] += gradient[it] * source[is];
    });
    for (int64_t n = 0; n < g.samples; ++n)
        for (int64_t o = 0; o < g.outputs; ++o)
            for (int64_t i = 0; i < g.height * g.width; ++i) {
                const auto at = static_cast<size_t>(
                    place(g.outputs, g.height, g.width, n, o, i / g.width, i % g.width));
                target[at] += bias[static_cast<size_t>(o)];
                bias_gradient[static_cast<size_t>(o)] += gradient[at];
            }

    const std::vector<T> x = as<T>(source), dy = as<T>(gradient);
    const std::vector<float> w = as<float>(weights), b = as<float>(bias);
    std::vector<T> y(target.size()), dx(source.size());
    std::vector<float> dw(weights.size()), db(bias.size());
    const int64_t taps = 9 * 256;
    cpu::winograd::convolve(
        g, x.data(),
        {.data = w.data(), .input_stride = taps, .output_stride = g.inputs / 16 * taps}, b.data(),
        y.data(), Scratch(cpu::winograd::convolve_scratch(g)).data());
    EXPECT_LE(relative_error(doubles(y), target), tolerance);

    const Geometry back{g.samples, g.outputs, g.inputs, g.height, g.width};
    std::vector<float> swapped(w.size());  // [..., 16 out, 16 in]
    for (size_t i = 0; i < w.size(); ++i)
        swapped[i / 256 * 256 + i % 16 * 16 + i / 16 % 16] = w[i];
    cpu::winograd::convolve(back, dy.data(),
                            {.data = swapped.data(),
                             .input_stride = g.inputs / 16 * taps,
                             .output_stride = taps,
                             .rotated = true},
                            nullptr, dx.data(),
                            Scratch(cpu::winograd::convolve_scratch(back)).data());
    EXPECT_LE(relative_error(doubles(dx), source_gradient), tolerance);

    cpu::winograd::weight_gradient(g, x.data(), dy.data(), dw.data(), db.data(),
                                   Scratch(cpu::winograd::weight_gradient_scratch(g)).data());
    EXPECT_LE(relative_error(doubles(dw), weight_gradient), 2e-6);
    EXPECT_LE(relative_error(doubles(db), bias_gradient), 2e-6);
}

class Winograd : public testing::TestWithParam<Geometry> {
  protected:
    void SetUp() override {
        if (!cpu::winograd::available())
            GTEST_SKIP() << "this build has no AVX-512";
    }
};

TEST_P(Winograd, agrees_with_plain_sums_in_fp32) {
    expect_convolutions<float>(GetParam(), 2e-6);
}

TEST_P(Winograd, agrees_with_plain_sums_on_bf16_activations) {
    expect_convolutions<Bf16>(GetParam(), 3e-3);  // half a bf16's last place is 2e-3
}

INSTANTIATE_TEST_SUITE_P(Shapes, Winograd,
                         testing::Values(Geometry{1, 16, 16, 4, 4}, Geometry{1, 16, 32, 1, 1},
                                         Geometry{1, 32, 16, 5, 7}, Geometry{3, 32, 48, 9, 13},
                                         Geometry{2, 48, 16, 30, 31}, Geometry{5, 16, 16, 32, 32},
                                         Geometry{15, 16, 48, 4, 3}, Geometry{2, 272, 32, 8, 9},
                                         Geometry{2, 16, 272, 9, 8}));

// What the engine says that it computes a convolution by.
std::string implementation(const CpuOptions& options, int64_t batch, const Shape& in,
                           const ConvolutionOptions& convolution) {
    Network network;
    network.convolution("conv", operation_bench::activation(network, in), convolution);
    const Node& node = network.node(network.output());
    operation_bench::Data data;
    data.inputs = {Values(static_cast<size_t>(batch * element_count(in)), 1.0)};
    data.output_gradients = {Values(static_cast<size_t>(batch * element_count(node.shape)), 1.0)};
    data.weights = Values(static_cast<size_t>(network.parameters().size()), 1.0);
    const auto backend = make_cpu_backend(options);
    return operation_bench::Bench(*backend, network, network.output(), batch, true)
        .run(data)
        .implementation;
}

TEST(WinogradInTheEngine, is_taken_where_it_is_faster) {
    if (!cpu::winograd::available())
        GTEST_SKIP() << "this build has no AVX-512";
    const CpuOptions options{.threads = 2, .pin = false};
    const std::string winograd = "winograd:avx512";
    EXPECT_EQ(implementation(options, 2, {16, 32, 32}, {.out_channels = 32}), winograd);
    EXPECT_EQ(implementation(options, 64, {64, 8, 8}, {.out_channels = 64, .bias = true}),
              winograd);
    for (const std::string& direct :
         {implementation({.threads = 2, .pin = false, .winograd = false}, 2, {16, 32, 32},
                         {.out_channels = 32}),
          implementation(options, 2, {16, 32, 32}, {.out_channels = 24}),  // half a block
          implementation(options, 2, {16, 32, 32}, {.out_channels = 32, .stride = 2}),
          implementation(options, 2, {16, 32, 32}, {.out_channels = 32, .kernel = 1, .padding = 0}),
          implementation(options, 8, {16, 8, 8}, {.out_channels = 32}),     // too few tiles
          implementation(options, 128, {16, 2, 2}, {.out_channels = 32})})  // mostly border
        EXPECT_EQ(direct.find("winograd"), std::string::npos) << direct;
}

}  // namespace
}  // namespace trainer

#endif
