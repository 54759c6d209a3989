#include "data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/error.h"

namespace trainer {

void ResampleAxis::plan(int64_t source, int64_t target, int64_t start, int64_t count) {
    check(source > 0 && count > 0 && start >= 0 && start <= target - count, "an axis to resize");
    const double scale = static_cast<double>(source) / static_cast<double>(target);
    const double reach = std::max(scale, 1.0);  // half the width of the triangle
    taps = std::min(source, static_cast<int64_t>(std::ceil(reach)) * 2 + 1);
    first.resize(static_cast<size_t>(count));
    weights.assign(static_cast<size_t>(count * taps), 0.0F);
    begin = source;
    end = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double centre = (static_cast<double>(start + i) + 0.5) * scale;
        const int64_t low =
            std::max<int64_t>(0, static_cast<int64_t>(std::floor(centre - reach + 0.5)));
        const int64_t high =
            std::min(source, static_cast<int64_t>(std::floor(centre + reach + 0.5)));
        // Near the end the taps begin earlier, with weights of 0.
        const int64_t from = std::min(low, source - taps);
        first[static_cast<size_t>(i)] = static_cast<int32_t>(from);
        float* own = weights.data() + i * taps;
        double sum = 0;
        const auto weight = [&](int64_t pixel) {
            return std::max(0.0, 1 - std::abs((static_cast<double>(pixel) + 0.5 - centre) / reach));
        };
        for (int64_t pixel = low; pixel < high; ++pixel)
            sum += weight(pixel);
        for (int64_t pixel = low; pixel < high; ++pixel)
            own[pixel - from] = static_cast<float>(weight(pixel) / sum);
        begin = std::min(begin, from);
        end = std::max(end, from + taps);
    }
}

namespace {

/// The weighted sum of `taps` rows of `length` bytes, `stride` bytes apart.
void sum_rows(const uint8_t* rows, int64_t stride, const float* weights, int64_t taps,
              int64_t length, float* out) {
    for (int64_t i = 0; i < length; ++i)
        out[i] = weights[0] * static_cast<float>(rows[i]);
    for (int64_t k = 1; k < taps; ++k) {
        if (weights[k] == 0)
            continue;
        const uint8_t* row = rows + k * stride;
        const float weight = weights[k];
        for (int64_t i = 0; i < length; ++i)
            out[i] += weight * static_cast<float>(row[i]);
    }
}

typedef float Four __attribute__((vector_size(16)));

/// Three channels side by side; the fourth lane reads the next pixel's, and is not used.
void sum_columns(const float* row, const ResampleAxis& axis, int64_t offset, uint8_t* out) {
    const int64_t taps = axis.taps;
    for (size_t x = 0; x < axis.first.size(); ++x, out += 3) {
        const float* from = row + (axis.first[x] - offset) * 3;
        const float* weights = axis.weights.data() + static_cast<int64_t>(x) * taps;
        Four sum{};
        for (int64_t k = 0; k < taps; ++k) {
            Four pixel;
            std::memcpy(&pixel, from + 3 * k, sizeof pixel);
            sum += weights[k] * pixel;
        }
        sum += 0.5F;
        for (int c = 0; c < 3; ++c)  // weights are not negative: no value leaves [0, 255]
            out[c] = static_cast<uint8_t>(std::min(sum[c], 255.0F));
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
        sum_rows(part.pixels.data() + first * stride, stride, rows.weights.data() + y * rows.taps,
                 rows.taps, stride, row_.data());
        sum_columns(row_.data(), columns, columns.begin, out.pixels.data() + y * out.width * 3);
    }
}

}  // namespace trainer
