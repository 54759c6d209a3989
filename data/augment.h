// Augmentation: what is done to an image before a training step sees it. Every draw is a pure
// function of (seed, epoch, sample), whoever computes it.
#pragma once

#include <cstdint>

#include "data/normalization.h"
#include "data/photo_transform.h"
#include "engine/augmentation.h"

namespace trainer {

struct AugmentOptions {
    /// As CropOptions.
    int64_t pad_crop = 0;
    bool flip = false;
    int64_t cutout = 0;
    /// Of photographs, in place of all the above.
    PhotoAugmentOptions photo = {};

    CropOptions crops() const { return {pad_crop, flip, cutout}; }
};

/// Throws UsageError where an option is out of range for images of height x width.
void check_augmentation(const AugmentOptions& options, int64_t height, int64_t width);

/// Transform::draw for images of height x width.
Transform draw_transform(const AugmentOptions& options, int64_t height, int64_t width,
                         uint64_t seed, int64_t epoch, int64_t sample);

/// Writes `image`, uint8 [channels, height, width], transformed and normalised to `out`, float of
/// the same shape. |shift_y| <= height and |shift_x| <= width.
void apply_transform(const Transform& transform, const Normalizer& normalizer, const uint8_t* image,
                     int64_t channels, int64_t height, int64_t width, float* out);

}  // namespace trainer
