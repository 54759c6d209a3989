// Augmentation of small images, the same on the processor and on a GPU: every draw is a pure
// function of (seed, epoch, sample), whoever computes it.
#pragma once

#include <cstdint>

#include "engine/host_device.h"
#include "engine/random.h"

namespace trainer {

struct CropOptions {
    /// Pixels of zero padding at each edge, out of which a window of the image's own size is cut
    /// at random; 0: off. The padding is black: normalised like a pixel of value 0.
    int64_t pad_crop = 0;
    /// Mirrors every second image, left to right.
    bool flip = false;
    /// Side of a square at a random place that is set to 0 after normalisation, which is the mean
    /// (cutout, arXiv 1708.04552: the centre is uniform in the image, so that part of the square
    /// may lie outside); 0: off.
    int64_t cutout = 0;
};

/// What augmentation does to one image. The default leaves it alone.
struct Transform {
    int64_t shift_y = 0, shift_x = 0;  ///< pixel (y, x) shows pixel (y + shift_y, x + shift_x)
    bool flip = false;                 ///< after the shift
    /// Rows [cut_top, cut_bottom) of columns [cut_left, cut_right) of what comes out are 0.
    int64_t cut_top = 0, cut_bottom = 0, cut_left = 0, cut_right = 0;

    bool operator==(const Transform&) const = default;

    /// That of sample `sample` (its index in the data set) in epoch `epoch`.
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
    TRAINER_HOST_DEVICE static Transform draw(const CropOptions& options, int64_t height,
                                              int64_t width, uint64_t seed, uint64_t epoch,
                                              uint64_t sample) {
        uint64_t state = 0;
        const uint64_t key[] = {seed, static_cast<uint64_t>(RandomPurpose::augmentation), epoch,
                                sample};
        for (const uint64_t part : key)
            state = Random::absorb(state, part);
        const auto below = [state](uint64_t index, int64_t n) {
            return static_cast<int64_t>(
                Random::below_of(Random::number_at(state, index), static_cast<uint64_t>(n)));
        };
        Transform transform;
        transform.shift_y = below(0, 2 * options.pad_crop + 1) - options.pad_crop;
        transform.shift_x = below(1, 2 * options.pad_crop + 1) - options.pad_crop;
        transform.flip = below(2, 2) == 1 && options.flip;
        const int64_t top = below(3, height) - options.cutout / 2;
        const int64_t left = below(4, width) - options.cutout / 2;
        if (options.cutout > 0) {
            transform.cut_top = top > 0 ? top : 0;
            transform.cut_bottom = top + options.cutout < height ? top + options.cutout : height;
            transform.cut_left = left > 0 ? left : 0;
            transform.cut_right = left + options.cutout < width ? left + options.cutout : width;
        }
        return transform;
    }

    /// Whether pixel (y, x) of what comes out lies in the cutout.
    TRAINER_HOST_DEVICE bool cuts(int64_t y, int64_t x) const {
        return y >= cut_top && y < cut_bottom && x >= cut_left && x < cut_right;
    }

    /// Which pixel of the image pixel (y, x) of what comes out shows, row after row; -1: padding.
    TRAINER_HOST_DEVICE int64_t source(int64_t y, int64_t x, int64_t height, int64_t width) const {
        const int64_t row = y + shift_y, column = (flip ? width - 1 - x : x) + shift_x;
        const bool inside = row >= 0 && row < height && column >= 0 && column < width;
        return inside ? row * width + column : -1;
    }
};

}  // namespace trainer
