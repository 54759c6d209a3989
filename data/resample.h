// Resizing as torchvision does it to photographs: bilinear, antialiased. A pixel of the result is
// the mean of the pixels around its place, weighted by a triangle whose half-width is the scale, or
// one pixel where the image grows.
//
// Rows first, then columns, in fp32, rounded once at the end; Pillow, which torchvision calls,
// rounds in between as well, so that results differ from its by one level of 255 at most.
#pragma once

#include <cstdint>
#include <vector>

#include "data/image.h"

namespace trainer {

/// How one axis is resized: pixel i of the result is the sum over k < taps of
/// weights[i * taps + k] times pixel first[i] + k of the source.
struct ResampleAxis {
    int64_t taps = 0;
    std::vector<int32_t> first;  // [count]
    std::vector<float> weights;  // [count, taps]; those of a pixel sum up to 1
    /// The part of the source that is used.
    int64_t begin = 0, end = 0;

    /// Plans pixels [start, start + count) of a resize from `source` to `target` pixels; uses the
    /// memory that it has. REQUIRES: source, target, count > 0, 0 <= start <= target - count.
    void plan(int64_t source, int64_t target, int64_t start, int64_t count);
};

/// Resizes images, one after another, in memory that it keeps. Of one thread at a time.
class Resampler {
  public:
    /// `part` holds the source's rows [rows.begin, rows.end) and columns [columns.begin,
    /// columns.end); `out` gets the pixels that the axes plan.
    void run(const Image& part, const ResampleAxis& rows, const ResampleAxis& columns, Image& out);

  private:
    std::vector<float> row_;  // one row of `part`, resized vertically; and 4 floats more
};

}  // namespace trainer
