// Augmentation: what is done to an image before a training step sees it. Every draw is a pure
// function of (seed, epoch, sample), whoever computes it.
#pragma once

#include <cstdint>

#include "data/normalization.h"
#include "data/photo_transform.h"

namespace trainer {

struct AugmentOptions {
    /// Pixels of zero padding at each edge, out of which a window of the image's own size is cut
    /// at random; 0: off. The padding is black: normalised like a pixel of value 0.
    int64_t pad_crop = 0;
    /// Mirrors every second image, left to right.
    bool flip = false;
    /// Side of a square at a random place that is set to 0 after normalisation, which is the mean
    /// (cutout, arXiv 1708.04552: the centre is uniform in the image, so that part of the square
    /// may lie outside); 0: off.
    int64_t cutout = 0;
    /// Of photographs, in place of all the above.
    PhotoAugmentOptions photo = {};
};

/// What augmentation does to one image. The default leaves it alone.
struct Transform {
    int64_t shift_y = 0, shift_x = 0;  ///< pixel (y, x) shows pixel (y + shift_y, x + shift_x)
    bool flip = false;                 ///< after the shift
    /// Rows [cut_top, cut_bottom) of columns [cut_left, cut_right) of what comes out are 0.
    int64_t cut_top = 0, cut_bottom = 0, cut_left = 0, cut_right = 0;

    bool operator==(const Transform&) const = default;
};

/// Throws UsageError where an option is out of range for images of height x width.
void check_augmentation(const AugmentOptions& options, int64_t height, int64_t width);

/// The transform of sample `sample` (its index in the data set) in epoch `epoch`.
///
/// From Random{seed, RandomPurpose::augmentation, epoch, sample} are drawn, always and in this
/// order, so that switching one on or off leaves the others as they were:
///   below(2 * pad_crop + 1) - pad_crop  shift_y
///   below(2 * pad_crop + 1) - pad_crop  shift_x
///   below(2)                            flip, where 1
///   below(height)                       row of the cutout's centre
///   below(width)                        column of the cutout's centre
/// The cutout reaches from centre - side / 2 (rounded down) over `side` pixels, less what lies
/// outside.
Transform draw_transform(const AugmentOptions& options, int64_t height, int64_t width,
                         uint64_t seed, int64_t epoch, int64_t sample);

/// Writes `image`, uint8 [channels, height, width], transformed and normalised to `out`, float of
/// the same shape. |shift_y| <= height and |shift_x| <= width.
void apply_transform(const Transform& transform, const Normalizer& normalizer, const uint8_t* image,
                     int64_t channels, int64_t height, int64_t width, float* out);

}  // namespace trainer
