// Winograd's transforms of single tiles and taps, for winograd.cpp: F(4x4, 3x3) at the points 0,
// +-a,
// +-b and infinity, one block of 16 channels a vector.
#pragma once

#include <algorithm>
#include <array>

#include "engine/cpu/winograd.h"

namespace trainer::cpu::winograd {

inline constexpr int block = 16;
inline constexpr int points = 36;  // of a transformed tile
using Vector = FloatBlock<block>;

[[gnu::always_inline]] inline Vector fma(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vector>(_mm512_fmadd_ps(
        reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#else
    return a * b + c;
#endif
}
[[gnu::always_inline]] inline Vector fma(float a, Vector b, Vector c) {
    return fma(Vector{} + a, b, c);
}

// A tile is a polynomial that is evaluated at 0, +-a, +-b and infinity. These points round better
// than the usual 1 and 2.
inline constexpr float a = 0.625F, b = 1.5F;
inline constexpr float a2 = a * a, b2 = b * b;
inline constexpr float weight_0 = 1 / (a2 * b2), weight_a = 1 / (2 * a2 * (a2 - b2)),
                       weight_b = 1 / (2 * b2 * (b2 - a2));

// B^T: six neighbouring values to the six points.
[[gnu::always_inline]] inline std::array<Vector, 6> to_points(const std::array<Vector, 6>& d) {
    const Vector even_a = fma(-b2, d[2], d[4]), odd_a = fma(-b2, d[1], d[3]);
    const Vector even_b = fma(-a2, d[2], d[4]), odd_b = fma(-a2, d[1], d[3]);
    return {fma(a2 * b2, d[0], fma(-(a2 + b2), d[2], d[4])),
            fma(a, odd_a, even_a),
            fma(-a, odd_a, even_a),
            fma(b, odd_b, even_b),
            fma(-b, odd_b, even_b),
            fma(a2 * b2, d[1], fma(-(a2 + b2), d[3], d[5]))};
}

// A^T: six points to four neighbouring values.
[[gnu::always_inline]] inline std::array<Vector, 4> from_points(const std::array<Vector, 6>& m) {
    const Vector sum_a = m[1] + m[2], difference_a = m[1] - m[2];
    const Vector sum_b = m[3] + m[4], difference_b = m[3] - m[4];
    return {m[0] + sum_a + sum_b, fma(a, difference_a, b * difference_b),
            fma(a2, sum_a, b2 * sum_b), fma(a2 * a, difference_a, fma(b2 * b, difference_b, m[5]))};
}

// A, the transpose of it.
[[gnu::always_inline]] inline std::array<Vector, 6> gradient_to_points(
    const std::array<Vector, 4>& g) {
    const Vector even_a = fma(a2, g[2], g[0]), odd_a = fma(a2, g[3], g[1]);
    const Vector even_b = fma(b2, g[2], g[0]), odd_b = fma(b2, g[3], g[1]);
    return {g[0],
            fma(a, odd_a, even_a),
            fma(-a, odd_a, even_a),
            fma(b, odd_b, even_b),
            fma(-b, odd_b, even_b),
            g[3]};
}

// G: three taps to six points.
[[gnu::always_inline]] inline std::array<Vector, 6> taps_to_points(const std::array<Vector, 3>& g) {
    const Vector even_a = weight_a * fma(a2, g[2], g[0]), odd_a = weight_a * a * g[1];
    const Vector even_b = weight_b * fma(b2, g[2], g[0]), odd_b = weight_b * b * g[1];
    return {weight_0 * g[0], even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, g[2]};
}

// G^T, the transpose of it.
[[gnu::always_inline]] inline std::array<Vector, 3> points_to_taps(const std::array<Vector, 6>& m) {
    const Vector sum_a = weight_a * (m[1] + m[2]), difference_a = weight_a * (m[1] - m[2]);
    const Vector sum_b = weight_b * (m[3] + m[4]), difference_b = weight_b * (m[3] - m[4]);
    return {fma(weight_0, m[0], sum_a + sum_b), fma(a, difference_a, b * difference_b),
            fma(a2, sum_a, fma(b2, sum_b, m[5]))};
}

// Applies a transform to the columns of a square of vectors and then to its rows: read(column)
// gives the values of a column, write(row, column, value) takes those of the result.
template <size_t From, size_t To, typename Transform, typename Read, typename Write>
[[gnu::always_inline]] inline void transform_square(Transform transform, Read read, Write write) {
    std::array<std::array<Vector, From>, To> half;
#pragma GCC unroll 6
    for (size_t column = 0; column < From; ++column) {
        const std::array<Vector, To> of_column = transform(read(column));
#pragma GCC unroll 6
        for (size_t row = 0; row < To; ++row)
            half[row][column] = of_column[row];
    }
#pragma GCC unroll 6
    for (size_t row = 0; row < To; ++row) {
        const std::array<Vector, To> of_row = transform(half[row]);
#pragma GCC unroll 6
        for (size_t column = 0; column < To; ++column)
            write(row, column, of_row[column]);
    }
}

// A column of `Rows` values, of which load(row) gives each.
template <size_t Rows, typename Load>
[[gnu::always_inline]] inline std::array<Vector, Rows> column_of(Load load) {
    std::array<Vector, Rows> values;
#pragma GCC unroll 6
    for (size_t row = 0; row < Rows; ++row)
        values[row] = load(row);
    return values;
}

// Reads and writes of transform_square for the 36 points of a tile, which lie `stride` floats
// apart.
[[gnu::always_inline]] inline auto reads_points(const float* from, int64_t stride) {
    return [=](size_t column) __attribute__((always_inline)) {
        return column_of<6>([=](size_t row) __attribute__((always_inline)) {
            return load<block>(from + static_cast<int64_t>(6 * row + column) * stride);
        });
    };
}
[[gnu::always_inline]] inline auto writes_points(float* target, int64_t stride) {
    return [=](size_t row, size_t column, Vector value) __attribute__((always_inline)) {
        store<block>(target + static_cast<int64_t>(6 * row + column) * stride, value);
    };
}

// One tile's place: its sample, and the row and column of its first output.
struct Tile {
    int64_t sample, row, column;
};

class Tiles {
  public:
    explicit Tiles(const Geometry& geometry)
        : across_((geometry.width + 3) / 4), each_(across_ * ((geometry.height + 3) / 4)) {}
    Tile operator[](int64_t index) const {
        const int64_t inside = index % each_;
        return {index / each_, inside / across_ * 4, inside % across_ * 4};
    }

  private:
    int64_t across_, each_;
};

alignas(64) inline constexpr float nothing[block] = {};

// Transforms a tile of one block of channels, image [height, width, 16], with the border of zeros
// around the image, to target[point * stride].
template <typename T>
void transform_input(const T* image, const Geometry& geometry, const Tile& tile, float* target,
                     int64_t stride) {
    std::array<bool, 6> row_inside, column_inside;
    for (int64_t i = 0; i < 6; ++i) {
        const int64_t row = tile.row - 1 + i, column = tile.column - 1 + i;
        row_inside[static_cast<size_t>(i)] = row >= 0 && row < geometry.height;
        column_inside[static_cast<size_t>(i)] = column >= 0 && column < geometry.width;
    }
    const T* const corner = image + ((tile.row - 1) * geometry.width + tile.column - 1) * block;
    const int64_t row_stride = geometry.width * block;
    transform_square<6, 6>(
        to_points,
        [&](size_t column) __attribute__((always_inline)) {
            return column_of<6>([&](size_t row) __attribute__((always_inline)) {
                const T* const pixel = corner + static_cast<int64_t>(row) * row_stride +
                                       static_cast<int64_t>(column) * block;
                return load<block>(row_inside[row] && column_inside[column]
                                       ? pixel
                                       : reinterpret_cast<const T*>(nothing));
            });
        },
        writes_points(target, stride));
}

// A^T of both sides of points[point * stride], plus the bias, to the image's pixels.
template <typename T>
void transform_output(const float* from, int64_t stride, Vector bias, const Geometry& geometry,
                      const Tile& tile, T* image) {
    const int64_t rows = geometry.height - tile.row, columns = geometry.width - tile.column;
    T* const corner = image + (tile.row * geometry.width + tile.column) * block;
    const int64_t row_stride = geometry.width * block;
    const auto write_where = [&](auto inside) __attribute__((always_inline)) {
        transform_square<6, 4>(
            from_points, reads_points(from, stride),
            [&](size_t r, size_t c, Vector value) __attribute__((always_inline)) {
                const auto row = static_cast<int64_t>(r), column = static_cast<int64_t>(c);
                if (inside(row, column))
                    store<block>(corner + row * row_stride + column * block, value + bias);
            });
    };
    if (rows >= 4 && columns >= 4)
        write_where([](int64_t, int64_t) { return true; });
    else
        write_where([=](int64_t row, int64_t column) { return row < rows && column < columns; });
}

// A of both sides of a tile of the target's gradient, to target[point * stride]; returns the sum
// of the tile's pixels.
template <typename T>
Vector transform_gradient(const T* image, const Geometry& geometry, const Tile& tile, float* target,
                          int64_t stride) {
    const T* const corner = image + (tile.row * geometry.width + tile.column) * block;
    Vector sum{};
    transform_square<4, 6>(
        gradient_to_points,
        [&](size_t column) __attribute__((always_inline)) {
            const std::array<Vector, 4> values =
                column_of<4>([&](size_t row) __attribute__((always_inline)) {
                    const bool inside = tile.row + static_cast<int64_t>(row) < geometry.height &&
                                        tile.column + static_cast<int64_t>(column) < geometry.width;
                    const T* const pixel = corner + (static_cast<int64_t>(row) * geometry.width +
                                                     static_cast<int64_t>(column)) *
                                                        block;
                    return load<block>(inside ? pixel : reinterpret_cast<const T*>(nothing));
                });
            sum += (values[0] + values[1]) + (values[2] + values[3]);
            return values;
        },
        writes_points(target, stride));
    return sum;
}

// The taps of one input channel and one block of outputs, to target[point * stride].
inline void transform_taps(const float* taps, bool rotated, float* target, int64_t stride) {
    transform_square<3, 6>(
        taps_to_points,
        [&](size_t column) __attribute__((always_inline)) {
            return column_of<3>([&](size_t row) __attribute__((always_inline)) {
                const size_t tap = 3 * row + column;
                return load<block>(taps + (rotated ? 8 - tap : tap) * block * block);
            });
        },
        writes_points(target, stride));
}

// The gradient of the taps of one input channel and one block of outputs from points[point *
// stride].
inline void gradient_of_taps(const float* from, int64_t stride, float* taps) {
    transform_square<6, 3>(
        points_to_taps, reads_points(from, stride),
        [&](size_t row, size_t column, Vector value) __attribute__((always_inline)) {
            store<block>(taps + (3 * row + column) * block * block, value);
        });
}

}  // namespace trainer::cpu::winograd
