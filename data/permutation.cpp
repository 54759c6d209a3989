#include "data/permutation.h"

#include <limits>
#include <numeric>
#include <utility>

#include "engine/error.h"
#include "engine/random.h"

namespace trainer {

void epoch_order(int64_t count, bool shuffle, uint64_t seed, int64_t epoch,
                 std::vector<int32_t>& order) {
    check(count <= std::numeric_limits<int32_t>::max(), "more samples than an index can tell");
    order.resize(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    if (!shuffle)
        return;
    Random random{seed, static_cast<uint64_t>(RandomPurpose::permutation),
                  static_cast<uint64_t>(epoch)};
    for (size_t i = order.size(); i-- > 1;)
        std::swap(order[i], order[random.below(i + 1)]);
}

}  // namespace trainer
