// The small models: softmax regression, a multilayer perceptron, LeNet-5. Initialised as PyTorch
// initialises its layers.
#include "models/models.h"

namespace trainer {

namespace {

NodeId image(Network& net, const ModelOptions& options) {
    return net.input(options.channels, options.height, options.width);
}

}  // namespace

Network linear_classifier(const ModelOptions& options) {
    Network net;
    net.linear("fc", image(net, options), options.num_classes);
    return net;
}

Network mlp(const ModelOptions& options) {
    Network net;
    NodeId x = net.relu(net.linear("fc1", image(net, options), 256));
    x = net.relu(net.linear("fc2", x, 128));
    net.linear("fc3", x, options.num_classes);
    return net;
}

Network lenet5(const ModelOptions& options) {
    if (options.height < 16 || options.width < 16)
        throw UsageError("lenet5 takes images from 16x16, not " + std::to_string(options.height) +
                         "x" + std::to_string(options.width));
    const bool pad = options.height == 28 && options.width == 28;
    Network net;
    const auto unit = [&net](const char* name, NodeId x, int64_t channels, int64_t padding) {
        x = net.convolution(name, x,
                            {.out_channels = channels,
                             .kernel = 5,
                             .padding = padding,
                             .bias = true,
                             .init = Initialization::Kind::uniform});
        return net.max_pool(net.relu(x), 2, 2, 0);
    };
    NodeId x = unit("conv1", image(net, options), 6, pad ? 2 : 0);
    x = unit("conv2", x, 16, 0);
    x = net.relu(net.linear("fc1", x, 120));
    x = net.relu(net.linear("fc2", x, 84));
    net.linear("fc3", x, options.num_classes);
    return net;
}

}  // namespace trainer
