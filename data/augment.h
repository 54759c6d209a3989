// Augmentation: what is done to an image before a training step sees it. Every draw is a pure
// function of (seed, epoch, sample), whoever computes it.
#pragma once

#include <cstdint>

#include "data/normalization.h"
#include "data/photo_transform.h"
#include "engine/augmentation.h"

namespace trainer {

struct AugmentOptions {
    CropOptions crops = {};          ///< of small images
    PhotoAugmentOptions photo = {};  ///< of photographs, in place of `crops`
};

/// Throws UsageError where an option is out of range for images of height x width.
void check_crops(const CropOptions& options, int64_t height, int64_t width);

/// Writes `image`, uint8 [channels, height, width], transformed and normalised to `out`, float of
/// the same shape. |shift_y| <= height and |shift_x| <= width.
void apply_transform(const Transform& transform, const Normalizer& normalizer, const uint8_t* image,
                     int64_t channels, int64_t height, int64_t width, float* out);

}  // namespace trainer
