#include "tools/trainer/onnx_export.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "engine/whole_file.h"
#include "tools/trainer/onnx.pb.h"
#include "tools/trainer/version.h"

namespace trainer {
namespace {

/// ONNX 1.8: what onnxruntime of 2021 and later takes.
constexpr int64_t ir_version = 7;
constexpr int64_t operator_set = 13;
constexpr int64_t largest_file = std::numeric_limits<int32_t>::max();  // protobuf's limit

class Exporter {
  public:
    Exporter(const Network& network, const ParameterArena& parameters,
             const ParameterArena& statistics, const OnnxOptions& options)
        : network_(network),
          parameters_(parameters),
          statistics_(statistics),
          options_(options),
          outputs_(network.nodes().size()),
          consumers_(network.nodes().size()) {
        for (const Node& node : network.nodes())
            for (const NodeId input : node.inputs)
                ++consumers_[static_cast<size_t>(input)];
    }

    onnx::Model model();

  private:
    // Values and operators.
    onnx::GraphNode& add(const std::string& type, const std::string& name,
                         const std::vector<std::string>& inputs);
    std::string output_of(onnx::GraphNode& node) { return node.output(0); }
    std::string floats(const std::string& name, const Shape& shape, std::span<const float> values);
    std::string integers(const std::string& name, const std::vector<int64_t>& values);
    void describe(onnx::ValueInfo& value, const std::string& name, int type, const Shape& shape);

    // Weights.
    std::span<const float> parameter(const Node& node, size_t index) const;
    std::span<const float> statistic(const Node& node, size_t index) const;
    std::string weight(const Node& node, size_t index);

    // Nodes of the network; each returns the name of its output.
    std::string node(NodeId id);
    std::string input(const Node& node);
    std::string convolution(NodeId id);
    std::string folded_convolution(const Node& convolution, const Node& batch_norm);
    std::string batch_norm(const Node& node);
    std::string max_pool(const Node& node);
    std::string average_pool(const Node& node);
    std::string linear(const Node& node);
    std::string pad_shortcut(const Node& node);
    std::string convolved(const Node& node, const std::vector<std::string>& inputs);
    std::string input_of(const Node& node, size_t index = 0) const {
        return outputs_[static_cast<size_t>(node.inputs[index])];
    }
    bool folds(NodeId convolution) const;

    const Network& network_;
    const ParameterArena& parameters_;
    const ParameterArena& statistics_;
    const OnnxOptions& options_;
    std::vector<std::string> outputs_;  // of each node
    std::vector<int> consumers_;        // of each node
    onnx::Model model_;
    onnx::Graph* graph_ = model_.mutable_graph();
};

void set(onnx::GraphNode& node, const std::string& name, int64_t value) {
    onnx::Attribute& attribute = *node.add_attribute();
    attribute.set_name(name);
    attribute.set_type(onnx::Attribute::INT);
    attribute.set_i(value);
}

void set(onnx::GraphNode& node, const std::string& name, float value) {
    onnx::Attribute& attribute = *node.add_attribute();
    attribute.set_name(name);
    attribute.set_type(onnx::Attribute::FLOAT);
    attribute.set_f(value);
}

void set(onnx::GraphNode& node, const std::string& name, const std::vector<int64_t>& values) {
    onnx::Attribute& attribute = *node.add_attribute();
    attribute.set_name(name);
    attribute.set_type(onnx::Attribute::INTS);
    attribute.mutable_ints()->Assign(values.begin(), values.end());
}

void set_window(onnx::GraphNode& result, const Node& node) {
    const int64_t k = node.kernel, s = node.stride, p = node.padding;
    set(result, "kernel_shape", {k, k});
    set(result, "strides", {s, s});
    set(result, "pads", {p, p, p, p});
}

onnx::GraphNode& Exporter::add(const std::string& type, const std::string& name,
                               const std::vector<std::string>& inputs) {
    onnx::GraphNode& node = *graph_->add_node();
    node.set_op_type(type);
    node.set_name(name);
    node.mutable_input()->Assign(inputs.begin(), inputs.end());
    node.add_output(name);
    return node;
}

std::string Exporter::floats(const std::string& name, const Shape& shape,
                             std::span<const float> values) {
    onnx::Tensor& tensor = *graph_->add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(onnx::Tensor::FLOAT);
    tensor.mutable_dims()->Assign(shape.begin(), shape.end());
    tensor.set_raw_data(values.data(), values.size_bytes());
    return name;
}

std::string Exporter::integers(const std::string& name, const std::vector<int64_t>& values) {
    onnx::Tensor& tensor = *graph_->add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(onnx::Tensor::INT64);
    tensor.add_dims(static_cast<int64_t>(values.size()));
    tensor.set_raw_data(values.data(), values.size() * sizeof(int64_t));
    return name;
}

void Exporter::describe(onnx::ValueInfo& value, const std::string& name, int type,
                        const Shape& shape) {
    value.set_name(name);
    auto& tensor = *value.mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(type);
    tensor.mutable_shape()->add_dim()->set_dim_param("batch");
    for (const int64_t extent : shape)
        tensor.mutable_shape()->add_dim()->set_dim_value(extent);
}

std::span<const float> Exporter::parameter(const Node& node, size_t index) const {
    return parameters_.tensor<float>(slab::weights, parameters_.table()[node.parameters[index]]);
}

std::span<const float> Exporter::statistic(const Node& node, size_t index) const {
    return statistics_.tensor<float>(slab::weights, statistics_.table()[node.statistics[index]]);
}

std::string Exporter::weight(const Node& node, size_t index) {
    const TensorInfo& tensor = parameters_.table()[node.parameters[index]];
    return floats(tensor.name, tensor.shape, parameter(node, index));
}

/// Whether the convolution's batch norm goes into its weights.
bool Exporter::folds(NodeId convolution) const {
    if (!options_.fold_batch_norm || consumers_[static_cast<size_t>(convolution)] != 1)
        return false;
    return std::any_of(network_.nodes().begin(), network_.nodes().end(), [&](const Node& node) {
        return node.kind == Kind::batch_norm && node.inputs[0] == convolution;
    });
}

std::string Exporter::input(const Node& node) {
    const bool raw = options_.normalization.has_value();
    describe(*graph_->add_input(), "images", raw ? onnx::Tensor::UINT8 : onnx::Tensor::FLOAT,
             node.shape);
    if (!raw)
        return "images";
    // (value / 255 - mean) / std as value * scale + shift.
    const auto channels = static_cast<size_t>(node.shape[0]);
    const Normalization& normalization = *options_.normalization;
    check(normalization.mean.size() == channels && normalization.std.size() == channels,
          "a mean and a standard deviation a channel");
    std::vector<float> scale, shift;
    for (size_t c = 0; c < channels; ++c) {
        scale.push_back(static_cast<float>(1 / (255 * normalization.std[c])));
        shift.push_back(static_cast<float>(-normalization.mean[c] / normalization.std[c]));
    }
    const Shape shape{node.shape[0], 1, 1};
    onnx::GraphNode& cast = add("Cast", "images.float", {"images"});
    set(cast, "to", int64_t{onnx::Tensor::FLOAT});
    const std::string scaled = output_of(
        add("Mul", "images.scaled", {"images.float", floats("normalization.scale", shape, scale)}));
    return output_of(
        add("Add", "images.normalized", {scaled, floats("normalization.shift", shape, shift)}));
}

std::string Exporter::convolved(const Node& node, const std::vector<std::string>& inputs) {
    onnx::GraphNode& result = add("Conv", node.name, inputs);
    set_window(result, node);
    return output_of(result);
}

std::string Exporter::convolution(NodeId id) {
    const Node& node = network_.node(id);
    if (folds(id))
        return "";  // comes with its batch norm
    std::vector<std::string> inputs{input_of(node), weight(node, 0)};
    if (node.has_bias)
        inputs.push_back(weight(node, 1));
    return convolved(node, inputs);
}

std::string Exporter::folded_convolution(const Node& convolution, const Node& batch_norm) {
    const std::span<const float> weights = parameter(convolution, 0);
    const auto gamma = parameter(batch_norm, 0), beta = parameter(batch_norm, 1);
    const auto mean = statistic(batch_norm, 0), variance = statistic(batch_norm, 1);
    std::vector<float> folded(weights.size()), bias(gamma.size());
    const size_t row = weights.size() / gamma.size();  // weights of one output channel
    for (size_t c = 0; c < gamma.size(); ++c) {
        const double scale = gamma[c] / std::sqrt(variance[c] + batch_norm.epsilon);
        const double before = convolution.has_bias ? parameter(convolution, 1)[c] : 0;
        bias[c] = static_cast<float>(beta[c] + scale * (before - mean[c]));
        for (size_t i = c * row; i < (c + 1) * row; ++i)
            folded[i] = static_cast<float>(scale * weights[i]);
    }
    const TensorInfo& tensor = parameters_.table()[convolution.parameters[0]];
    return convolved(convolution, {input_of(convolution), floats(tensor.name, tensor.shape, folded),
                                   floats(convolution.name + ".bias", {tensor.shape[0]}, bias)});
}

std::string Exporter::batch_norm(const Node& node) {
    std::string result;
    const NodeId before = node.inputs[0];
    if (network_.node(before).kind == Kind::convolution && folds(before)) {
        result = folded_convolution(network_.node(before), node);
    } else {
        const Shape& shape = parameters_.table()[node.parameters[0]].shape;
        const auto& names = statistics_.table();
        onnx::GraphNode& normalized =
            add("BatchNormalization", node.name,
                {input_of(node), weight(node, 0), weight(node, 1),
                 floats(names[node.statistics[0]].name, shape, statistic(node, 0)),
                 floats(names[node.statistics[1]].name, shape, statistic(node, 1))});
        set(normalized, "epsilon", static_cast<float>(node.epsilon));
        result = output_of(normalized);
    }
    if (node.inputs.size() > 1)
        result = output_of(add("Add", node.name + ".sum", {result, input_of(node, 1)}));
    if (node.relu)
        result = output_of(add("Relu", node.name + ".relu", {result}));
    return result;
}

std::string Exporter::max_pool(const Node& node) {
    onnx::GraphNode& result = add("MaxPool", node.name, {input_of(node)});
    set_window(result, node);
    return output_of(result);
}

std::string Exporter::average_pool(const Node& node) {
    const std::string mean =
        output_of(add("GlobalAveragePool", node.name, {input_of(node)}));  // [batch, c, 1, 1]
    onnx::GraphNode& flat = add("Flatten", node.name + ".flat", {mean});
    set(flat, "axis", int64_t{1});
    return output_of(flat);
}

std::string Exporter::linear(const Node& node) {
    std::string x = input_of(node);
    if (network_.node(node.inputs[0]).shape.size() > 1) {
        onnx::GraphNode& flat = add("Flatten", node.name + ".flat", {x});
        set(flat, "axis", int64_t{1});
        x = output_of(flat);
    }
    onnx::GraphNode& result = add("Gemm", node.name, {x, weight(node, 0), weight(node, 1)});
    set(result, "transB", int64_t{1});
    return output_of(result);
}

std::string Exporter::pad_shortcut(const Node& node) {
    const Shape& in = network_.node(node.inputs[0]).shape;
    std::string x = input_of(node);
    if (node.stride > 1) {
        const auto constant = [&](const char* what, const std::vector<int64_t>& values) {
            return integers(node.name + what, values);
        };
        x = output_of(
            add("Slice", node.name + ".rows",
                {x, constant(".starts", {0, 0}), constant(".ends", {in[1], in[2]}),
                 constant(".axes", {2, 3}), constant(".steps", {node.stride, node.stride})}));
    }
    if (const int64_t more = node.shape[0] - in[0]; more > 0) {
        const std::vector<int64_t> pads{0, 0, 0, 0, 0, more, 0, 0};
        x = output_of(add("Pad", node.name, {x, integers(node.name + ".pads", pads)}));
    }
    return x;
}

std::string Exporter::node(NodeId id) {
    const Node& node = network_.node(id);
    switch (node.kind) {
        case Kind::input:
            return input(node);
        case Kind::convolution:
            return convolution(id);
        case Kind::batch_norm:
            return batch_norm(node);
        case Kind::relu:
            return output_of(add("Relu", node.name, {input_of(node)}));
        case Kind::max_pool:
            return max_pool(node);
        case Kind::global_average_pool:
            return average_pool(node);
        case Kind::linear:
            return linear(node);
        case Kind::pad_shortcut:
            return pad_shortcut(node);
        case Kind::dropout:
            return input_of(node);  // of training only
    }
    return "";
}

onnx::Model Exporter::model() {
    model_.set_ir_version(ir_version);
    model_.add_opset_import()->set_version(operator_set);
    model_.set_producer_name("trainer");
    model_.set_producer_version(version());
    for (const auto& [key, value] : options_.metadata) {
        onnx::Entry& entry = *model_.add_metadata_props();
        entry.set_key(key);
        entry.set_value(value);
    }
    graph_->set_name("network");
    for (NodeId id = 0; id <= network_.output(); ++id)
        outputs_[static_cast<size_t>(id)] = node(id);
    // The last operator's output gets the name that users look for.
    onnx::GraphNode& last = *graph_->mutable_node(graph_->node_size() - 1);
    check(last.output(0) == outputs_.back(), "the network ends with its last operator");
    last.set_output(0, "logits");
    describe(*graph_->add_output(), "logits", onnx::Tensor::FLOAT, {network_.classes()});
    return std::move(model_);
}

}  // namespace

void export_onnx(const Network& network, const ParameterArena& parameters,
                 const ParameterArena& statistics, const OnnxOptions& options,
                 const std::filesystem::path& path) {
    const onnx::Model model = Exporter(network, parameters, statistics, options).model();
    if (static_cast<int64_t>(model.ByteSizeLong()) > largest_file)
        throw Error("export: the model takes more than the 2 GB that an ONNX file may have");
    const std::string bytes = model.SerializeAsString();
    write_whole_file(path, std::as_bytes(std::span(bytes)));
}

}  // namespace trainer
