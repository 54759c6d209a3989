// Element types and shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace trainer {

/// Element type of a buffer.
enum class DType { f32, f64, bf16 };

/// Bytes of one element.
constexpr size_t size_of(DType type) {
    switch (type) {
        case DType::f32:
            return 4;
        case DType::f64:
            return 8;
        case DType::bf16:
            return 2;
    }
    return 0;
}

/// Extents, outermost first.
using Shape = std::vector<int64_t>;

/// Product of the extents; 1 for a scalar.
inline int64_t element_count(const Shape& shape) {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

/// A half-open run of elements [first, first + count) of a slab.
struct Range {
    int64_t first = 0;
    int64_t count = 0;
    int64_t end() const { return first + count; }
    bool operator==(const Range&) const = default;
};

/// Part `index` of `parts` nearly equal, contiguous parts of [0, count); the first ones are the
/// longer where it does not divide.
inline Range part_of(int64_t count, int64_t index, int64_t parts) {
    const int64_t whole = count / parts;
    const int64_t rest = count % parts;
    const int64_t first = index * whole + (index < rest ? index : rest);
    return {first, whole + (index < rest ? 1 : 0)};
}

}  // namespace trainer
