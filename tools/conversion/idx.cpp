// MNIST's format (IDX: a number that says type and dimensions, the dimensions, big endian, then the
// values) to PNG folders <split>/<label>/<batch>-<place>.png, and back.
#include <algorithm>
#include <cstring>
#include <iostream>

#include "data/byte_reader.h"
#include "engine/error.h"
#include "tools/conversion/convert.h"
#include "tools/conversion/output_folder.h"
#include "tools/conversion/small_images.h"

namespace trainer::convert {

namespace {

namespace fs = std::filesystem;

struct Split {
    const char* folder;  // of images
    const char* prefix;  // of IDX files
};
constexpr Split splits[] = {{"train", "train"}, {"test", "t10k"}};

struct Idx {
    std::vector<int64_t> shape;
    std::vector<uint8_t> values;
};

/// A file of bytes of so many dimensions; plain, or with ".gz".
Idx read_idx(const fs::path& path, size_t dimensions) {
    const fs::path packed = path.string() + ".gz";
    ByteReader reader(fs::exists(path) ? path : packed, "get it again");
    const auto number = [&] {
        uint8_t bytes[4];
        if (reader.read(bytes, 4) != 4)
            reader.fail("cut short in its head");
        return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 |
               bytes[3];
    };
    const uint32_t magic = number();
    if (magic != (0x800 | dimensions))
        reader.fail("its first number is " + std::to_string(magic) + ", not " +
                    std::to_string(0x800 | dimensions));
    Idx idx;
    int64_t size = 1;
    for (size_t i = 0; i < dimensions; ++i) {
        idx.shape.push_back(number());
        if (idx.shape.back() > 0 && size > reader.size_bound() / idx.shape.back())
            reader.fail("it claims more values than it has bytes");
        size *= idx.shape.back();
    }
    idx.values.resize(static_cast<size_t>(size));
    uint8_t more = 0;
    if (reader.read(idx.values.data(), idx.values.size()) != idx.values.size())
        reader.fail("cut short");
    if (reader.read(&more, 1) != 0)
        reader.fail("garbage behind its values");
    return idx;
}

void write_idx(const fs::path& path, const Idx& idx) {
    std::vector<uint8_t> bytes;
    const auto number = [&](uint32_t value) {
        for (int shift = 24; shift >= 0; shift -= 8)
            bytes.push_back(static_cast<uint8_t>(value >> shift));
    };
    number(0x800 | static_cast<uint32_t>(idx.shape.size()));
    for (const int64_t extent : idx.shape)
        number(static_cast<uint32_t>(extent));
    bytes.insert(bytes.end(), idx.values.begin(), idx.values.end());
    write_file(path, std::as_bytes(std::span(bytes)));
}

fs::path images_path(const fs::path& dir, const Split& split) {
    return dir / (std::string(split.prefix) + "-images-idx3-ubyte");
}
fs::path labels_path(const fs::path& dir, const Split& split) {
    return dir / (std::string(split.prefix) + "-labels-idx1-ubyte");
}

bool has_idx(const fs::path& dir, const Split& split) {
    const fs::path images = images_path(dir, split);
    return fs::exists(images) || fs::exists(images.string() + ".gz");
}

int64_t to_png(const fs::path& from, const Split& split, const fs::path& to,
               const std::function<bool()>& stop) {
    const Idx images = read_idx(images_path(from, split), 3);
    const Idx labels = read_idx(labels_path(from, split), 1);
    if (images.shape[0] != labels.shape[0])
        throw Error("'" + from.string() + "': " + std::to_string(images.shape[0]) +
                    " images, but " + std::to_string(labels.shape[0]) + " labels");
    const int64_t height = images.shape[1], width = images.shape[2], size = height * width;
    Image image{height, width, {}};
    for (int64_t i = 0; i < images.shape[0]; ++i) {
        go_on_unless(stop);
        image.pixels.clear();
        for (int64_t p = 0; p < size; ++p)
            image.pixels.insert(image.pixels.end(), 3,
                                images.values[static_cast<size_t>(i * size + p)]);
        write_file(to / split.folder / std::to_string(labels.values[static_cast<size_t>(i)]) /
                       image_name(split.prefix, i),
                   encode_png(image, true));
    }
    return images.shape[0];
}

int64_t to_idx(const fs::path& from, const Split& split, const fs::path& to,
               const std::function<bool()>& stop) {
    const std::vector<NamedImage> files = list_named_images(from / split.folder);
    if (files.empty())
        throw Error("'" + (from / split.folder).string() + "' has no images");
    Idx images, labels;
    const Image first = decode_image(read_file(files[0].path), files[0].path.string());
    images.shape = {std::ssize(files), first.height, first.width};
    labels.shape = {std::ssize(files)};
    for (const NamedImage& file : files) {
        go_on_unless(stop);
        const Image image = read_small_image(file.path, first.height, first.width);
        for (size_t p = 0; p < image.pixels.size(); p += 3) {
            if (image.pixels[p] != image.pixels[p + 1] || image.pixels[p] != image.pixels[p + 2])
                throw Error("'" + file.path.string() + "' has colours, which IDX has not");
            images.values.push_back(image.pixels[p]);
        }
        char* end = nullptr;
        const long label = std::strtol(file.class_name.c_str(), &end, 10);
        if (*end != '\0' || label < 0 || label > 255)
            throw Error("'" + file.path.string() + "': its folder '" + file.class_name +
                        "' is no label, which is a number from 0 to 255");
        labels.values.push_back(static_cast<uint8_t>(label));
    }
    write_idx(images_path(to, split), images);
    write_idx(labels_path(to, split), labels);
    return std::ssize(files);
}

}  // namespace

int convert_idx(const fs::path& from, const fs::path& to, const std::function<bool()>& stop) {
    int64_t count = 0;
    bool packed = false, unpacked = false;
    const auto convert = [&](OutputFolder& folder) {
        for (const Split& split : splits)
            if (has_idx(from, split)) {
                folder.require_absent(split.folder);
                count += to_png(from, split, folder.aside(), stop);
                packed = true;
            } else if (fs::is_directory(from / split.folder)) {
                count += to_idx(from, split, folder.aside(), stop);
                unpacked = true;
            }
        if (!packed && !unpacked)
            throw Error("'" + from.string() +
                        "' holds neither train-images-idx3-ubyte nor folders train/ and test/");
    };
    const int code = convert_into(to, convert);
    if (code == exit_done)
        std::cout << count << " images, " << (packed ? "IDX to PNG\n" : "PNG to IDX\n");
    return code;
}

}  // namespace trainer::convert
