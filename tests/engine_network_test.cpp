// Network: shapes, tensor names, initial values, multiply-adds.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/network.h"

namespace trainer {
namespace {

std::vector<std::string> names(const TensorTable& table) {
    std::vector<std::string> result;
    for (const TensorInfo& tensor : table.tensors())
        result.push_back(tensor.name);
    return result;
}

TEST(Network, ConvolutionShapes) {
    struct Case {
        int64_t extent, kernel, stride, padding, out;
    };
    const Case cases[] = {{32, 3, 1, 1, 32},   {32, 3, 2, 1, 16}, {33, 3, 2, 1, 17},
                          {224, 7, 2, 3, 112}, {32, 5, 1, 0, 28}, {56, 1, 2, 0, 28},
                          {1, 3, 1, 1, 1},     {5, 5, 1, 0, 1}};
    for (const Case& c : cases) {
        Network net;
        const NodeId x = net.convolution(
            "conv", net.input(3, c.extent, c.extent + c.stride),
            {.out_channels = 8, .kernel = c.kernel, .stride = c.stride, .padding = c.padding});
        EXPECT_EQ(net.node(x).shape, (Shape{8, c.out, c.out + 1}))
            << c.extent << " " << c.kernel << " " << c.stride;
    }
}

TEST(Network, NodesFollowEachOther) {
    Network net;
    const NodeId image = net.input(3, 8, 8);
    const NodeId conv = net.convolution("conv1", image, {.out_channels = 4, .stride = 2});
    const NodeId shortcut = net.pad_shortcut(image, 4, 2);
    const NodeId bn = net.batch_norm("bn1", conv, {.relu = true, .residual = shortcut});
    const NodeId pool = net.max_pool(bn, 2, 2, 0);
    const NodeId relu = net.relu(pool);
    const NodeId mean = net.global_average_pool(relu);
    const NodeId drop = net.dropout("drop", mean, 0.3);
    const NodeId fc = net.linear("fc", drop, 5);
    EXPECT_EQ(net.output(), fc);
    EXPECT_EQ(net.classes(), 5);
    EXPECT_EQ(net.node(shortcut).shape, (Shape{4, 4, 4}));
    EXPECT_EQ(net.node(bn).inputs, (std::vector<NodeId>{conv, shortcut}));
    EXPECT_TRUE(net.node(bn).relu);
    EXPECT_EQ(net.node(pool).shape, (Shape{4, 2, 2}));
    EXPECT_EQ(net.node(relu).shape, (Shape{4, 2, 2}));
    EXPECT_EQ(net.node(mean).shape, (Shape{4}));
    EXPECT_EQ(net.node(drop).drop, 0.3);
    for (NodeId id = 0; id <= fc; ++id)
        for (const NodeId input : net.node(id).inputs)
            EXPECT_LT(input, id);
    EXPECT_EQ(names(net.parameters()),
              (std::vector<std::string>{"conv1.weight", "bn1.weight", "bn1.bias", "fc.weight",
                                        "fc.bias"}));
    EXPECT_EQ(names(net.statistics()),
              (std::vector<std::string>{"bn1.running_mean", "bn1.running_var"}));
}

TEST(Network, InitialValuesAreDrawnAsPyTorchDrawsThem) {
    Network net;
    NodeId x = net.input(3, 8, 8);
    x = net.convolution("he", x, {.out_channels = 16, .bias = true});
    x = net.convolution("torch", x,
                        {.out_channels = 4, .bias = true, .init = Initialization::Kind::uniform});
    x = net.batch_norm("bn", x, {.gamma = 0});
    x = net.linear("fc", x, 10);
    net.linear("small", x, 10, 0.01);
    const auto expect = [&](const char* name, Initialization::Kind kind, double value) {
        const TensorInfo* tensor = net.parameters().find(name);
        ASSERT_NE(tensor, nullptr) << name;
        EXPECT_EQ(tensor->init.kind, kind) << name;
        EXPECT_DOUBLE_EQ(tensor->init.value, value) << name;
    };
    using enum Initialization::Kind;
    expect("he.weight", normal, std::sqrt(2.0 / (16 * 9)));
    expect("he.bias", constant, 0);
    expect("torch.weight", uniform, 1 / std::sqrt(16.0 * 9));
    expect("torch.bias", uniform, 1 / std::sqrt(16.0 * 9));
    expect("bn.weight", constant, 0);
    expect("bn.bias", constant, 0);
    expect("fc.weight", uniform, 1 / std::sqrt(256.0));
    expect("fc.bias", uniform, 1 / std::sqrt(256.0));
    expect("small.weight", normal, 0.01);
    expect("small.bias", constant, 0);
    EXPECT_EQ(net.statistics()[0].init.value, 0);
    EXPECT_EQ(net.statistics()[1].init.value, 1);
}

TEST(Network, OnlyWeightsOfConvolutionAndLinearDecay) {
    Network net;
    NodeId x = net.convolution("conv", net.input(1, 4, 4), {.bias = true});
    x = net.batch_norm("bn", x, {});
    net.linear("fc", x, 2);
    for (const TensorInfo& tensor : net.parameters().tensors())
        EXPECT_EQ(tensor.decay, tensor.name == "conv.weight" || tensor.name == "fc.weight")
            << tensor.name;
}

TEST(Network, CountsMultiplyAdds) {
    Network net;
    NodeId x = net.input(3, 8, 10);
    x = net.convolution("conv", x, {.out_channels = 4, .kernel = 3, .stride = 2});
    EXPECT_EQ(net.multiply_adds(), 4 * (4 * 5) * 3 * 9);
    net.linear("fc", net.relu(net.batch_norm("bn", x, {})), 7);
    EXPECT_EQ(net.multiply_adds(), 4 * (4 * 5) * 3 * 9 + 7 * 4 * 4 * 5);
    EXPECT_EQ(net.multiply_adds(net.node(net.output())), 7 * 4 * 4 * 5);
}

TEST(Network, RefusesWhatDoesNotFit) {
    Network net;
    EXPECT_NO_THROW(net.input(3, 4, 4));
    EXPECT_THROW(net.input(3, 4, 4), std::logic_error);
    EXPECT_THROW(net.convolution("c", 0, {.kernel = 5, .padding = 0}), std::logic_error);
    // One pixel too large for a window with a stride: rounding must not hide it.
    EXPECT_THROW(net.convolution("c", 0, {.kernel = 5, .stride = 2, .padding = 0}),
                 std::logic_error);
    EXPECT_THROW(net.max_pool(0, 5, 5, 0), std::logic_error);
    EXPECT_THROW(net.max_pool(0, 2, 2, 2), std::logic_error);
    EXPECT_THROW(net.pad_shortcut(0, 2, 1), std::logic_error);
    EXPECT_THROW(net.dropout("d", 0, 1.0), std::logic_error);
    EXPECT_THROW(net.dropout("d", 0, -0.1), std::logic_error);
    const NodeId wide = net.convolution("wide", 0, {.out_channels = 6});
    EXPECT_THROW(net.batch_norm("bn", wide, {.residual = 0}), std::logic_error);
    const NodeId flat = net.global_average_pool(wide);
    EXPECT_THROW(net.convolution("c", flat, {}), std::logic_error);
    EXPECT_THROW(net.batch_norm("bn", flat, {}), std::logic_error);
    EXPECT_THROW(net.linear("wide", flat, 3), std::logic_error) << "a second tensor wide.weight";
}

}  // namespace
}  // namespace trainer
