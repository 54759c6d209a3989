// How the slab of all parameters is shared out between servers.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/arena.h"

namespace trainer {

/// Where the slab is cut: server s of S has the elements [cuts[s], cuts[s + 1]); S + 1 numbers from
/// 0 to the slab's size. A shard may be empty.
using Cuts = std::vector<int64_t>;

/// Shards of nearly equal length, for elementwise arithmetic.
Cuts equal_cuts(int64_t size, int servers);

/// Shards as equal as they get when no tensor is cut, for arithmetic over whole tensors.
Cuts tensor_cuts(const TensorTable& table, int servers);

/// The part of one server.
inline Range shard_of(const Cuts& cuts, int server) {
    const auto s = static_cast<size_t>(server);
    return {cuts[s], cuts[s + 1] - cuts[s]};
}

/// A part of a range that lies in one shard.
struct Piece {
    int server = 0;
    Range range;
    bool operator==(const Piece&) const = default;
};

/// The pieces of a range, in order; none of them is empty.
std::vector<Piece> split(const Cuts& cuts, Range range);

}  // namespace trainer
