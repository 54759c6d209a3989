#include "comm/shards.h"

#include <algorithm>

namespace trainer {

Cuts equal_cuts(int64_t size, int servers) {
    Cuts cuts;
    for (int s = 0; s < servers; ++s)
        cuts.push_back(part_of(size, s, servers).first);
    cuts.push_back(size);
    return cuts;
}

Cuts tensor_cuts(const TensorTable& table, int servers) {
    Cuts cuts = equal_cuts(table.size(), servers);
    for (size_t s = 1; s + 1 < cuts.size(); ++s) {
        int64_t nearest = 0;
        for (const TensorInfo& tensor : table.tensors())
            if (std::abs(tensor.range().end() - cuts[s]) < std::abs(nearest - cuts[s]))
                nearest = tensor.range().end();
        cuts[s] = nearest;
    }
    return cuts;
}

std::vector<Piece> split(const Cuts& cuts, Range range) {
    std::vector<Piece> pieces;
    for (size_t s = 0; s + 1 < cuts.size(); ++s) {
        const int64_t first = std::max(range.first, cuts[s]);
        const int64_t end = std::min(range.end(), cuts[s + 1]);
        if (first < end)
            pieces.push_back({static_cast<int>(s), {first, end - first}});
    }
    return pieces;
}

}  // namespace trainer
