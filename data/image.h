// Images as files hold them: decoding and resizing, behind the one door to OpenCV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace trainer {

/// Pixels, uint8 [height, width, 3], red, green, blue.
struct Image {
    int64_t height = 0, width = 0;
    std::vector<uint8_t> pixels;
};

/// Decodes what OpenCV reads (JPEG, PNG, BMP, ...): gray becomes three equal channels, transparency
/// is dropped, the orientation that a camera noted is applied. `name` is what messages call it.
/// Throws Error where the bytes are no image, UsageError where this build decodes none.
Image decode_image(std::span<const std::byte> bytes, const std::string& name);

/// The same of a file.
Image read_image(const std::filesystem::path& path);

/// Resized to height x width; each pixel of a smaller image is the mean of those it stands for.
/// Throws UsageError where this build has no OpenCV.
Image resize_image(const Image& image, int64_t height, int64_t width);

}  // namespace trainer
