// What is done to a photograph, of any size, before the network sees it: the training transform
// of the Inception recipe (Szegedy et al., arXiv 1409.4842, section 6; as torchvision's
// RandomResizedCrop), a flip, colour jitter; and the resize and centre crop of evaluation.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "data/image.h"
#include "data/normalization.h"
#include "data/resample.h"

namespace trainer {

struct PhotoAugmentOptions {
    bool crop = false;  ///< a random part of the image; else the middle, as in evaluation
    /// Of the crop: its share of the image's area, and width by height.
    double scale_low = 0.08, scale_high = 1;
    double ratio_low = 3.0 / 4, ratio_high = 4.0 / 3;
    bool flip = false;  ///< mirrors every second image, left to right
    /// Brightness, contrast, saturation: factors from max(0, 1 - v) to 1 + v; hue: a turn from -v
    /// to v of the whole circle. 0: off.
    std::array<double, 4> jitter{};
};

/// Throws UsageError where an option is out of range, with the config's name of it.
void check_photo_augmentation(const PhotoAugmentOptions& options);

/// What augmentation does to one photograph.
struct PhotoTransform {
    Box crop;
    bool flip = false;
    /// The order in which 0 brightness, 1 contrast, 2 saturation, 3 hue are changed, and by what.
    std::array<int, 4> order{0, 1, 2, 3};
    std::array<double, 4> change{1, 1, 1, 0};
};

/// The crop of RandomResizedCrop for an image of height x width. Up to ten times an area and the
/// logarithm of a ratio are drawn; the first that fits gets a place, also drawn. Where none fits,
/// the largest middle part within the ratios.
///   uniform() in [0, 1)  share of the area, between scale_low and scale_high
///   uniform() in [0, 1)  log of the ratio, between log ratio_low and log ratio_high
///   below(n) in [0, n)   top, n = height - crop's height + 1; then left, likewise; if it fits
Box draw_crop(const PhotoAugmentOptions& options, int64_t height, int64_t width,
              const std::function<double()>& uniform, const std::function<int64_t(int64_t)>& below);

/// The transform of sample `sample` in epoch `epoch`: a pure function of its arguments. From
/// Random{seed, RandomPurpose::augmentation, epoch, sample} are drawn, always and in this order:
///   below(2)            flip, where 1
///   uniform() 4 times   brightness, contrast, saturation, hue, between their bounds
///   below(4), below(3), below(2)   their order: place 3, 2, 1 swapped with the place drawn
///   draw_crop's
PhotoTransform draw_photo_transform(const PhotoAugmentOptions& options, int64_t height,
                                    int64_t width, uint64_t seed, int64_t epoch, int64_t sample);

/// Changes the colours of an image as torchvision's ColorJitter does, values rounded down.
void jitter_colours(const PhotoTransform& transform, Image& image);

/// Makes network inputs of photographs, one after another, in memory that it keeps. Of one thread
/// at a time.
class PhotoTransformer {
  public:
    /// `size`: height and width of what comes out; `resize`: the shorter side before the centre
    /// crop. REQUIRES: 0 < size <= resize.
    PhotoTransformer(int64_t size, int64_t resize) : size_(size), resize_(resize) {}

    /// For training: `crop` of the image that `decoder` has open, resized to [size, size]; `flip`:
    /// mirrored, left to right.
    Image& train(ImageDecoder& decoder, const Box& crop, bool flip = false);

    /// For evaluation: the shorter side becomes `resize`, and the middle is cut out.
    Image& evaluate(ImageDecoder& decoder, bool flip = false);

  private:
    Image& resample(ImageDecoder& decoder, const Box& box, bool flip);

    int64_t size_, resize_;
    ResampleAxis rows_, columns_;
    Resampler resampler_;
    Image result_;
};

/// Writes `image` to `out`, float [3, height, width], normalised.
void normalize_photo(const Image& image, const Normalizer& normalizer, float* out);

}  // namespace trainer
