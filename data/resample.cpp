// The arithmetic is in 16 bits, sixteen values at a time: vertically along a row; horizontally,
// where the weights change from pixel to pixel, over blocks of sixteen rows that are turned for it,
// so that the same column of all of them lies side by side.
#include "data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "engine/error.h"

namespace trainer {

namespace {

constexpr int64_t block_rows = 16;
constexpr int weight_bits = 15, value_bits = 7;

/// Weights of [0, 1] in units of 2^-15 that sum up to what theirs do; 1 itself is a unit less.
void quantize(const double* weights, int64_t count, int16_t* out) {
    constexpr int one = 1 << weight_bits;
    int rest = one;
    int64_t largest = 0;
    for (int64_t k = 0; k < count; ++k) {
        const int weight = static_cast<int>(weights[k] * one + 0.5);
        out[k] = static_cast<int16_t>(std::min(weight, one - 1));
        rest -= weight;
        if (weights[k] > weights[largest])
            largest = k;
    }
    out[largest] = static_cast<int16_t>(std::min(out[largest] + rest, one - 1));
}

}  // namespace

void ResampleAxis::plan(int64_t source, int64_t target, int64_t start, int64_t count) {
    check(source > 0 && count > 0 && start >= 0 && start <= target - count, "an axis to resize");
    const double scale = static_cast<double>(source) / static_cast<double>(target);
    const double reach = std::max(scale, 1.0);  // half the width of the triangle
    struct Reach {
        double centre;
        int64_t low, high;  // the pixels that the triangle covers
    };
    const auto reach_of = [&](int64_t i) {
        const double centre = (static_cast<double>(start + i) + 0.5) * scale;
        return Reach{centre,
                     std::max<int64_t>(0, static_cast<int64_t>(std::floor(centre - reach + 0.5))),
                     std::min(source, static_cast<int64_t>(std::floor(centre + reach + 0.5)))};
    };
    taps = 1;
    for (int64_t i = 0; i < count; ++i)
        taps = std::max(taps, reach_of(i).high - reach_of(i).low);
    first.resize(static_cast<size_t>(count));
    weights.assign(static_cast<size_t>(count * taps), 0);
    begin = source;
    end = 0;
    std::vector<double> exact(static_cast<size_t>(taps));
    for (int64_t i = 0; i < count; ++i) {
        const auto [centre, low, high] = reach_of(i);
        // Near the end the taps begin earlier, with weights of 0.
        const int64_t from = std::min(low, source - taps);
        first[static_cast<size_t>(i)] = static_cast<int32_t>(from);
        double sum = 0;
        for (int64_t k = 0; k < high - low; ++k) {
            const double distance = std::abs((static_cast<double>(low + k) + 0.5 - centre) / reach);
            sum += exact[static_cast<size_t>(k)] = std::max(0.0, 1 - distance);
        }
        for (int64_t k = 0; k < high - low; ++k)
            exact[static_cast<size_t>(k)] /= sum;
        quantize(exact.data(), high - low, weights.data() + i * taps + (low - from));
        begin = std::min(begin, from);
        end = std::max(end, from + taps);
    }
}

void ResampleAxis::mirror() {
    std::reverse(first.begin(), first.end());
    for (int64_t from = 0, to = std::ssize(first) - 1; from < to; ++from, --to)
        std::swap_ranges(weights.begin() + from * taps, weights.begin() + (from + 1) * taps,
                         weights.begin() + to * taps);
}

namespace {

/// value * weight / 2^15, rounded; one instruction on many processors, in these very words.
int16_t scaled(int16_t value, int16_t weight) {
    return static_cast<int16_t>(((value * weight >> (weight_bits - 1)) + 1) >> 1);
}

/// The weighted sums of `taps` vectors of `length` values, vector k at from(k). Taps > 0: as many,
/// each product rounded. 0: any number; their roundings would add up, so that only sums are
/// rounded.
template <int64_t Taps, typename From>
void sum(From from, const int16_t* weights, int64_t taps, int64_t length, int16_t* out) {
    if constexpr (Taps > 0) {
        const int16_t* vectors[Taps];
        for (int64_t k = 0; k < Taps; ++k)
            vectors[k] = from(k);
#pragma GCC ivdep
        for (int64_t i = 0; i < length; ++i) {
            int16_t total = 0;
            for (int64_t k = 0; k < Taps; ++k)
                total = static_cast<int16_t>(total + scaled(vectors[k][i], weights[k]));
            out[i] = total;
        }
    } else {
        constexpr int64_t most = 48;
        for (int64_t start = 0; start < length; start += most) {
            const int64_t count = std::min(most, length - start);
            int32_t totals[most] = {};
            for (int64_t k = 0; k < taps; ++k) {
                const int16_t* values = from(k) + start;
                for (int64_t i = 0; i < count; ++i)
                    totals[i] += values[i] * weights[k];
            }
            for (int64_t i = 0; i < count; ++i)
                out[start + i] =
                    static_cast<int16_t>((totals[i] + (1 << (weight_bits - 1))) >> weight_bits);
        }
    }
}

/// Calls use(a constant) for the usual numbers of taps, which compilers unroll; 0: any number.
template <typename Use>
void with_taps(int64_t taps, Use use) {
    switch (taps) {
        case 2:
            return use(std::integral_constant<int64_t, 2>());
        case 3:
            return use(std::integral_constant<int64_t, 3>());
        case 4:
            return use(std::integral_constant<int64_t, 4>());
        case 5:
            return use(std::integral_constant<int64_t, 5>());
        case 6:
            return use(std::integral_constant<int64_t, 6>());
        default:
            return use(std::integral_constant<int64_t, 0>());
    }
}

/// Columns of a turned block, resized: of [.., 3, 16] each pixel of the result, [.., 3, 16].
template <int64_t Taps>
void sum_columns(const int16_t* block, const ResampleAxis& axis, int16_t* out) {
    constexpr int64_t pixel = 3 * block_rows;
    const int16_t* weights = axis.weights.data();
    for (const int32_t first : axis.first) {
        const int16_t* from = block + (first - axis.begin) * pixel;
        sum<Taps>([&](int64_t k) { return from + k * pixel; }, weights, axis.taps, pixel, out);
        weights += axis.taps;
        out += pixel;
    }
}

typedef int16_t Eight __attribute__((vector_size(16)));

/// Turns 8 x 8 values: rows `from_stride` apart become columns of rows `to_stride` apart.
void turn_tile(const int16_t* from, int64_t from_stride, int16_t* to, int64_t to_stride) {
    Eight rows[8], mixed[8];
    for (int64_t i = 0; i < 8; ++i)
        std::memcpy(&rows[i], from + i * from_stride, sizeof(Eight));
    for (int pass = 0; pass < 3; ++pass) {
        for (size_t i = 0; i < 4; ++i) {
            mixed[2 * i] = __builtin_shufflevector(rows[i], rows[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
            mixed[2 * i + 1] =
                __builtin_shufflevector(rows[i], rows[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        std::copy(mixed, mixed + 8, rows);
    }
    for (int64_t i = 0; i < 8; ++i)
        std::memcpy(to + i * to_stride, &rows[i], sizeof(Eight));
}

/// Turns [rows, columns], both multiples of 8.
void turn(const int16_t* from, int64_t rows, int64_t columns, int16_t* to) {
    for (int64_t row = 0; row < rows; row += 8)
        for (int64_t column = 0; column < columns; column += 8)
            turn_tile(from + row * columns + column, columns, to + column * rows + row, rows);
}

int64_t whole_tiles(int64_t values) {
    return (values + 7) / 8 * 8;
}

}  // namespace

void Resampler::begin(const ResampleAxis& rows, const ResampleAxis& columns, Image& out) {
    rows_ = &rows;
    columns_ = &columns;
    out_ = &out;
    out.height = std::ssize(rows.first);
    out.width = std::ssize(columns.first);
    out.pixels.resize(static_cast<size_t>(out.height * out.width * 3));
    values_ = (columns.end - columns.begin) * 3;
    width_ = whole_tiles(values_);
    out_width_ = whole_tiles(out.width * 3);
    taken_ = made_ = 0;
    const auto hold = [](std::vector<int16_t>& values, int64_t count) {
        if (std::ssize(values) < count)
            values.resize(static_cast<size_t>(count));
    };
    hold(ring_, rows.taps * width_);
    hold(block_, block_rows * std::max(width_, out_width_));
    hold(columns_of_block_, block_rows * width_);
    hold(result_, block_rows * out_width_);
}

void Resampler::add_row(const uint8_t* pixels) {
    const int64_t taps = rows_->taps, height = out_->height;
    int16_t* row = ring_.data() + taken_ % taps * width_;
    for (int64_t i = 0; i < values_; ++i)
        row[i] = static_cast<int16_t>(pixels[i] << value_bits);
    ++taken_;
    // The rows of the result whose last tap this one is.
    for (; made_ < height; ++made_) {
        const int64_t first = rows_->first[static_cast<size_t>(made_)] - rows_->begin;
        if (first + taps > taken_)
            break;
        const auto from = [&](int64_t k) { return ring_.data() + (first + k) % taps * width_; };
        with_taps(taps, [&](auto count) {
            sum<count>(from, rows_->weights.data() + made_ * taps, taps, width_,
                       block_.data() + made_ % block_rows * width_);
        });
        if (made_ % block_rows == block_rows - 1 || made_ == height - 1)
            finish_block();
    }
}

void Resampler::finish_block() {
    turn(block_.data(), block_rows, width_, columns_of_block_.data());
    with_taps(columns_->taps, [&](auto taps) {
        sum_columns<taps>(columns_of_block_.data(), *columns_, result_.data());
    });
    turn(result_.data(), out_width_, block_rows, block_.data());
    const int64_t first = made_ / block_rows * block_rows, length = out_->width * 3;
    for (int64_t y = first; y <= made_; ++y) {
        const int16_t* from = block_.data() + (y - first) * out_width_;
        uint8_t* to = out_->pixels.data() + y * length;
        for (int64_t i = 0; i < length; ++i)
            to[i] = static_cast<uint8_t>((from[i] + (1 << (value_bits - 1))) >> value_bits);
    }
}

void Resampler::run(const Image& part, const ResampleAxis& rows, const ResampleAxis& columns,
                    Image& out) {
    check(part.height == rows.end - rows.begin && part.width == columns.end - columns.begin,
          "the part of an image that its axes say");
    begin(rows, columns, out);
    for (int64_t y = 0; y < part.height; ++y)
        add_row(part.pixels.data() + y * part.width * 3);
}

}  // namespace trainer
