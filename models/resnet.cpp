// Residual networks.
#include "models/models.h"

namespace trainer {

namespace {

std::string with_index(const std::string& name, int64_t index) {
    return name + std::to_string(index);
}

double last_gamma(const ModelOptions& options) {
    return options.zero_last_gamma ? 0 : 1;
}

/// conv -> bn -> relu, the layers named `prefix`convI and `prefix`bnI.
NodeId convolution_unit(Network& net, const std::string& prefix, int index, NodeId x,
                        const ConvolutionOptions& options) {
    x = net.convolution(with_index(prefix + "conv", index), x, options);
    return net.batch_norm(with_index(prefix + "bn", index), x, {.relu = true});
}

/// The end of a block: its last convolution, then relu(bn(...) + shortcut).
NodeId residual_unit(Network& net, const std::string& prefix, int index, NodeId x, NodeId shortcut,
                     double gamma, const ConvolutionOptions& options) {
    x = net.convolution(with_index(prefix + "conv", index), x, options);
    return net.batch_norm(with_index(prefix + "bn", index), x,
                          {.relu = true, .residual = shortcut, .gamma = gamma});
}

NodeId basic_block(Network& net, const std::string& prefix, NodeId x, NodeId shortcut,
                   int64_t channels, int64_t stride, double gamma) {
    x = convolution_unit(net, prefix, 1, x, {.out_channels = channels, .stride = stride});
    return residual_unit(net, prefix, 2, x, shortcut, gamma, {.out_channels = channels});
}

constexpr int64_t bottleneck_expansion = 4;

NodeId bottleneck_block(Network& net, const std::string& prefix, NodeId x, NodeId shortcut,
                        int64_t channels, int64_t stride, double gamma) {
    x = convolution_unit(net, prefix, 1, x, {.out_channels = channels, .kernel = 1, .padding = 0});
    x = convolution_unit(net, prefix, 2, x, {.out_channels = channels, .stride = stride});
    return residual_unit(
        net, prefix, 3, x, shortcut, gamma,
        {.out_channels = bottleneck_expansion * channels, .kernel = 1, .padding = 0});
}

/// Option B: a 1x1 convolution with batch norm where the shape changes.
NodeId projection_shortcut(Network& net, const std::string& prefix, NodeId x, int64_t channels,
                           int64_t stride) {
    if (net.node(x).shape[0] == channels && stride == 1)
        return x;
    x = net.convolution(prefix + "downsample.0", x,
                        {.out_channels = channels, .kernel = 1, .stride = stride, .padding = 0});
    return net.batch_norm(prefix + "downsample.1", x, {});
}

struct ImageNetDepth {
    bool bottleneck;
    std::vector<int> blocks;  // of each of the four layers
};

ImageNetDepth imagenet_depth(int depth) {
    switch (depth) {
        case 18:
            return {false, {2, 2, 2, 2}};
        case 34:
            return {false, {3, 4, 6, 3}};
        case 50:
            return {true, {3, 4, 6, 3}};
        case 101:
            return {true, {3, 4, 23, 3}};
        case 152:
            return {true, {3, 8, 36, 3}};
    }
    check(false, "no ImageNet ResNet of this depth");
    return {};
}

}  // namespace

Network resnet_cifar(int depth, const ModelOptions& options) {
    check(depth >= 8 && (depth - 2) % 6 == 0, "a CIFAR ResNet has 6n + 2 layers");
    Network net;
    NodeId x = net.input(options.channels, options.height, options.width);
    x = convolution_unit(net, "", 1, x, {.out_channels = 16});
    for (int layer = 0; layer < 3; ++layer) {
        const int64_t channels = int64_t{16} << layer;
        for (int block = 0; block < (depth - 2) / 6; ++block) {
            const int64_t stride = layer > 0 && block == 0 ? 2 : 1;
            const NodeId shortcut = stride == 1 ? x : net.pad_shortcut(x, channels, stride);
            const std::string prefix =
                with_index("layer", layer + 1) + with_index(".", block) + ".";
            x = basic_block(net, prefix, x, shortcut, channels, stride, last_gamma(options));
        }
    }
    net.linear("fc", net.global_average_pool(x), options.num_classes);
    return net;
}

Network resnet_imagenet(int depth, const ModelOptions& options) {
    const auto [bottleneck, blocks] = imagenet_depth(depth);
    Network net;
    NodeId x = net.input(options.channels, options.height, options.width);
    x = convolution_unit(net, "", 1, x,
                         {.out_channels = 64, .kernel = 7, .stride = 2, .padding = 3});
    x = net.max_pool(x, 3, 2, 1);
    for (int layer = 0; layer < 4; ++layer) {
        const int64_t channels = int64_t{64} << layer;
        for (int block = 0; block < blocks[static_cast<size_t>(layer)]; ++block) {
            const int64_t stride = layer > 0 && block == 0 ? 2 : 1;
            const std::string prefix =
                with_index("layer", layer + 1) + with_index(".", block) + ".";
            const NodeId shortcut = projection_shortcut(
                net, prefix, x, bottleneck ? bottleneck_expansion * channels : channels, stride);
            const auto build = bottleneck ? bottleneck_block : basic_block;
            x = build(net, prefix, x, shortcut, channels, stride, last_gamma(options));
        }
    }
    net.linear("fc", net.global_average_pool(x), options.num_classes);
    return net;
}

}  // namespace trainer
