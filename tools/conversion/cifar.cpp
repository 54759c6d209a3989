// CIFAR-10 and CIFAR-100 in their three forms. In the middle is the binary one: each batch is
// records of one or two label bytes and 3072 pixels, [3, 32, 32].
#include <algorithm>
#include <iostream>
#include <map>
#include <sstream>

#include "engine/error.h"
#include "tools/conversion/convert.h"
#include "tools/conversion/output_folder.h"
#include "tools/conversion/pickle.h"
#include "tools/conversion/small_images.h"

namespace trainer::convert {

namespace {

namespace fs = std::filesystem;

constexpr int64_t side = 32, pixels = 3 * side * side;

struct Batch {
    std::string name;            ///< "data_batch_1", ..., "test_batch"; CIFAR-100: "train", "test"
    std::vector<uint8_t> bytes;  ///< of the records
};

struct Cifar {
    bool hundred = false;
    std::vector<std::string> classes;  ///< the fine ones; empty: not named
    std::vector<std::string> coarse;   ///< of CIFAR-100
    std::vector<Batch> batches;

    int64_t label_bytes() const { return hundred ? 2 : 1; }
    int64_t record_bytes() const { return label_bytes() + pixels; }
    int64_t records(const Batch& batch) const { return std::ssize(batch.bytes) / record_bytes(); }
    size_t label_count() const { return hundred ? 100 : 10; }
};

const std::vector<std::string>& batch_names(bool hundred) {
    static const std::vector<std::string> ten = {"data_batch_1", "data_batch_2", "data_batch_3",
                                                 "data_batch_4", "data_batch_5", "test_batch"};
    static const std::vector<std::string> two = {"train", "test"};
    return hundred ? two : ten;
}

std::string split_of(const std::string& batch) {
    return batch.starts_with("test") ? "test" : "train";
}

/// The record of a label, or two, and an image.
void append_record(const Cifar& cifar, int coarse, int fine, const uint8_t* planes, Batch& batch,
                   const std::string& where) {
    if (fine < 0 || fine >= static_cast<int>(cifar.label_count()) ||
        (cifar.hundred && (coarse < 0 || coarse >= 20)))
        throw Error(where + ": label " + std::to_string(fine) +
                    (cifar.hundred ? " (coarse " + std::to_string(coarse) + ")" : "") +
                    " is of no class; CIFAR-" + std::to_string(cifar.label_count()) +
                    (cifar.hundred ? "'s are 0 to 99 (coarse 0 to 19)" : "'s are 0 to 9"));
    if (cifar.hundred)
        batch.bytes.push_back(static_cast<uint8_t>(coarse));
    batch.bytes.push_back(static_cast<uint8_t>(fine));
    batch.bytes.insert(batch.bytes.end(), planes, planes + pixels);
}

void read_names(Cifar& cifar, const fs::path& dir) {
    cifar.classes = read_lines(dir / (cifar.hundred ? "fine_label_names.txt" : "batches.meta.txt"));
    if (cifar.hundred)
        cifar.coarse = read_lines(dir / "coarse_label_names.txt");
}

void write_names(const Cifar& cifar, const fs::path& dir) {
    if (!cifar.classes.empty())
        write_lines(dir / (cifar.hundred ? "fine_label_names.txt" : "batches.meta.txt"),
                    cifar.classes);
    if (!cifar.coarse.empty())
        write_lines(dir / "coarse_label_names.txt", cifar.coarse);
}

Cifar read_binary(const fs::path& dir, bool hundred) {
    Cifar cifar{.hundred = hundred, .classes = {}, .coarse = {}, .batches = {}};
    read_names(cifar, dir);
    for (const std::string& name : batch_names(hundred)) {
        const fs::path path = dir / (name + ".bin");
        if (!fs::exists(path))
            continue;
        const std::vector<std::byte> bytes = read_file(path);
        if (bytes.empty() || std::ssize(bytes) % cifar.record_bytes() != 0)
            throw Error("'" + path.string() + "' has " + std::to_string(bytes.size()) +
                        " bytes, which are no whole number of records of " +
                        std::to_string(cifar.record_bytes()));
        Batch batch{name, {}};
        const auto* at = reinterpret_cast<const uint8_t*>(bytes.data());
        for (int64_t i = 0; i < std::ssize(bytes) / cifar.record_bytes();
             ++i, at += cifar.record_bytes())
            append_record(cifar, at[0], at[cifar.label_bytes() - 1], at + cifar.label_bytes(),
                          batch, "'" + path.string() + "', record " + std::to_string(i));
        cifar.batches.push_back(std::move(batch));
    }
    return cifar;
}

void write_binary(const Cifar& cifar, const fs::path& dir) {
    for (const Batch& batch : cifar.batches)
        write_file(dir / (batch.name + ".bin"), std::as_bytes(std::span(batch.bytes)));
    write_names(cifar, dir);
}

std::string class_name(const Cifar& cifar, size_t label) {
    if (label < cifar.classes.size())
        return cifar.classes[label];
    return cifar.hundred && label < 10 ? "0" + std::to_string(label) : std::to_string(label);
}

void write_png(const Cifar& cifar, const fs::path& dir, const std::function<bool()>& stop) {
    Image image{side, side, std::vector<uint8_t>(pixels)};
    for (const Batch& batch : cifar.batches)
        for (int64_t i = 0; i < cifar.records(batch); ++i) {
            go_on_unless(stop);
            const uint8_t* record = batch.bytes.data() + i * cifar.record_bytes();
            const uint8_t* planes = record + cifar.label_bytes();
            for (int64_t p = 0; p < side * side; ++p)
                for (int64_t c = 0; c < 3; ++c)
                    image.pixels[static_cast<size_t>(3 * p + c)] = planes[c * side * side + p];
            write_file(dir / split_of(batch.name) /
                           class_name(cifar, record[cifar.label_bytes() - 1]) /
                           image_name(batch.name, i, cifar.hundred ? record[0] : -1),
                       encode_png(image));
        }
    write_names(cifar, dir);
}

/// Images that were not named here, shared out among the batches of their split.
void name_images(bool hundred, const std::string& split, std::vector<NamedImage>& images) {
    if (std::all_of(images.begin(), images.end(),
                    [](const NamedImage& image) { return !image.batch.empty(); }))
        return;
    std::vector<std::string> names;
    for (const std::string& name : batch_names(hundred))
        if (split_of(name) == split)
            names.push_back(name);
    const size_t each = (images.size() + names.size() - 1) / names.size();
    for (size_t i = 0; i < images.size(); ++i)
        images[i].batch = names[i / each];
}

void read_png_split(const fs::path& dir, const std::string& split, Cifar& cifar,
                    const std::function<bool()>& stop) {
    std::vector<NamedImage> images = list_named_images(dir / split);
    name_images(cifar.hundred, split, images);
    std::map<std::string, Batch> batches;
    for (const NamedImage& image : images) {
        go_on_unless(stop);
        const Image decoded = read_small_image(image.path, side, side);
        std::vector<uint8_t> planes(pixels);
        for (size_t p = 0; p < side * side; ++p)
            for (size_t c = 0; c < 3; ++c)
                planes[c * side * side + p] = decoded.pixels[3 * p + c];
        const auto label = std::find(cifar.classes.begin(), cifar.classes.end(), image.class_name);
        if (label == cifar.classes.end())
            throw Error("'" + image.path.string() + "': its folder '" + image.class_name +
                        "' is none of the data set's classes, which are '" + cifar.classes.front() +
                        "' to '" + cifar.classes.back() + "'");
        Batch& batch = batches[image.batch];
        batch.name = image.batch;
        const auto index = label - cifar.classes.begin();
        append_record(cifar, image.coarse, static_cast<int>(index), planes.data(), batch,
                      "'" + image.path.string() + "'");
    }
    for (auto& [name, batch] : batches)
        cifar.batches.push_back(std::move(batch));
}

Cifar read_png(const fs::path& dir, const std::function<bool()>& stop) {
    Cifar cifar;
    const fs::path first = fs::exists(dir / "train") ? dir / "train" : dir / "test";
    const std::vector<NamedImage> images = list_named_images(first);
    if (images.empty())
        throw Error("'" + first.string() + "' has no images");
    cifar.hundred = images.front().coarse >= 0;
    cifar.classes =
        class_order(dir / (cifar.hundred ? "fine_label_names.txt" : "batches.meta.txt"), first);
    if (cifar.hundred)
        cifar.coarse = read_lines(dir / "coarse_label_names.txt");
    if (cifar.classes.size() > cifar.label_count())
        throw Error("'" + first.string() + "' has " + std::to_string(cifar.classes.size()) +
                    " classes, more than CIFAR's " + std::to_string(cifar.label_count()));
    for (const char* split : {"train", "test"})
        if (fs::exists(dir / split))
            read_png_split(dir, split, cifar, stop);
    return cifar;
}

const PickleValue& entry(const PickleValue& dictionary, const std::string& key,
                         PickleValue::Kind kind, const fs::path& path) {
    const auto found = dictionary.entries.find(key);
    if (found == dictionary.entries.end() || found->second->kind != kind)
        throw Error("'" + path.string() + "': a pickle without '" + key + "', or of another form");
    return *found->second;
}

std::vector<std::string> texts(const PickleValue& list) {
    std::vector<std::string> result;
    for (const auto& item : list.items)
        result.push_back(item->text);
    return result;
}

Cifar read_pickles(const fs::path& dir, bool hundred) {
    using enum PickleValue::Kind;
    Cifar cifar{.hundred = hundred, .classes = {}, .coarse = {}, .batches = {}};
    const fs::path meta = dir / (hundred ? "meta" : "batches.meta");
    if (fs::exists(meta)) {
        const auto names = read_pickle(read_file(meta), meta.string());
        cifar.classes =
            texts(entry(*names, hundred ? "fine_label_names" : "label_names", list, meta));
        if (hundred)
            cifar.coarse = texts(entry(*names, "coarse_label_names", list, meta));
    }
    for (const std::string& name : batch_names(hundred)) {
        const fs::path path = dir / name;
        if (!fs::exists(path))
            continue;
        const auto pickle = read_pickle(read_file(path), path.string());
        const PickleValue& data = entry(*pickle, "data", array, path);
        const PickleValue& fine = entry(*pickle, hundred ? "fine_labels" : "labels", list, path);
        const PickleValue& coarse = hundred ? entry(*pickle, "coarse_labels", list, path) : fine;
        if (data.shape.size() != 2 || data.shape[1] != pixels ||
            data.shape[0] != std::ssize(fine.items) || data.shape[0] != std::ssize(coarse.items) ||
            std::ssize(data.text) != data.shape[0] * pixels)
            throw Error("'" + path.string() + "': data and labels of different lengths");
        Batch batch{name, {}};
        for (size_t i = 0; i < fine.items.size(); ++i)
            append_record(cifar, static_cast<int>(coarse.items[i]->number),
                          static_cast<int>(fine.items[i]->number),
                          reinterpret_cast<const uint8_t*>(data.text.data()) +
                              static_cast<int64_t>(i) * pixels,
                          batch, "'" + path.string() + "', record " + std::to_string(i));
        cifar.batches.push_back(std::move(batch));
    }
    return cifar;
}

std::string batch_label(const std::string& name) {
    if (name.starts_with("data_batch_"))
        return "training batch " + name.substr(11) + " of 5";
    return name.starts_with("test") ? "testing batch 1 of 1" : "training batch 1 of 1";
}

void write_pickles(const Cifar& cifar, const fs::path& dir) {
    for (const Batch& batch : cifar.batches) {
        PickleBatch pickle;
        pickle.label = batch_label(batch.name);
        pickle.records = cifar.records(batch);
        pickle.columns = pixels;
        std::vector<uint8_t> data;
        for (int64_t i = 0; i < pickle.records; ++i) {
            const uint8_t* record = batch.bytes.data() + i * cifar.record_bytes();
            if (cifar.hundred) {
                pickle.labels["coarse_labels"].push_back(record[0]);
                pickle.labels["fine_labels"].push_back(record[1]);
            } else {
                pickle.labels["labels"].push_back(record[0]);
            }
            data.insert(data.end(), record + cifar.label_bytes(), record + cifar.record_bytes());
            pickle.filenames.push_back(image_name(batch.name, i));
        }
        pickle.data = data;
        write_file(dir / batch.name, write_pickle(pickle));
    }
    std::map<std::string, std::vector<std::string>> meta{
        {cifar.hundred ? "fine_label_names" : "label_names", cifar.classes}};
    if (cifar.hundred)
        meta["coarse_label_names"] = cifar.coarse;
    write_file(dir / (cifar.hundred ? "meta" : "batches.meta"), write_pickle(meta));
}

/// `dir`, or the folder below it that the official archive unpacks to.
fs::path find_folder(const fs::path& dir) {
    for (const char* below :
         {"cifar-10-batches-bin", "cifar-100-binary", "cifar-10-batches-py", "cifar-100-python"})
        if (fs::is_directory(dir / below))
            return dir / below;
    return dir;
}

Cifar read_any(const fs::path& dir, std::string& format, const std::function<bool()>& stop) {
    const auto any_of = [&](bool hundred, const std::string& end) {
        const auto& names = batch_names(hundred);
        return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
            return fs::is_regular_file(dir / (name + end));
        });
    };
    for (const bool hundred : {false, true}) {
        if (any_of(hundred, ".bin")) {
            format = "binary";
            return read_binary(dir, hundred);
        }
        if (any_of(hundred, "")) {
            format = "pickle";
            return read_pickles(dir, hundred);
        }
    }
    if (!fs::is_directory(dir / "train") && !fs::is_directory(dir / "test"))
        throw Error("'" + dir.string() +
                    "' holds no CIFAR: neither data_batch_1.bin nor train.bin (binary), neither "
                    "data_batch_1 nor train (python), nor folders train/ and test/ of images");
    format = "png";
    return read_png(dir, stop);
}

}  // namespace

int convert_cifar(const fs::path& from, const fs::path& to, const std::string& to_format,
                  const std::function<bool()>& stop) {
    std::ostringstream said;
    const auto convert = [&](OutputFolder& folder) {
        std::string format;
        const Cifar cifar = read_any(find_folder(from), format, stop);
        const std::string target = !to_format.empty()   ? to_format
                                   : format == "binary" ? "png"
                                                        : "binary";
        go_on_unless(stop);
        if (target == "binary") {
            write_binary(cifar, folder.aside());
        } else if (target == "png") {
            for (const Batch& batch : cifar.batches)
                folder.require_absent(split_of(batch.name));
            write_png(cifar, folder.aside(), stop);
        } else {
            write_pickles(cifar, folder.aside());
        }
        int64_t records = 0;
        for (const Batch& batch : cifar.batches)
            records += cifar.records(batch);
        said << "CIFAR-" << cifar.label_count() << ": " << records << " images in "
             << cifar.batches.size() << " batches, " << format << " to " << target << "\n";
    };
    const int code = convert_into(to, convert);
    std::cout << said.str();
    return code;
}

}  // namespace trainer::convert
