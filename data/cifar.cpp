// CIFAR's binary version: records of label bytes and 3072 pixels, as [3, 32, 32] in red, green,
// blue, 10000 records a file (CIFAR-100's train.bin: 50000).
#include <algorithm>
#include <fstream>

#include "data/byte_reader.h"
#include "data/formats.h"
#include "engine/error.h"

namespace trainer {

namespace {

namespace fs = std::filesystem;

constexpr int64_t image_size = 3 * 32 * 32;

struct Format {
    std::string dataset;
    std::string subdirectory;  // that the official archive unpacks to
    std::string names_file;
    int64_t classes;
    int64_t label_bytes;  // ahead of the pixels; the last of them is the label that counts
    int64_t file_records;
    std::vector<std::string> files;
};

// `dir`, or its subdirectory where the first file lies there and not in `dir`.
fs::path find_directory(const Format& format, const std::string& dir) {
    std::error_code ignored;
    if (!fs::is_directory(dir, ignored))
        throw Error(dir + ": no such directory; " + how_to_get(format.dataset));
    const fs::path below = fs::path(dir) / format.subdirectory;
    const bool here = fs::exists(fs::path(dir) / format.files[0], ignored);
    return !here && fs::is_directory(below, ignored) ? below : fs::path(dir);
}

// Reads one file's records to images and labels [first, first + file_records).
void read_file(const Format& format, const fs::path& path, int64_t first, Dataset& dataset) {
    const int64_t record_size = format.label_bytes + image_size;
    const int64_t expected = format.file_records * record_size;
    ByteReader reader(path, how_to_get(format.dataset));
    if (reader.size_bound() != expected) {
        const int64_t found = reader.size_bound();
        const std::string where = found < expected
                                      ? "cut short at record " + std::to_string(found / record_size)
                                      : "garbage from byte " + std::to_string(expected);
        reader.fail(where + ": " + std::to_string(found) + " bytes, but " +
                    std::to_string(format.file_records) + " records of " +
                    std::to_string(record_size) + " take " + std::to_string(expected));
    }

    constexpr int64_t chunk = 100;  // records at a time
    std::vector<uint8_t> bytes(static_cast<size_t>(chunk * record_size));
    for (int64_t record = 0; record < format.file_records; ++record) {
        if (record % chunk == 0 && reader.read(bytes.data(), bytes.size()) != bytes.size())
            reader.fail("changed while it was read");
        const uint8_t* at = bytes.data() + record % chunk * record_size;
        const int label = at[format.label_bytes - 1];
        if (label >= format.classes)
            reader.fail("label " + std::to_string(label) + " in record " + std::to_string(record) +
                        " (byte " + std::to_string(record * record_size + format.label_bytes - 1) +
                        "), labels are 0 to " + std::to_string(format.classes - 1));
        dataset.labels[static_cast<size_t>(first + record)] = label;
        std::copy_n(at + format.label_bytes, image_size, dataset.image(first + record));
    }
}

// One name a line; blank lines do not count. No file: no names.
std::vector<std::string> read_class_names(const Format& format, const fs::path& path) {
    std::vector<std::string> names;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        line.erase(line.find_last_not_of(" \t\r") + 1);
        if (!line.empty())
            names.push_back(line);
    }
    if (!names.empty() && std::ssize(names) != format.classes)
        throw Error(path.string() + ": " + std::to_string(names.size()) + " class names, not " +
                    std::to_string(format.classes) + "; " + how_to_get(format.dataset));
    return names;
}

Dataset read_cifar(const Format& format, const DatasetOptions& options) {
    const fs::path dir = find_directory(format, options.dir);
    Dataset dataset{.name = format.dataset,
                    .description = {},
                    .count = std::ssize(format.files) * format.file_records,
                    .channels = 3,
                    .height = 32,
                    .width = 32,
                    .pixels = {},
                    .labels = {},
                    .classes = format.classes,
                    .class_names = read_class_names(format, dir / format.names_file)};
    std::error_code ignored;
    for (const std::string& file : format.files)  // before memory is taken
        if (!fs::exists(dir / file, ignored))
            throw Error((dir / file).string() + ": no such file; " + how_to_get(format.dataset));
    allocate_images(dataset);
    dataset.labels.resize(static_cast<size_t>(dataset.count));
    for (int64_t i = 0; i < std::ssize(format.files); ++i)
        read_file(format, dir / format.files[static_cast<size_t>(i)], i * format.file_records,
                  dataset);
    dataset.description = describe(dataset, options.split, dir);
    return dataset;
}

}  // namespace

Dataset read_cifar10(const DatasetOptions& options) {
    Format format{"cifar10", "cifar-10-batches-bin", "batches.meta.txt", 10, 1, 10000, {}};
    if (options.split == Split::test)
        format.files = {"test_batch.bin"};
    else
        for (char number = '1'; number <= '5'; ++number)
            format.files.push_back(std::string("data_batch_") + number + ".bin");
    return read_cifar(format, options);
}

Dataset read_cifar100(const DatasetOptions& options) {
    const bool train = options.split == Split::train;
    return read_cifar({"cifar100",
                       "cifar-100-binary",
                       "fine_label_names.txt",
                       100,
                       2,
                       train ? 50000 : 10000,
                       {train ? "train.bin" : "test.bin"}},
                      options);
}

}  // namespace trainer
