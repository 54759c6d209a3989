#include "engine/network.h"

#include <cmath>

namespace trainer {

NodeId Network::add(Node node) {
    nodes_.push_back(std::move(node));
    return output();
}

NodeId Network::input(int64_t channels, int64_t height, int64_t width) {
    check(nodes_.empty(), "a network has one input, its first node");
    return add({.kind = Kind::input,
                .name = "input",
                .inputs = {},
                .shape = {channels, height, width},
                .parameters = {},
                .statistics = {}});
}

namespace {

int64_t window_count(int64_t extent, int64_t kernel, int64_t stride, int64_t padding) {
    const int64_t room = extent + 2 * padding - kernel;
    return room < 0 ? 0 : room / stride + 1;
}

}  // namespace

NodeId Network::convolution(const std::string& name, NodeId x, const ConvolutionOptions& options) {
    const Shape& in = node(x).shape;
    check(in.size() == 3, name + ": a convolution takes [channels, height, width]");
    const int64_t k = options.kernel;
    const double fan_in = static_cast<double>(in[0] * k * k);
    const double fan_out = static_cast<double>(options.out_channels * k * k);
    const Initialization init =
        options.init == Initialization::Kind::normal
            ? Initialization{Initialization::Kind::normal, std::sqrt(2 / fan_out)}
            : Initialization{Initialization::Kind::uniform, 1 / std::sqrt(fan_in)};
    Node result{
        .kind = Kind::convolution,
        .name = name,
        .inputs = {x},
        .shape = {options.out_channels, window_count(in[1], k, options.stride, options.padding),
                  window_count(in[2], k, options.stride, options.padding)},
        .parameters = {},
        .statistics = {},
        .kernel = k,
        .stride = options.stride,
        .padding = options.padding,
        .has_bias = options.bias};
    check(result.shape[1] > 0 && result.shape[2] > 0,
          name + ": the image is smaller than the window");
    result.parameters.push_back(
        parameters_.add(name + ".weight", {options.out_channels, in[0], k, k}, true, init));
    if (options.bias) {
        const Initialization bias =
            options.init == Initialization::Kind::normal ? Initialization{} : init;
        result.parameters.push_back(
            parameters_.add(name + ".bias", {options.out_channels}, false, bias));
    }
    return add(std::move(result));
}

NodeId Network::batch_norm(const std::string& name, NodeId x, const BatchNormOptions& options) {
    const Shape shape = node(x).shape;
    check(shape.size() == 3, name + ": batch norm takes [channels, height, width]");
    Node result{.kind = Kind::batch_norm,
                .name = name,
                .inputs = {x},
                .shape = shape,
                .parameters = {},
                .statistics = {},
                .relu = options.relu};
    if (options.residual != no_node) {
        check(node(options.residual).shape == shape, name + ": the residual has another shape");
        result.inputs.push_back(options.residual);
    }
    const auto constant = [](double value) {
        return Initialization{Initialization::Kind::constant, value};
    };
    const Shape channels{shape[0]};
    result.parameters = {
        parameters_.add(name + ".weight", channels, false, constant(options.gamma)),
        parameters_.add(name + ".bias", channels, false, constant(0))};
    result.statistics = {statistics_.add(name + ".running_mean", channels, false, constant(0)),
                         statistics_.add(name + ".running_var", channels, false, constant(1))};
    return add(std::move(result));
}

NodeId Network::relu(NodeId x) {
    return add({.kind = Kind::relu,
                .name = node(x).name + ".relu",
                .inputs = {x},
                .shape = node(x).shape,
                .parameters = {},
                .statistics = {}});
}

NodeId Network::max_pool(NodeId x, int64_t kernel, int64_t stride, int64_t padding) {
    const Shape& in = node(x).shape;
    check(in.size() == 3, "max pool takes [channels, height, width]");
    const int64_t height = window_count(in[1], kernel, stride, padding);
    const int64_t width = window_count(in[2], kernel, stride, padding);
    check(height > 0 && width > 0 && 2 * padding <= kernel,
          "max pool: the image is smaller than the window, or the padding wider than half of it");
    return add({.kind = Kind::max_pool,
                .name = node(x).name + ".maxpool",
                .inputs = {x},
                .shape = {in[0], height, width},
                .parameters = {},
                .statistics = {},
                .kernel = kernel,
                .stride = stride,
                .padding = padding});
}

NodeId Network::global_average_pool(NodeId x) {
    check(node(x).shape.size() == 3, "average pool takes [channels, height, width]");
    return add({.kind = Kind::global_average_pool,
                .name = "avgpool",
                .inputs = {x},
                .shape = {node(x).shape[0]},
                .parameters = {},
                .statistics = {}});
}

NodeId Network::linear(const std::string& name, NodeId x, int64_t out_features, double normal_std) {
    const int64_t in_features = element_count(node(x).shape);
    const double bound = 1 / std::sqrt(static_cast<double>(in_features));
    const Initialization uniform{Initialization::Kind::uniform, bound};
    Node result{.kind = Kind::linear,
                .name = name,
                .inputs = {x},
                .shape = {out_features},
                .parameters = {},
                .statistics = {}};
    result.parameters = {
        parameters_.add(
            name + ".weight", {out_features, in_features}, true,
            normal_std > 0 ? Initialization{Initialization::Kind::normal, normal_std} : uniform),
        parameters_.add(name + ".bias", {out_features}, false,
                        normal_std > 0 ? Initialization{} : uniform)};
    return add(std::move(result));
}

NodeId Network::pad_shortcut(NodeId x, int64_t out_channels, int64_t stride) {
    const Shape& in = node(x).shape;
    check(in.size() == 3 && out_channels >= in[0], "a padded shortcut adds channels");
    return add({.kind = Kind::pad_shortcut,
                .name = node(x).name + ".shortcut",
                .inputs = {x},
                .shape = {out_channels, window_count(in[1], 1, stride, 0),
                          window_count(in[2], 1, stride, 0)},
                .parameters = {},
                .statistics = {},
                .stride = stride});
}

NodeId Network::dropout(const std::string& name, NodeId x, double drop) {
    check(drop >= 0 && drop < 1, name + ": dropout takes a probability below 1");
    Node result{.kind = Kind::dropout,
                .name = name,
                .inputs = {x},
                .shape = node(x).shape,
                .parameters = {},
                .statistics = {}};
    result.drop = drop;
    return add(std::move(result));
}

int64_t Network::multiply_adds(const Node& layer) const {
    if (layer.kind == Kind::convolution)
        return element_count(layer.shape) * node(layer.inputs[0]).shape[0] * layer.kernel *
               layer.kernel;
    if (layer.kind == Kind::linear)
        return layer.shape[0] * element_count(node(layer.inputs[0]).shape);
    return 0;
}

int64_t Network::multiply_adds() const {
    int64_t total = 0;
    for (const Node& layer : nodes_)
        total += multiply_adds(layer);
    return total;
}

}  // namespace trainer
