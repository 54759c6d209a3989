#include "data/augment.h"

#include <algorithm>
#include <string>

#include "engine/error.h"

namespace trainer {

namespace {

// One row of the result: `row` is the row that it shows, or nullptr for padding.
void write_row(const Transform& transform, const float* table, const uint8_t* row, int64_t width,
               float* out) {
    if (row == nullptr) {
        std::fill_n(out, width, table[0]);
        return;
    }
    // Columns [first, last) of the window lie inside the image.
    const int64_t first = std::max<int64_t>(0, -transform.shift_x);
    const int64_t last = std::min(width, width - transform.shift_x);
    if (!transform.flip) {
        std::fill(out, out + first, table[0]);
        for (int64_t x = first; x < last; ++x)
            out[x] = table[row[x + transform.shift_x]];
        std::fill(out + last, out + width, table[0]);
    } else {
        std::fill(out, out + width - last, table[0]);
        for (int64_t x = width - last; x < width - first; ++x)
            out[x] = table[row[width - 1 - x + transform.shift_x]];
        std::fill(out + width - first, out + width, table[0]);
    }
}

}  // namespace

void check_crops(const CropOptions& options, int64_t height, int64_t width) {
    const int64_t side = std::min(height, width);
    if (options.pad_crop < 0 || options.pad_crop > side)
        throw UsageError("data.augment.pad_crop is " + std::to_string(options.pad_crop) +
                         "; for images of " + std::to_string(height) + "x" + std::to_string(width) +
                         " it is 0 to " + std::to_string(side));
    if (options.cutout < 0)
        throw UsageError("data.augment.cutout is " + std::to_string(options.cutout) +
                         "; it is the side of a square in pixels, 0 for none");
}

void apply_transform(const Transform& transform, const Normalizer& normalizer, const uint8_t* image,
                     int64_t channels, int64_t height, int64_t width, float* out) {
    for (int64_t channel = 0; channel < channels; ++channel)
        for (int64_t y = 0; y < height; ++y, out += width) {
            const int64_t from = y + transform.shift_y;
            const bool inside = from >= 0 && from < height;
            write_row(transform, normalizer.table(channel),
                      inside ? image + (channel * height + from) * width : nullptr, width, out);
            if (y >= transform.cut_top && y < transform.cut_bottom)
                std::fill(out + transform.cut_left, out + transform.cut_right, 0.0F);
        }
}

}  // namespace trainer
