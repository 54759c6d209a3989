// BufferPlan: which activations and gradients of a network share memory, and where lanes must meet.
//
// Time is counted in ticks: node i runs forward at tick i, the loss at tick n, and node i backward
// at tick 2n - i. Lanes run through the ticks each at its own pace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/backend.h"

namespace trainer {

/// One gradient buffer an edge of the graph: `consumer` leaves it for the node that it reads from.
struct Edge {
    NodeId producer = no_node;
    NodeId consumer = no_node;  ///< no_node: the loss
    size_t slot = 0;            ///< which input of the consumer
    Buffer buffer;
};

/// Where the buffers of one executor lie. Their `data` is not set: offsets are bytes from the start
/// of one piece of memory.
struct BufferPlan {
    std::vector<Buffer> outputs;  ///< by node
    std::vector<Edge> edges;      ///< training only; last: the gradient of the logits
    std::vector<size_t> output_offsets, edge_offsets;
    /// By tick: all lanes must have left the earlier ticks before it starts, since it writes over
    /// what another may still read.
    std::vector<bool> meetings;
    size_t bytes = 0;  ///< of all buffers together
};

/// Plans the outputs of all nodes and, with `training`, the gradients between them, for `batch`
/// samples in the backend's layouts. Buffers that are never alive together share memory.
BufferPlan plan_buffers(const Network& network, const Backend& backend, int64_t batch,
                        bool training);

}  // namespace trainer
