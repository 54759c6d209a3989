// The nearest name to a misspelt one, for messages that help.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

/// Letters to insert, delete, replace or swap with their neighbour to make `b` of `a`.
inline size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> before, above(b.size() + 1), row(b.size() + 1);
    std::iota(above.begin(), above.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before[j - 2] + 1);
        }
        before = above;
        above.swap(row);
    }
    return above[b.size()];
}

/// The one of `names` that is nearest to `word` (ties: the first); empty where there are none.
inline std::string nearest_name(std::string_view word, std::span<const std::string> names) {
    const auto nearest = std::min_element(
        names.begin(), names.end(), [word](const std::string& left, const std::string& right) {
            return edit_distance(word, left) < edit_distance(word, right);
        });
    return nearest == names.end() ? std::string() : *nearest;
}

}  // namespace trainer
