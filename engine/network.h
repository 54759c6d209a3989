// Network: a static graph of layers as a model describes it, the same for every backend.
//
// A node takes the outputs of earlier nodes and names its parameters as PyTorch does; nodes stand
// in the order in which they run forward. Executor builds a runnable plan of it.
#pragma once

#include <string>
#include <vector>

#include "engine/arena.h"
#include "engine/dtype.h"

namespace trainer {

/// Index of a node in its Network.
using NodeId = int;
inline constexpr NodeId no_node = -1;

enum class Kind {
    input,        ///< the batch of images
    convolution,  ///< parameters: weight [out, in, k, k], bias [out] if has_bias
    batch_norm,   ///< parameters: weight, bias [c]; statistics: running_mean, running_var.
                  ///< inputs: x, and with a residual that is added before the ReLU
    relu,
    max_pool,
    global_average_pool,  ///< [c, h, w] -> [c]
    linear,        ///< parameters: weight [out, in], bias [out]; flattens [c, h, w] in that order
    pad_shortcut,  ///< option A: every stride-th row and column; zero channels at the end
    dropout,
};

/// One layer. Only the fields that its kind names are meaningful.
struct Node {
    Kind kind = Kind::input;
    std::string name;  ///< as in tensor names, e.g. "layer1.0.bn2"
    std::vector<NodeId> inputs;
    Shape shape;  ///< of one sample's output: [channels, height, width] or [features]
    std::vector<int> parameters;  ///< indices in Network::parameters()
    std::vector<int> statistics;  ///< indices in Network::statistics(): running_mean, running_var

    int64_t kernel = 1;     ///< convolution, max_pool: extent of the square window
    int64_t stride = 1;     ///< convolution, max_pool, pad_shortcut
    int64_t padding = 0;    ///< convolution, max_pool
    bool has_bias = false;  ///< convolution
    bool relu = false;      ///< batch_norm: ReLU after it (and after the residual)
    double epsilon = 1e-5;  ///< batch_norm
    double momentum = 0.1;  ///< batch_norm: running <- (1 - momentum) running + momentum batch
    double drop = 0.5;      ///< dropout: probability of a zero
};

struct ConvolutionOptions {
    int64_t out_channels = 1;
    int64_t kernel = 3;
    int64_t stride = 1;
    int64_t padding = 1;
    bool bias = false;
    Initialization::Kind init =
        Initialization::Kind::normal;  ///< Kaiming, fan-out, normal; or uniform: PyTorch's default
};

struct BatchNormOptions {
    bool relu = false;
    NodeId residual = no_node;  ///< added before the ReLU
    double gamma = 1;           ///< initial weight
};

class Network {
  public:
    /// Starts a network on images [channels, height, width]. Called once, first.
    NodeId input(int64_t channels, int64_t height, int64_t width);

    NodeId convolution(const std::string& name, NodeId x, const ConvolutionOptions& options);
    NodeId batch_norm(const std::string& name, NodeId x, const BatchNormOptions& options);
    NodeId relu(NodeId x);
    NodeId max_pool(NodeId x, int64_t kernel, int64_t stride, int64_t padding);
    NodeId global_average_pool(NodeId x);
    /// Kaiming-uniform weights and bias as PyTorch's Linear; with `normal_std` > 0 normal weights
    /// and a zero bias instead.
    NodeId linear(const std::string& name, NodeId x, int64_t out_features, double normal_std = 0);
    NodeId pad_shortcut(NodeId x, int64_t out_channels, int64_t stride);
    NodeId dropout(const std::string& name, NodeId x, double drop);

    const std::vector<Node>& nodes() const { return nodes_; }
    const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
    /// The last node added: the logits, [classes].
    NodeId output() const { return static_cast<NodeId>(nodes_.size()) - 1; }
    int64_t classes() const { return nodes_.back().shape.at(0); }

    const TensorTable& parameters() const { return parameters_; }
    /// BN running statistics; not weights: never decayed, encoded or averaged step by step.
    const TensorTable& statistics() const { return statistics_; }

    /// Multiply-adds of one sample's forward pass through one node (0 for all but convolutions and
    /// linear layers), and through all.
    int64_t multiply_adds(const Node& node) const;
    int64_t multiply_adds() const;

  private:
    NodeId add(Node node);

    std::vector<Node> nodes_;
    TensorTable parameters_;
    TensorTable statistics_;
};

}  // namespace trainer
