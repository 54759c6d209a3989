#include "data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "engine/error.h"

namespace trainer {

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
    weights.assign(static_cast<size_t>(count * taps), 0.0F);
    begin = source;
    end = 0;
    for (int64_t i = 0; i < count; ++i) {
        const auto [centre, low, high] = reach_of(i);
        // Near the end the taps begin earlier, with weights of 0.
        const int64_t from = std::min(low, source - taps);
        first[static_cast<size_t>(i)] = static_cast<int32_t>(from);
        float* own = weights.data() + i * taps;
        const auto weight = [&, middle = centre](int64_t pixel) {
            return std::max(0.0, 1 - std::abs((static_cast<double>(pixel) + 0.5 - middle) / reach));
        };
        double sum = 0;
        for (int64_t pixel = low; pixel < high; ++pixel)
            sum += weight(pixel);
        for (int64_t pixel = low; pixel < high; ++pixel)
            own[pixel - from] = static_cast<float>(weight(pixel) / sum);
        begin = std::min(begin, from);
        end = std::max(end, from + taps);
    }
}

namespace {

/// The weighted sum of `taps` rows of `length` bytes, `stride` bytes apart. Taps > 0: as many.
template <int64_t Taps>
void sum_rows(const uint8_t* rows, int64_t stride, const float* weights, int64_t taps,
              int64_t length, float* out) {
    const int64_t count = Taps > 0 ? Taps : taps;
    for (int64_t i = 0; i < length; ++i) {
        float sum = weights[0] * static_cast<float>(rows[i]);
        for (int64_t k = 1; k < count; ++k)
            sum += weights[k] * static_cast<float>(rows[k * stride + i]);
        out[i] = sum;
    }
}

typedef float Four __attribute__((vector_size(16)));
typedef int32_t FourInts __attribute__((vector_size(16)));

/// Three channels side by side; the fourth lane reads the next pixel's, and is not used.
template <int64_t Taps>
void sum_columns(const float* row, const ResampleAxis& axis, uint8_t* out) {
    const int64_t count = Taps > 0 ? Taps : axis.taps;
    const float* weights = axis.weights.data();
    for (const int32_t first : axis.first) {
        const float* from = row + (first - axis.begin) * 3;
        Four sum = {0.5F, 0.5F, 0.5F, 0.5F};
        for (int64_t k = 0; k < count; ++k) {
            Four pixel;
            std::memcpy(&pixel, from + 3 * k, sizeof pixel);
            sum += weights[k] * pixel;
        }
        // Weights are not negative and sum up to 1: what is rounded here lies in [0, 256).
        const FourInts rounded = __builtin_convertvector(sum, FourInts);
        for (int c = 0; c < 3; ++c)
            out[c] = static_cast<uint8_t>(rounded[c]);
        weights += count;
        out += 3;
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

}  // namespace

void Resampler::run(const Image& part, const ResampleAxis& rows, const ResampleAxis& columns,
                    Image& out) {
    check(part.height == rows.end - rows.begin && part.width == columns.end - columns.begin,
          "the part of an image that its axes say");
    out.height = std::ssize(rows.first);
    out.width = std::ssize(columns.first);
    out.pixels.resize(static_cast<size_t>(out.height * out.width * 3));
    const int64_t stride = part.width * 3;
    row_.resize(static_cast<size_t>(stride) + 4);
    for (int64_t y = 0; y < out.height; ++y) {
        const int64_t first = rows.first[static_cast<size_t>(y)] - rows.begin;
        const uint8_t* from = part.pixels.data() + first * stride;
        const float* weights = rows.weights.data() + y * rows.taps;
        with_taps(rows.taps, [&](auto taps) {
            sum_rows<taps>(from, stride, weights, rows.taps, stride, row_.data());
        });
        uint8_t* to = out.pixels.data() + y * out.width * 3;
        with_taps(columns.taps, [&](auto taps) { sum_columns<taps>(row_.data(), columns, to); });
    }
}

}  // namespace trainer
