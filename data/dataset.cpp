// What the readers share, and the table of data sets.
#include "data/dataset.h"

#include <functional>

#include "data/formats.h"
#include "engine/error.h"

namespace trainer {

namespace {

struct Reader {
    std::string name;
    std::function<Dataset(const DatasetOptions&)> read;
};

Dataset read_mnist(const DatasetOptions& options) {
    return read_idx(options, {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"});
}

Dataset read_fashion_mnist(const DatasetOptions& options) {
    return read_idx(options, {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal",
                              "Shirt", "Sneaker", "Bag", "Ankle boot"});
}

const std::vector<Reader>& readers() {
    static const std::vector<Reader> table = {{"cifar10", read_cifar10},
                                              {"cifar100", read_cifar100},
                                              {"fashion_mnist", read_fashion_mnist},
                                              {"folder", list_photos},
                                              {"imagenet", list_photos},
                                              {"mnist", read_mnist},
                                              {"synthetic", make_synthetic}};
    return table;
}

}  // namespace

std::string_view name_of(Split split) {
    return split == Split::train ? "train" : "test";
}

const std::vector<std::string>& dataset_names() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> result;
        for (const Reader& reader : readers())
            result.push_back(reader.name);
        return result;
    }();
    return names;
}

Dataset load_dataset(const DatasetOptions& options) {
    for (const Reader& reader : readers())
        if (reader.name == options.dataset)
            return reader.read(options);
    std::string known;
    for (const std::string& name : dataset_names())
        known += (known.empty() ? "" : ", ") + name;
    throw UsageError("unknown data set '" + options.dataset + "'; data.dataset is one of " + known);
}

void allocate_images(Dataset& dataset) {
    dataset.pixels = allocate_host(static_cast<size_t>(dataset.count * dataset.image_bytes()));
}

std::string how_to_get(const std::string& dataset) {
    return "get it with 'tools/get_data.sh " + dataset + "', or set data.dir to where it is";
}

std::string describe(const Dataset& dataset, Split split, const std::filesystem::path& dir) {
    return dataset.name + " " + std::string(name_of(split)) + ": " + std::to_string(dataset.count) +
           " images of " + std::to_string(dataset.channels) + "x" + std::to_string(dataset.height) +
           "x" + std::to_string(dataset.width) + " in " + std::to_string(dataset.classes) +
           " classes, from " + dir.string();
}

}  // namespace trainer
