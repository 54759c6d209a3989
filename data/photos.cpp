// The data sets `imagenet` and `folder`: which files they are, and of which classes.
#include "data/folder.h"
#include "data/formats.h"
#include "data/shards.h"
#include "engine/error.h"

namespace trainer {

namespace {

/// "'b', which the training images have not" of the first class that differs.
std::string first_difference(const std::vector<std::string>& training,
                             const std::vector<std::string>& test) {
    size_t i = 0;
    while (i < training.size() && i < test.size() && training[i] == test[i])
        ++i;
    if (i == training.size() || (i < test.size() && test[i] < training[i]))
        return "'" + test[i] + "', which the training images have not";
    return "not '" + training[i] + "', which the training images have";
}

void check_classes(const std::vector<std::string>& training, const std::vector<std::string>& test,
                   const std::string& dir) {
    if (training != test)
        throw Error("'" + dir + "': the test images have the class " +
                    first_difference(training, test) + "; labels would mean something else");
}

void take_listing(FolderListing listing, const PhotoOptions& options, Dataset& dataset) {
    if (!listing.faults.empty() && !options.skip_corrupt)
        throw Error(listing.faults[0] + "; data.on_corrupt: skip goes on without it");
    for (const std::string& fault : listing.faults)
        dataset.notes.push_back(fault + "; skipped");
    dataset.class_names = std::move(listing.classes);
    dataset.labels = std::move(listing.labels);
    dataset.photos.store = make_folder_store(listing.directory, std::move(listing.files));
}

void take_shards(const DatasetOptions& options, Dataset& dataset) {
    ShardSet set = open_shards(options.dir, options.split == Split::train ? "train" : "val");
    if (options.split == Split::test)
        check_classes(ShardFile(list_shards(options.dir, "train").front()).contents().classes,
                      set.classes, options.dir);
    dataset.class_names = std::move(set.classes);
    dataset.labels = std::move(set.labels);
    dataset.photos.store = std::move(set.store);
}

}  // namespace

Dataset list_photos(const DatasetOptions& options) {
    const PhotoOptions& photos = options.photos;
    Dataset dataset;
    dataset.name = options.dataset;
    dataset.channels = 3;
    dataset.height = dataset.width = photos.image_size;
    dataset.photos.resize = photos.resize;
    dataset.photos.upright = photos.upright;
    dataset.photos.skip_corrupt = photos.skip_corrupt;
    const bool packed = has_shards(options.dir, "train") || has_shards(options.dir, "val");
    if (packed) {
        take_shards(options, dataset);
    } else {
        const FolderLayout layout{options.dir, photos.val_labels, photos.held_out};
        take_listing(layout.list(options.split), photos, dataset);
        if (options.split == Split::test)
            check_classes(layout.class_names(), dataset.class_names, options.dir);
    }
    dataset.count = std::ssize(dataset.labels);
    dataset.classes = std::ssize(dataset.class_names);
    if (dataset.count == 0)
        throw Error("'" + options.dir + "' has no " + std::string(name_of(options.split)) +
                    " images" + (photos.held_out > 0 ? "; another data.split may give some" : ""));
    dataset.description = dataset.name + " " + std::string(name_of(options.split)) + ": " +
                          std::to_string(dataset.count) + (packed ? " packed" : "") +
                          " images in " + std::to_string(dataset.classes) + " classes, from " +
                          options.dir;
    return dataset;
}

}  // namespace trainer
