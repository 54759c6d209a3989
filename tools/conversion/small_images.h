// What conversions of small images share: files, and PNG folders of images in an order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/image.h"

namespace trainer::convert {

/// A whole file. Throws FileError.
std::vector<std::byte> read_file(const std::filesystem::path& path);

/// Writes a file, and the directories above it; it has its name once it is whole.
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_lines(const std::filesystem::path& path, const std::vector<std::string>& lines);

/// Lines of a text file that are not blank; none where it is not there.
std::vector<std::string> read_lines(const std::filesystem::path& path);

/// An image of a PNG folder: <split>/<class>/<batch>-<place>[-c<coarse>].png.
struct NamedImage {
    std::filesystem::path path;
    std::string class_name;
    std::string batch;   ///< empty: its name is of another form
    int64_t place = -1;  ///< within the batch
    int coarse = -1;     ///< CIFAR-100's coarse label
};

/// Such a name, without the folders.
std::string image_name(const std::string& batch, int64_t place, int coarse = -1);

/// The images below `directory`'s class folders: by batch and place, those of other names by name.
std::vector<NamedImage> list_named_images(const std::filesystem::path& directory);

/// The class names of a PNG folder: of `names_file`, whose order counts, else the folders', sorted.
std::vector<std::string> class_order(const std::filesystem::path& names_file,
                                     const std::filesystem::path& directory);

/// Decodes an image of exactly height x width. Throws Error.
Image read_small_image(const std::filesystem::path& path, int64_t height, int64_t width);

}  // namespace trainer::convert
