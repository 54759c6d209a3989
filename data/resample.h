// Resizing as torchvision does it to photographs: bilinear, antialiased. A pixel of the result is
// the mean of the pixels around its place, weighted by a triangle whose half-width is the scale, or
// one pixel where the image grows.
//
// Rows first, then columns, with 7 bits behind the point in between; Pillow, which torchvision
// calls, rounds to whole levels in between, so that results differ from its by one level of 255 at
// most.
#pragma once

#include <cstdint>
#include <vector>

#include "data/image.h"

namespace trainer {

/// How one axis is resized: pixel i of the result is the sum over k < taps of
/// weights[i * taps + k] / 2^15 times pixel first[i] + k of the source.
struct ResampleAxis {
    int64_t taps = 0;
    std::vector<int32_t> first;    // [count], ascending unless mirrored
    std::vector<int16_t> weights;  // [count, taps]; those of a pixel sum up to 2^15, or 1 less
    /// The part of the source that is used.
    int64_t begin = 0, end = 0;

    /// Plans pixels [start, start + count) of a resize from `source` to `target` pixels; uses the
    /// memory that it has. REQUIRES: source, target, count > 0, 0 <= start <= target - count.
    void plan(int64_t source, int64_t target, int64_t start, int64_t count);

    /// The same pixels in the opposite order. Of columns alone: rows are resized as they come.
    void mirror();
};

/// Resizes images, one after another, row by row as a decoder gives them, in memory that it keeps.
/// Of one thread at a time.
class Resampler {
  public:
    /// Begins with an image of which `out` gets the pixels that the axes plan; all three live until
    /// the last row is there.
    void begin(const ResampleAxis& rows, const ResampleAxis& columns, Image& out);

    /// Takes the next of the source's rows [rows.begin, rows.end): its pixels [columns.begin,
    /// columns.end). With the last, `out` is complete.
    void add_row(const uint8_t* pixels);

    /// All of it, of a `part` that holds these rows and columns.
    void run(const Image& part, const ResampleAxis& rows, const ResampleAxis& columns, Image& out);

  private:
    void finish_block();

    const ResampleAxis *rows_ = nullptr, *columns_ = nullptr;
    Image* out_ = nullptr;
    int64_t values_ = 0;  // of the part of a row that is used: 3 a pixel
    int64_t width_ = 0;   // the same and that of the result, rounded up to whole tiles
    int64_t out_width_ = 0;
    int64_t taken_ = 0;  // rows of the source
    int64_t made_ = 0;   // rows of the result, resized vertically

    // Values times 2^7.
    std::vector<int16_t> ring_;   // [rows' taps, width_], the rows taken last
    std::vector<int16_t> block_;  // [16, width_ or out_width_], resized vertically, then wholly
    std::vector<int16_t> columns_of_block_;  // [width_, 16], turned
    std::vector<int16_t> result_;            // [out_width_, 16], resized wholly, turned
};

}  // namespace trainer
