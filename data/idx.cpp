// IDX, the format of MNIST and Fashion-MNIST: a big-endian magic number 0x00000800 + dimensions for
// unsigned bytes, the extents, the bytes.
#include <algorithm>
#include <array>
#include <cstdio>

#include "data/byte_reader.h"
#include "data/formats.h"
#include "engine/error.h"

namespace trainer {

namespace {

namespace fs = std::filesystem;

constexpr int64_t stored_side = 28;  // of an image in the file
constexpr int64_t side = 32;         // as handed on
constexpr int64_t border = (side - stored_side) / 2;
constexpr int64_t channels = 3;
constexpr int64_t classes = 10;

// `dir`/`name`, or the same with ".gz" where only that is there.
fs::path find_file(const std::string& dataset, const fs::path& dir, const std::string& name) {
    std::error_code ignored;
    for (const char* suffix : {"", ".gz"})
        if (const fs::path path = dir / (name + suffix); fs::exists(path, ignored))
            return path;
    throw Error((dir / name).string() + "[.gz]: no such file; " + how_to_get(dataset));
}

std::string hexadecimal(uint32_t value) {
    char text[11];
    std::snprintf(text, sizeof text, "0x%08x", value);
    return text;
}

uint32_t read_big_endian(ByteReader& reader) {
    std::array<uint8_t, 4> b{};
    const int64_t at = reader.position();
    if (reader.read(b.data(), b.size()) != b.size())
        reader.fail("cut short in the header, at byte " + std::to_string(at));
    return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
}

// Reads magic and extents, and makes sure that the file can hold what they say.
std::vector<int64_t> read_header(ByteReader& reader, int dimensions) {
    const uint32_t magic = read_big_endian(reader);
    const uint32_t expected = 0x800U + static_cast<uint32_t>(dimensions);
    if (magic != expected)
        reader.fail("bad magic number " + hexadecimal(magic) + " at byte 0, expected " +
                    hexadecimal(expected) + " (IDX, unsigned bytes, " + std::to_string(dimensions) +
                    " dimensions)");
    std::vector<int64_t> extents;
    for (int i = 0; i < dimensions; ++i)
        extents.push_back(read_big_endian(reader));
    if (extents[0] == 0)
        reader.fail("holds nothing: the count at byte 4 is 0");
    if (dimensions == 3 && (extents[1] != stored_side || extents[2] != stored_side))
        reader.fail("images of " + std::to_string(extents[1]) + "x" + std::to_string(extents[2]) +
                    " (bytes 8 to 15), 28x28 expected");
    return extents;
}

[[noreturn]] void fail_size(const ByteReader& reader, const std::string& found, bool short_of,
                            int64_t expected) {
    reader.fail((short_of ? "cut short: " : "too long: ") + found +
                (reader.packed() ? " unpacked" : "") + " bytes, its header says " +
                std::to_string(expected));
}

// Refuses a file whose size cannot be what its header says, before memory is taken for it.
void check_size(const ByteReader& reader, int64_t bytes) {
    const int64_t expected = reader.position() + bytes;
    const int64_t bound = reader.size_bound();
    if (bound < expected || (!reader.packed() && bound != expected))
        fail_size(reader, (reader.packed() ? "at most " : "") + std::to_string(bound),
                  bound < expected, expected);
}

// Reads `bytes` bytes; nothing may follow where `last`.
void read_exactly(ByteReader& reader, uint8_t* to, int64_t bytes, int64_t file_bytes, bool last) {
    const auto got = static_cast<int64_t>(reader.read(to, static_cast<size_t>(bytes)));
    if (got != bytes)
        fail_size(reader, std::to_string(reader.position()), true, file_bytes);
    uint8_t more = 0;
    if (last && reader.read(&more, 1) != 0)
        reader.fail("garbage behind the last of the " + std::to_string(file_bytes) +
                    " bytes that its header says");
}

void read_labels(const std::string& dataset, const fs::path& path, std::vector<int32_t>& labels) {
    ByteReader reader(path, how_to_get(dataset));
    const int64_t count = read_header(reader, 1)[0];
    const int64_t header = reader.position();
    check_size(reader, count);
    std::vector<uint8_t> bytes(static_cast<size_t>(count));
    read_exactly(reader, bytes.data(), count, header + count, true);
    for (int64_t i = 0; i < count; ++i)
        if (const int label = bytes[static_cast<size_t>(i)]; label >= classes)
            reader.fail("label " + std::to_string(label) + " of image " + std::to_string(i) +
                        " (byte " + std::to_string(header + i) + "), labels are 0 to 9");
    labels.assign(bytes.begin(), bytes.end());
}

// One stored image to the middle of every channel of one zeroed image.
void widen(const uint8_t* stored, uint8_t* image) {
    for (int64_t channel = 0; channel < channels; ++channel)
        for (int64_t row = 0; row < stored_side; ++row)
            std::copy_n(stored + row * stored_side, stored_side,
                        image + (channel * side + row + border) * side + border);
}

void read_images(const fs::path& path, Dataset& dataset) {
    ByteReader reader(path, how_to_get(dataset.name));
    dataset.count = read_header(reader, 3)[0];
    constexpr int64_t image_size = stored_side * stored_side;
    check_size(reader, dataset.count * image_size);
    allocate_images(dataset);
    const int64_t file_bytes = reader.position() + dataset.count * image_size;
    constexpr int64_t chunk = 256;  // images at a time
    std::vector<uint8_t> bytes(static_cast<size_t>(chunk * image_size));
    for (int64_t first = 0; first < dataset.count; first += chunk) {
        const int64_t count = std::min(chunk, dataset.count - first);
        read_exactly(reader, bytes.data(), count * image_size, file_bytes,
                     first + count == dataset.count);
        for (int64_t i = 0; i < count; ++i)
            widen(bytes.data() + i * image_size, dataset.image(first + i));
    }
}

}  // namespace

Dataset read_idx(const DatasetOptions& options, std::vector<std::string> class_names) {
    std::error_code ignored;
    if (!fs::is_directory(options.dir, ignored))
        throw Error(options.dir + ": no such directory; " + how_to_get(options.dataset));
    const std::string prefix = options.split == Split::train ? "train" : "t10k";
    const fs::path images = find_file(options.dataset, options.dir, prefix + "-images-idx3-ubyte");
    const fs::path labels = find_file(options.dataset, options.dir, prefix + "-labels-idx1-ubyte");

    Dataset dataset{.name = options.dataset,
                    .description = {},
                    .count = 0,
                    .channels = channels,
                    .height = side,
                    .width = side,
                    .pixels = {},
                    .labels = {},
                    .classes = classes,
                    .class_names = std::move(class_names)};
    read_labels(options.dataset, labels, dataset.labels);
    read_images(images, dataset);
    if (std::ssize(dataset.labels) != dataset.count)
        throw Error(images.string() + " holds " + std::to_string(dataset.count) + " images, but " +
                    labels.string() + " " + std::to_string(dataset.labels.size()) + " labels; " +
                    how_to_get(options.dataset));
    dataset.description = describe(dataset, options.split, options.dir) +
                          " (28x28 gray, padded to 32x32, repeated to 3 channels)";
    return dataset;
}

}  // namespace trainer
