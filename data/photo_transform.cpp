#include "data/photo_transform.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/error.h"
#include "engine/random.h"

namespace trainer {

void check_photo_augmentation(const PhotoAugmentOptions& options) {
    const auto range = [](const char* key, double low, double high, double most) {
        if (!(low > 0 && low <= high && high <= most))
            throw UsageError(std::string(key) + " is [" + std::to_string(low) + ", " +
                             std::to_string(high) +
                             "]; it is a smaller and a larger number above " + "0" +
                             (most == 1 ? ", at most 1" : ""));
    };
    range("data.augment.scale", options.scale_low, options.scale_high, 1);
    range("data.augment.ratio", options.ratio_low, options.ratio_high, 1e3);
    for (const double value : options.jitter)
        if (!(value >= 0) || !std::isfinite(value))
            throw UsageError("data.augment.color_jitter has " + std::to_string(value) +
                             "; its numbers are at least 0");
    if (options.jitter[3] > 0.5)
        throw UsageError("data.augment.color_jitter: the hue's is at most 0.5, half a circle");
}

Box draw_crop(const PhotoAugmentOptions& options, int64_t height, int64_t width,
              const std::function<double()>& uniform,
              const std::function<int64_t(int64_t)>& below) {
    const double area = static_cast<double>(height) * static_cast<double>(width);
    const double log_low = std::log(options.ratio_low), log_high = std::log(options.ratio_high);
    const auto rounded = [](double value) { return static_cast<int64_t>(std::nearbyint(value)); };
    for (int attempt = 0; attempt < 10; ++attempt) {
        const double share =
            options.scale_low + (options.scale_high - options.scale_low) * uniform();
        const double ratio = std::exp(log_low + (log_high - log_low) * uniform());
        const int64_t w = rounded(std::sqrt(area * share * ratio));
        const int64_t h = rounded(std::sqrt(area * share / ratio));
        if (w > 0 && w <= width && h > 0 && h <= height) {
            const int64_t top = below(height - h + 1);
            const int64_t left = below(width - w + 1);
            return {top, left, h, w};
        }
    }
    Box box{0, 0, height, width};
    const double whole = static_cast<double>(width) / static_cast<double>(height);
    if (whole < options.ratio_low)
        box.height = rounded(static_cast<double>(width) / options.ratio_low);
    else if (whole > options.ratio_high)
        box.width = rounded(static_cast<double>(height) * options.ratio_high);
    box.height = std::clamp<int64_t>(box.height, 1, height);
    box.width = std::clamp<int64_t>(box.width, 1, width);
    box.top = (height - box.height) / 2;
    box.left = (width - box.width) / 2;
    return box;
}

PhotoTransform draw_photo_transform(const PhotoAugmentOptions& options, int64_t height,
                                    int64_t width, uint64_t seed, int64_t epoch, int64_t sample) {
    Random random{seed, static_cast<uint64_t>(RandomPurpose::augmentation),
                  static_cast<uint64_t>(epoch), static_cast<uint64_t>(sample)};
    const auto below = [&](int64_t n) {
        return static_cast<int64_t>(random.below(static_cast<uint64_t>(n)));
    };
    PhotoTransform transform;
    transform.flip = below(2) == 1 && options.flip;
    for (size_t i = 0; i < 4; ++i) {
        const double drawn = random.uniform(), v = options.jitter[i];
        const double low = i == 3 ? -v : std::max(0.0, 1 - v), high = i == 3 ? v : 1 + v;
        transform.change[i] = low + (high - low) * drawn;
    }
    for (size_t place = 3; place > 0; --place)
        std::swap(transform.order[place],
                  transform.order[static_cast<size_t>(below(static_cast<int64_t>(place) + 1))]);
    transform.crop = draw_crop(
        options, height, width, [&] { return random.uniform(); }, below);
    return transform;
}

namespace {

/// `value` of [0, 255], its fraction dropped.
uint8_t to_byte(double value) {
    return static_cast<uint8_t>(std::clamp(value, 0.0, 255.0));
}

/// Brightness (ITU-R BT.601) in 16 bits behind the point, rounded.
int gray_of(const uint8_t* pixel) {
    return (pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + 0x8000) >> 16;
}

/// Each pixel moves from what `anchor` makes of it by `factor`: 0 to it, 1 stays.
template <typename Anchor>
void blend(Image& image, double factor, Anchor anchor) {
    for (size_t i = 0; i < image.pixels.size(); i += 3) {
        uint8_t* pixel = image.pixels.data() + i;
        const double at = anchor(pixel);
        for (int c = 0; c < 3; ++c)
            pixel[c] = to_byte(at + factor * (pixel[c] - at));
    }
}

double mean_gray(const Image& image) {
    double sum = 0;
    for (size_t i = 0; i < image.pixels.size(); i += 3)
        sum += gray_of(image.pixels.data() + i);
    return std::floor(sum / static_cast<double>(image.pixels.size() / 3) + 0.5);
}

/// Turns the hue of the HSV colour model by `turn` of a circle.
void turn_hue(Image& image, double turn) {
    for (size_t i = 0; i < image.pixels.size(); i += 3) {
        uint8_t* pixel = image.pixels.data() + i;
        const double r = pixel[0], g = pixel[1], b = pixel[2];
        const double most = std::max({r, g, b}), least = std::min({r, g, b}), chroma = most - least;
        if (chroma == 0)
            continue;
        // In sixths of the circle, 0 is red.
        double hue = most == r   ? (g - b) / chroma
                     : most == g ? (b - r) / chroma + 2
                                 : (r - g) / chroma + 4;
        hue += 6 * turn + 12;
        const auto channel = [&](double shift) {
            const double k = std::fmod(hue + shift, 6.0);
            return most - chroma * std::clamp(std::min(k, 4 - k), 0.0, 1.0);
        };
        pixel[0] = to_byte(channel(5) + 0.5);
        pixel[1] = to_byte(channel(3) + 0.5);
        pixel[2] = to_byte(channel(1) + 0.5);
    }
}

}  // namespace

void jitter_colours(const PhotoTransform& transform, Image& image) {
    for (const int what : transform.order) {
        const double change = transform.change[static_cast<size_t>(what)];
        if (change == (what == 3 ? 0 : 1))
            continue;
        switch (what) {
            case 0:
                blend(image, change, [](const uint8_t*) { return 0.0; });
                break;
            case 1:
                blend(image, change, [mean = mean_gray(image)](const uint8_t*) { return mean; });
                break;
            case 2:
                blend(image, change,
                      [](const uint8_t* pixel) { return static_cast<double>(gray_of(pixel)); });
                break;
            default:
                turn_hue(image, change);
        }
    }
}

Image& PhotoTransformer::resample(ImageDecoder& decoder, const Box& box, bool flip) {
    if (flip)
        columns_.mirror();
    const Box used{box.top + rows_.begin, box.left + columns_.begin, rows_.end - rows_.begin,
                   columns_.end - columns_.begin};
    resampler_.begin(rows_, columns_, result_);
    decoder.decode(used, [this](const uint8_t* row) { resampler_.add_row(row); });
    return result_;
}

Image& PhotoTransformer::train(ImageDecoder& decoder, const Box& crop, bool flip) {
    rows_.plan(crop.height, size_, 0, size_);
    columns_.plan(crop.width, size_, 0, size_);
    return resample(decoder, crop, flip);
}

Image& PhotoTransformer::evaluate(ImageDecoder& decoder, bool flip) {
    const int64_t height = decoder.height(), width = decoder.width();
    const int64_t shorter = std::min(height, width);
    const int64_t resized_height = height == shorter ? resize_ : resize_ * height / shorter;
    const int64_t resized_width = width == shorter ? resize_ : resize_ * width / shorter;
    const auto middle = [this](int64_t extent) {  // halves to even, as Python rounds
        return static_cast<int64_t>(std::nearbyint(static_cast<double>(extent - size_) / 2));
    };
    rows_.plan(height, resized_height, middle(resized_height), size_);
    columns_.plan(width, resized_width, middle(resized_width), size_);
    return resample(decoder, {0, 0, height, width}, flip);
}

namespace {

/// A row of pixels, each channel times and plus what its line says, to a row of each plane.
void normalize_row(const uint8_t* pixels, int64_t width, const std::array<Normalizer::Line, 3>& by,
                   float* __restrict red, float* __restrict green, float* __restrict blue) {
    const auto [r, g, b] = by;
    for (int64_t x = 0; x < width; ++x) {
        red[x] = static_cast<float>(pixels[3 * x]) * r.scale + r.shift;
        green[x] = static_cast<float>(pixels[3 * x + 1]) * g.scale + g.shift;
        blue[x] = static_cast<float>(pixels[3 * x + 2]) * b.scale + b.shift;
    }
}

}  // namespace

void normalize_photo(const Image& image, const Normalizer& normalizer, float* out) {
    const int64_t width = image.width, plane = image.height * width;
    const std::array by = {normalizer.line(0), normalizer.line(1), normalizer.line(2)};
    for (int64_t y = 0; y < image.height; ++y, out += width)
        normalize_row(image.pixels.data() + y * width * 3, width, by, out, out + plane,
                      out + 2 * plane);
}

}  // namespace trainer
