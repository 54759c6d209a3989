// Images as files hold them: decoding and encoding. OpenCV and libjpeg-turbo stay behind
// data/image.cpp and data/jpeg.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/error.h"

namespace trainer {

/// Pixels, uint8 [height, width, 3], red, green, blue.
struct Image {
    int64_t height = 0, width = 0;
    std::vector<uint8_t> pixels;
};

/// A rectangle of pixels.
struct Box {
    int64_t top = 0, left = 0, height = 0, width = 0;
    bool operator==(const Box&) const = default;
};

/// What takes the rows of an image, RGB, as they are decoded. It does not throw, and a row lives
/// until it returns.
using UseRow = std::function<void(const uint8_t* row)>;

/// A file that is there and can be read, but is no image, or a damaged one.
class CorruptImage : public Error {
  public:
    using Error::Error;
};

/// The most pixels that an image may have: what claims more is taken to be damaged.
inline constexpr int64_t max_image_pixels = int64_t{1} << 28;

/// Decodes image files, one after another, in memory that it keeps. What a file is, its first bytes
/// say, never its name: JPEG, and what OpenCV reads (PNG, BMP, WebP, ...). The result is RGB: gray
/// becomes three equal channels, of 16 bits the upper 8 count, transparency is dropped.
/// Of one thread at a time.
class ImageDecoder {
  public:
    /// `upright`: images are turned as the orientation that a camera noted (EXIF) says.
    explicit ImageDecoder(bool upright);
    ~ImageDecoder();
    ImageDecoder(const ImageDecoder&) = delete;
    ImageDecoder& operator=(const ImageDecoder&) = delete;

    /// Looks at a file, whose `bytes` live until the next call. Throws CorruptImage, whose message
    /// leaves it to the caller to name the file, where it is no image or cut short, UsageError
    /// where this build cannot decode its kind.
    void open(std::span<const std::byte> bytes);

    /// Size of the image that is open, turned.
    int64_t height() const;
    int64_t width() const;

    /// Writes the pixels of `box`, a part of the image that is open, to `out`, whose memory is used
    /// again. Throws as open(). With libjpeg-turbo the rest of a JPEG is mostly left undecoded, and
    /// damage there unseen.
    void decode(const Box& box, Image& out);

    /// The same, row by row from top to bottom. Where it throws, some were given.
    void decode(const Box& box, const UseRow& use);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

/// Decodes a whole image, as ImageDecoder does; `name` is what messages call it.
Image decode_image(std::span<const std::byte> bytes, const std::string& name, bool upright = true);

/// A PNG file of the image; `gray`: of its first channel alone. Throws UsageError where this build
/// has no OpenCV.
std::vector<std::byte> encode_png(const Image& image, bool gray = false);

}  // namespace trainer
