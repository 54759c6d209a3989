#include "tools/conversion/small_images.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <tuple>

#include "data/folder.h"
#include "engine/error.h"
#include "engine/file.h"

namespace trainer::convert {

namespace fs = std::filesystem;

std::vector<std::byte> read_file(const fs::path& path) {
    const File file = File::open_to_read(path);
    std::vector<std::byte> bytes(static_cast<size_t>(file.size()));
    file.read_at(0, bytes.data(), bytes.size());
    return bytes;
}

void write_file(const fs::path& path, std::span<const std::byte> bytes) {
    fs::create_directories(path.parent_path());
    const fs::path part = path.string() + ".part";
    File::create(part).write(bytes.data(), bytes.size());
    fs::rename(part, path);
}

void write_lines(const fs::path& path, const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines)
        text += line + "\n";
    write_file(path, std::as_bytes(std::span(text)));
}

std::vector<std::string> read_lines(const fs::path& path) {
    std::vector<std::string> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        line.erase(line.find_last_not_of(" \t\r") + 1);
        if (!line.empty())
            lines.push_back(line);
    }
    return lines;
}

std::string image_name(const std::string& batch, int64_t place, int coarse) {
    char text[64];
    std::snprintf(text, sizeof text, coarse >= 0 ? "-%05ld-c%02d.png" : "-%05ld.png", place,
                  coarse);
    return batch + text;
}

namespace {

/// "data_batch_1-00029-c07.png" taken apart; leaves the image alone where it is of another form.
void take_apart(const std::string& name, NamedImage& image) {
    const size_t dash = name.find('-');
    int64_t place = -1;
    int coarse = -1;
    if (dash == std::string::npos ||
        std::sscanf(name.c_str() + dash, "-%ld-c%d.png", &place, &coarse) < 1 ||
        name != image_name(name.substr(0, dash), place, coarse))
        return;
    image.batch = name.substr(0, dash);
    image.place = place;
    image.coarse = coarse;
}

}  // namespace

std::vector<NamedImage> list_named_images(const fs::path& directory) {
    const FolderListing listing = list_class_folders(directory);
    if (!listing.faults.empty())
        throw Error(listing.faults[0]);
    std::vector<NamedImage> images;
    for (int64_t i = 0; i < listing.files.count(); ++i) {
        NamedImage image;
        image.path = directory / listing.files[i];
        image.class_name =
            listing.classes[static_cast<size_t>(listing.labels[static_cast<size_t>(i)])];
        take_apart(image.path.filename().string(), image);
        images.push_back(std::move(image));
    }
    std::sort(images.begin(), images.end(), [](const NamedImage& a, const NamedImage& b) {
        const auto key = [](const NamedImage& image) {
            return std::tuple(image.batch, image.place, image.path.filename().native(),
                              image.path.native());
        };
        return key(a) < key(b);
    });
    return images;
}

std::vector<std::string> class_order(const fs::path& names_file, const fs::path& directory) {
    std::vector<std::string> names = read_lines(names_file);
    return names.empty() ? list_class_names(directory) : names;
}

Image read_small_image(const fs::path& path, int64_t height, int64_t width) {
    Image image = decode_image(read_file(path), path.string());
    if (image.height != height || image.width != width)
        throw Error("'" + path.string() + "' has " + std::to_string(image.height) + "x" +
                    std::to_string(image.width) + " pixels, not " + std::to_string(height) + "x" +
                    std::to_string(width));
    return image;
}

}  // namespace trainer::convert
