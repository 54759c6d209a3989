// Time in a plan is counted in ticks (buffer_plan.h). A buffer is alive from the tick that writes
// it to the last that reads it; buffers that are never alive together may lie over each other.
#include "engine/buffer_plan.h"

#include <algorithm>

namespace trainer {

namespace {

struct Lifetime {
    int64_t first = 0, last = 0;  // ticks, both inclusive
    size_t bytes = 0;
    size_t offset = 0;  // out
    bool meets(const Lifetime& other) const { return first <= other.last && other.first <= last; }
    bool overlaps(const Lifetime& other) const {
        return offset < other.offset + other.bytes && other.offset < offset + bytes;
    }
};

// First fit, largest buffer first: sets each offset and returns the bytes that all take together.
size_t place(std::vector<Lifetime>& lives) {
    std::vector<Lifetime*> order;
    for (Lifetime& life : lives)
        order.push_back(&life);
    std::stable_sort(order.begin(), order.end(),
                     [](const Lifetime* a, const Lifetime* b) { return a->bytes > b->bytes; });
    size_t total = 0;
    std::vector<const Lifetime*> placed;  // by offset
    for (Lifetime* life : order) {
        life->bytes = (life->bytes + 63) / 64 * 64;
        size_t offset = 0;
        for (const Lifetime* other : placed) {
            if (!other->meets(*life))
                continue;
            if (offset + life->bytes <= other->offset)
                break;
            offset = std::max(offset, other->offset + other->bytes);
        }
        life->offset = offset;
        total = std::max(total, offset + life->bytes);
        placed.insert(std::upper_bound(placed.begin(), placed.end(), life,
                                       [](const Lifetime* a, const Lifetime* b) {
                                           return a->offset < b->offset;
                                       }),
                      life);
    }
    return total;
}

// For each tick whether all lanes must have left the earlier ones before it starts: the fewest
// such ticks for which every buffer is written only after all reads of those that lay there before.
std::vector<bool> meeting_ticks(const std::vector<Lifetime>& lives, int64_t ticks) {
    std::vector<bool> meetings(static_cast<size_t>(ticks), false);
    int64_t latest = 0;  // all lanes start at tick 0 together
    for (int64_t tick = 1; tick < ticks; ++tick) {
        const auto endangers = [&](const Lifetime& born) {
            return born.first == tick &&
                   std::any_of(lives.begin(), lives.end(), [&](const Lifetime& dead) {
                       return dead.last < tick && dead.last >= latest && dead.overlaps(born);
                   });
        };
        if (std::none_of(lives.begin(), lives.end(), endangers))
            continue;
        meetings[static_cast<size_t>(tick)] = true;
        latest = tick;
    }
    return meetings;
}

}  // namespace

BufferPlan plan_buffers(const Network& network, const Backend& backend, int64_t batch,
                        bool training) {
    const auto& nodes = network.nodes();
    const auto n = static_cast<int64_t>(nodes.size());
    const auto backward_tick = [n](NodeId id) { return 2 * n - id; };
    BufferPlan plan;
    std::vector<Lifetime> lives;
    for (NodeId id = 0; id < n; ++id) {
        plan.outputs.push_back(backend.layout(network, network.node(id)));
        lives.push_back({id, training ? backward_tick(id) : id,
                         static_cast<size_t>(batch * plan.outputs.back().sample_bytes)});
    }
    lives.back().last = 2 * n + 1;  // logits stay readable after the pass
    for (NodeId id = 0; id < n; ++id) {
        for (size_t slot = 0; slot < nodes[static_cast<size_t>(id)].inputs.size(); ++slot) {
            const NodeId producer = nodes[static_cast<size_t>(id)].inputs[slot];
            auto& last = lives[static_cast<size_t>(producer)].last;
            last = std::max(last, static_cast<int64_t>(id));
            if (training && network.node(producer).kind != Kind::input)
                plan.edges.push_back(
                    {producer, id, slot, plan.outputs[static_cast<size_t>(producer)]});
        }
    }
    if (training)
        plan.edges.push_back({network.output(), no_node, 0, plan.outputs.back()});
    for (const Edge& edge : plan.edges)
        lives.push_back({edge.consumer == no_node ? n : backward_tick(edge.consumer),
                         backward_tick(edge.producer),
                         static_cast<size_t>(batch * edge.buffer.sample_bytes)});
    plan.bytes = place(lives);
    plan.meetings = meeting_ticks(lives, 2 * n + 1);
    for (size_t i = 0; i < lives.size(); ++i)
        (i < plan.outputs.size() ? plan.output_offsets : plan.edge_offsets)
            .push_back(lives[i].offset);
    return plan;
}

}  // namespace trainer
