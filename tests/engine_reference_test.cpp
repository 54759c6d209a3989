// The reference backend's layers: values against their definition, gradients against central
// finite differences in double.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "engine/backend.h"
#include "engine/random.h"

namespace trainer {
namespace {

using Values = std::vector<double>;

Values random_values(size_t count, uint64_t seed) {
    Random random{seed, 77};
    Values result(count);
    for (double& value : result)
        value = random.normal();
    return result;
}

// The last node of a network alone, its inputs and the gradient of its output filled by hand.
class LayerBench {
  public:
    LayerBench(const std::function<void(Network&)>& describe, int64_t batch, bool training = true)
        : backend_(make_reference_backend(DType::f64)) {
        describe(network_);
        const Node& node = network_.node(network_.output());
        parameters_.emplace(network_.parameters(), DType::f64,
                            std::vector<std::string>{"weights", "gradients"});
        statistics_.emplace(network_.statistics(), DType::f64, std::vector<std::string>{"weights"});
        initialize_weights(*statistics_, 1);
        const Values weights = random_values(static_cast<size_t>(parameters_->size()), 3);
        std::copy(weights.begin(), weights.end(), parameters().begin());
        binding_.network = &network_;
        binding_.node = &node;
        binding_.batch = batch;
        binding_.training = training;
        binding_.parameters = &*parameters_;
        binding_.gradients = {parameters_->address(slab::gradients)};
        binding_.statistics = &*statistics_;
        binding_.step = &step;
        step.batch = batch;
        bind_buffers(node, batch);
        operation_ = backend_->build(binding_);
    }

    void forward() {
        Lane lane(backend_->lanes(), 0, 1);
        operation_->load_weights();
        operation_->forward(lane);
    }

    // Gradients start as rubbish: a backward pass writes all of them.
    void backward() {
        Lane lane(backend_->lanes(), 0, 1);
        for (Values& gradient : input_gradients)
            std::fill(gradient.begin(), gradient.end(), 1e9);
        std::fill(gradients().begin(), gradients().end(), 1e9);
        operation_->backward(lane);
    }

    std::span<double> parameters() { return parameters_->slab<double>(slab::weights); }
    std::span<double> gradients() { return parameters_->slab<double>(slab::gradients); }
    std::span<double> statistics() { return statistics_->slab<double>(slab::weights); }

    StepInput step;
    std::vector<Values> inputs, input_gradients;  // of each input, [batch, ...]
    Values output, output_gradient;

  private:
    void bind_buffers(const Node& node, int64_t batch) {
        buffers_.reserve(2 * node.inputs.size() + 2);
        inputs.reserve(node.inputs.size());
        input_gradients.reserve(node.inputs.size());
        for (size_t i = 0; i < node.inputs.size(); ++i) {
            const Node& from = network_.node(node.inputs[i]);
            const auto size = static_cast<size_t>(batch * element_count(from.shape));
            inputs.push_back(random_values(size, 10 + i));
            input_gradients.emplace_back(size);
            binding_.inputs.push_back(buffer(from, inputs.back()));
            binding_.input_gradients.push_back(buffer(from, input_gradients.back()));
        }
        const auto size = static_cast<size_t>(batch * element_count(node.shape));
        output.resize(size);
        output_gradient = random_values(size, 20);
        binding_.output = buffer(node, output);
        binding_.output_gradients = {buffer(node, output_gradient)};
    }

    Buffer* buffer(const Node& node, Values& values) {
        buffers_.push_back(backend_->layout(network_, node));
        buffers_.back().data = reinterpret_cast<std::byte*>(values.data());
        return &buffers_.back();
    }

    Network network_;
    std::unique_ptr<Backend> backend_;
    std::optional<ParameterArena> parameters_, statistics_;
    std::vector<Buffer> buffers_;
    Binding binding_;
    std::unique_ptr<Operation> operation_;
};

// With f = sum of output_gradient * output: df/dv for each v of `variables`, against `gradient`.
void expect_derivatives(LayerBench& bench, std::span<double> variables, const Values& gradient,
                        const std::string& what) {
    const auto f = [&bench] {
        bench.forward();
        double sum = 0;
        for (size_t i = 0; i < bench.output.size(); ++i)
            sum += bench.output[i] * bench.output_gradient[i];
        return sum;
    };
    constexpr double h = 1e-5;
    for (size_t i = 0; i < variables.size(); ++i) {
        const double kept = variables[i];
        variables[i] = kept + h;
        const double above = f();
        variables[i] = kept - h;
        const double below = f();
        variables[i] = kept;
        const double numeric = (above - below) / (2 * h);
        ASSERT_NEAR(gradient[i], numeric, 1e-7 * std::max(1.0, std::abs(numeric)))
            << what << " " << i;
    }
}

void expect_gradients(const std::function<void(Network&)>& describe, int64_t batch) {
    LayerBench bench(describe, batch);
    bench.forward();
    bench.backward();
    const std::vector<Values> input_gradients = bench.input_gradients;
    const Values gradients(bench.gradients().begin(), bench.gradients().end());
    for (size_t i = 0; i < bench.inputs.size(); ++i)
        expect_derivatives(bench, bench.inputs[i], input_gradients[i],
                           "input " + std::to_string(i));
    expect_derivatives(bench, bench.parameters(), gradients, "parameter");
}

struct ConvolutionCase {
    int64_t batch, channels, height, width;
    ConvolutionOptions options;
};

const ConvolutionCase convolution_cases[] = {
    {2, 3, 5, 6, {.out_channels = 4}},
    {1, 2, 7, 4, {.out_channels = 3, .stride = 2, .bias = true}},
    {2, 3, 6, 6, {.out_channels = 2, .kernel = 1, .padding = 0}},
    {2, 3, 5, 5, {.out_channels = 2, .kernel = 1, .stride = 2, .padding = 0}},
    {1, 1, 9, 12, {.out_channels = 2, .kernel = 7, .stride = 2, .padding = 3, .bias = true}},
    {1, 2, 5, 5, {.out_channels = 2, .kernel = 5, .padding = 0, .bias = true}},
    {2, 2, 1, 2, {.out_channels = 3, .kernel = 3, .padding = 1}},
    {1, 1, 2, 2, {.out_channels = 1, .kernel = 2, .stride = 3, .padding = 2}},
};

std::function<void(Network&)> convolution_of(const ConvolutionCase& c) {
    return [c](Network& net) {
        net.convolution("conv", net.input(c.channels, c.height, c.width), c.options);
    };
}

// One output by the definition, with every term's bounds looked at.
double convolved(LayerBench& bench, const ConvolutionCase& c, int64_t n, int64_t o, int64_t y,
                 int64_t x) {
    const int64_t k = c.options.kernel;
    const int64_t weights = c.options.out_channels * c.channels * k * k;
    double sum = c.options.bias ? bench.parameters()[static_cast<size_t>(weights + o)] : 0;
    for (int64_t i = 0; i < c.channels; ++i)
        for (int64_t ky = 0; ky < k; ++ky)
            for (int64_t kx = 0; kx < k; ++kx) {
                const int64_t in_y = y * c.options.stride + ky - c.options.padding;
                const int64_t in_x = x * c.options.stride + kx - c.options.padding;
                if (in_y < 0 || in_y >= c.height || in_x < 0 || in_x >= c.width)
                    continue;
                const int64_t in = ((n * c.channels + i) * c.height + in_y) * c.width + in_x;
                const int64_t w = ((o * c.channels + i) * k + ky) * k + kx;
                sum += bench.inputs[0][static_cast<size_t>(in)] *
                       bench.parameters()[static_cast<size_t>(w)];
            }
    return sum;
}

TEST(Reference, ConvolutionIsItsDefinition) {
    for (const ConvolutionCase& c : convolution_cases) {
        LayerBench bench(convolution_of(c), c.batch);
        bench.forward();
        const int64_t k = c.options.kernel, s = c.options.stride, p = c.options.padding;
        const int64_t height = (c.height + 2 * p - k) / s + 1,
                      width = (c.width + 2 * p - k) / s + 1;
        ASSERT_EQ(static_cast<int64_t>(bench.output.size()),
                  c.batch * c.options.out_channels * height * width);
        size_t at = 0;
        for (int64_t n = 0; n < c.batch; ++n)
            for (int64_t o = 0; o < c.options.out_channels; ++o)
                for (int64_t y = 0; y < height; ++y)
                    for (int64_t x = 0; x < width; ++x)
                        ASSERT_NEAR(bench.output[at++], convolved(bench, c, n, o, y, x), 1e-12)
                            << "kernel " << k << " stride " << s << " at " << y << " " << x;
    }
}

TEST(Reference, ConvolutionGradients) {
    for (const ConvolutionCase& c : convolution_cases)
        expect_gradients(convolution_of(c), c.batch);
}

std::function<void(Network&)> batch_norm_of(bool relu, bool residual) {
    return [=](Network& net) {
        const NodeId x = net.input(3, 2, 5);
        const NodeId other = net.relu(x);  // any node of this shape
        net.batch_norm("bn", x, {.relu = relu, .residual = residual ? other : no_node});
    };
}

TEST(Reference, BatchNormGradients) {
    for (const bool relu : {false, true})
        for (const bool residual : {false, true})
            for (const int64_t batch : {1, 4})
                expect_gradients(batch_norm_of(relu, residual), batch);
}

TEST(Reference, BatchNormNormalisesAndKeepsRunningStatistics) {
    constexpr int64_t batch = 2, channels = 3, plane = 10, count = batch * plane;
    LayerBench bench(batch_norm_of(false, false), batch);
    bench.forward();
    bench.forward();
    for (size_t c = 0; c < channels; ++c) {
        double mean = 0, squares = 0;
        const auto at = [&](size_t i) { return (i / plane * channels + c) * plane + i % plane; };
        for (size_t i = 0; i < count; ++i)
            mean += bench.inputs[0][at(i)] / count;
        for (size_t i = 0; i < count; ++i)
            squares += std::pow(bench.inputs[0][at(i)] - mean, 2);
        const double gamma = bench.parameters()[c], beta = bench.parameters()[channels + c];
        for (size_t i = 0; i < count; ++i)
            EXPECT_NEAR(
                bench.output[at(i)],
                gamma * (bench.inputs[0][at(i)] - mean) / std::sqrt(squares / count + 1e-5) + beta,
                1e-12);
        // Two steps with momentum 0.1 from mean 0 and variance 1; unbiased.
        EXPECT_NEAR(bench.statistics()[c], 0.19 * mean, 1e-12);
        EXPECT_NEAR(bench.statistics()[channels + c], 0.81 + 0.19 * squares / (count - 1), 1e-12);
    }
}

TEST(Reference, BatchNormInInferenceUsesRunningStatistics) {
    LayerBench bench(batch_norm_of(true, true), 2, false);
    const Values before{0.5, -1, 2, 0.25, 4, 1};
    std::copy(before.begin(), before.end(), bench.statistics().begin());
    bench.forward();
    for (size_t i = 0; i < bench.output.size(); ++i) {
        const size_t c = i / 10 % 3;
        const double value = bench.parameters()[c] * (bench.inputs[0][i] - before[c]) /
                                 std::sqrt(before[3 + c] + 1e-5) +
                             bench.parameters()[3 + c] + bench.inputs[1][i];
        EXPECT_NEAR(bench.output[i], std::max(0.0, value), 1e-12);
    }
    EXPECT_TRUE(std::equal(before.begin(), before.end(), bench.statistics().begin()));
}

TEST(Reference, BatchNormRefusesASingleValue) {
    const auto describe = [](Network& net) { net.batch_norm("bn7", net.input(3, 1, 1), {}); };
    EXPECT_NO_THROW(LayerBench(describe, 2));
    EXPECT_NO_THROW(LayerBench(describe, 1, false));
    try {
        LayerBench bench(describe, 1);
        FAIL() << "a batch of one pixel was accepted";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("bn7"), std::string::npos) << error.what();
    }
}

TEST(Reference, ReluGradientsAndValues) {
    const auto describe = [](Network& net) { net.relu(net.input(2, 3, 4)); };
    expect_gradients(describe, 3);
    LayerBench bench(describe, 1);
    bench.inputs[0][0] = -2;
    bench.inputs[0][1] = 3;
    bench.inputs[0][2] = std::numeric_limits<double>::quiet_NaN();
    bench.inputs[0][3] = 0;
    bench.forward();
    bench.backward();
    EXPECT_EQ(bench.output[0], 0);
    EXPECT_EQ(bench.output[1], 3);
    EXPECT_TRUE(std::isnan(bench.output[2]));
    EXPECT_EQ(bench.input_gradients[0][0], 0);
    EXPECT_EQ(bench.input_gradients[0][1], bench.output_gradient[1]);
    EXPECT_EQ(bench.input_gradients[0][3], 0);
}

std::function<void(Network&)> max_pool_of(int64_t height, int64_t width, int64_t kernel,
                                          int64_t stride, int64_t padding) {
    return
        [=](Network& net) { net.max_pool(net.input(2, height, width), kernel, stride, padding); };
}

TEST(Reference, MaxPoolGradients) {
    expect_gradients(max_pool_of(4, 6, 2, 2, 0), 2);
    expect_gradients(max_pool_of(7, 5, 3, 2, 1), 2);
    expect_gradients(max_pool_of(5, 4, 3, 1, 1), 1);
    expect_gradients(max_pool_of(5, 5, 2, 2, 0), 1);  // a last row and column that nobody reads
}

TEST(Reference, MaxPoolTakesTheFirstOfEquals) {
    LayerBench bench([](Network& net) { net.max_pool(net.input(1, 2, 4), 2, 2, 0); }, 1);
    bench.inputs[0] = {1, 5, -3, -3,  //
                       5, 5, -3, -4};
    bench.forward();
    bench.backward();
    EXPECT_EQ(bench.output, (Values{5, -3}));
    const double a = bench.output_gradient[0], b = bench.output_gradient[1];
    EXPECT_EQ(bench.input_gradients[0], (Values{0, a, b, 0, 0, 0, 0, 0}));
}

TEST(Reference, MaxPoolPaddingNeverWins) {
    LayerBench bench([](Network& net) { net.max_pool(net.input(1, 3, 3), 3, 2, 1); }, 1);
    bench.inputs[0] = {-9, -8, -7,  //
                       -6, -5, -4,  //
                       -3, -2, -1};
    bench.forward();
    EXPECT_EQ(bench.output, (Values{-5, -4, -2, -1}));
    bench.inputs[0][4] = std::numeric_limits<double>::quiet_NaN();
    bench.forward();
    for (const double value : bench.output)
        EXPECT_TRUE(std::isnan(value));
}

TEST(Reference, GlobalAveragePool) {
    const auto describe = [](Network& net) { net.global_average_pool(net.input(2, 2, 3)); };
    expect_gradients(describe, 3);
    LayerBench bench(describe, 1);
    bench.inputs[0] = {1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 3};
    bench.forward();
    EXPECT_EQ(bench.output, (Values{3.5, 0.5}));
}

TEST(Reference, Linear) {
    const auto describe = [](Network& net) { net.linear("fc", net.input(2, 3, 3), 4); };
    expect_gradients(describe, 3);
    LayerBench bench(describe, 2);
    bench.forward();
    for (size_t n = 0; n < 2; ++n)
        for (size_t o = 0; o < 4; ++o) {
            double sum = bench.parameters()[4 * 18 + o];
            for (size_t i = 0; i < 18; ++i)
                sum += bench.parameters()[o * 18 + i] * bench.inputs[0][n * 18 + i];
            EXPECT_NEAR(bench.output[n * 4 + o], sum, 1e-12);
        }
}

TEST(Reference, PadShortcut) {
    expect_gradients([](Network& net) { net.pad_shortcut(net.input(2, 5, 4), 5, 2); }, 2);
    expect_gradients([](Network& net) { net.pad_shortcut(net.input(2, 2, 3), 4, 1); }, 2);
    LayerBench bench([](Network& net) { net.pad_shortcut(net.input(1, 3, 4), 2, 2); }, 1);
    bench.inputs[0] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    std::fill(bench.output.begin(), bench.output.end(), 1e9);
    bench.forward();
    EXPECT_EQ(bench.output, (Values{0, 2, 8, 10, 0, 0, 0, 0}));
}

std::function<void(Network&)> dropout_of(double drop) {
    return [drop](Network& net) { net.dropout("drop", net.input(4, 8, 8), drop); };
}

TEST(Reference, DropoutGradients) {
    expect_gradients(dropout_of(0.5), 2);
    expect_gradients(dropout_of(0.0), 1);
}

TEST(Reference, DropoutMaskIsAFunctionOfItsKey) {
    LayerBench bench(dropout_of(0.25), 2);
    bench.step.seed = 5;
    bench.step.step = 9;
    bench.step.first_sample = 30;
    bench.forward();
    size_t at = 0, dropped = 0;
    for (uint64_t sample = 30; sample < 32; ++sample) {
        Random random{5, static_cast<uint64_t>(RandomPurpose::dropout), 9, sample, 1};
        for (int i = 0; i < 256; ++i, ++at) {
            const bool drop = random.uniform() < 0.25;
            dropped += drop;
            ASSERT_DOUBLE_EQ(bench.output[at], drop ? 0 : bench.inputs[0][at] / 0.75);
        }
    }
    EXPECT_NEAR(static_cast<double>(dropped) / 512, 0.25, 0.06);
    const Values first = bench.output;
    bench.step.step = 10;
    bench.forward();
    EXPECT_NE(bench.output, first);
}

TEST(Reference, DropoutIsACopyInInference) {
    LayerBench bench(dropout_of(0.9), 2, false);
    bench.forward();
    EXPECT_EQ(bench.output, bench.inputs[0]);
}

TEST(Reference, InputTakesTheImagesOver) {
    LayerBench bench([](Network& net) { net.input(2, 1, 2); }, 2);
    const std::vector<float> images{0.1f, -2, 3, 4, 5, 6, 7, 8.5f};
    bench.step.images = images.data();
    bench.forward();
    EXPECT_EQ(bench.output, Values(images.begin(), images.end()));
}

TEST(Reference, SumsSlabsInOrder) {
    const auto backend = make_reference_backend(DType::f32);
    // In float, order shows: (1e8 + 1) - 1e8 is 0, (1e8 - 1e8) + 1 is 1.
    std::vector<float> a{7, 1e8f, 1, 7}, b{7, 1, 2, 7}, c{7, -1e8f, 3, 7};
    const auto bytes = [](std::vector<float>& v) { return reinterpret_cast<std::byte*>(v.data()); };
    const std::vector<std::byte*> sources{bytes(a), bytes(b), bytes(c)};
    backend->sum_slabs(bytes(a), sources, {1, 2});
    EXPECT_EQ(a, (std::vector<float>{7, 0, 6, 7}));
    const std::vector<std::byte*> one{bytes(c)};
    backend->sum_slabs(bytes(b), one, {0, 1});
    EXPECT_EQ(b, (std::vector<float>{7, 1, 2, 7}));
    backend->sum_slabs(bytes(b), sources, {2, 0});
    EXPECT_EQ(b, (std::vector<float>{7, 1, 2, 7}));
}

}  // namespace
}  // namespace trainer
