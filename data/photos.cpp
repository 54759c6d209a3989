// The data sets `imagenet` and `folder`: which files they are, and of which classes.
#include "data/folder.h"
#include "data/formats.h"
#include "data/shards.h"
#include "engine/error.h"

namespace trainer {

namespace {

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
        check_same_classes(ShardFile(list_shards(options.dir, "train").front()).contents().classes,
                           set.classes, options.dir);
    dataset.class_names = std::move(set.classes);
    dataset.labels = std::move(set.labels);
    dataset.photos.store = std::move(set.store);
}

/// What a user may have meant otherwise.
void note_oddities(const FolderLayout& layout, bool packed, Dataset& dataset) {
    const auto note = [&](const std::string& line) {
        if (!line.empty())
            dataset.notes.push_back(line);
    };
    note(empty_classes(dataset.class_names, dataset.labels, "training images"));
    if (!packed)
        note(layout.unused());
    else if (layout.held_out > 0 || !layout.val_labels.empty())
        note((layout.held_out > 0 ? "data.split" : "data.val_labels") +
             std::string(" does nothing: '") + layout.directory.string() +
             "' holds shards, whose splits and classes are fixed");
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
    const FolderLayout layout{options.dir, photos.val_labels, photos.held_out};
    if (packed) {
        take_shards(options, dataset);
    } else {
        take_listing(layout.list(options.split), photos, dataset);
        if (options.split == Split::test)
            check_same_classes(layout.class_names(), dataset.class_names, options.dir);
    }
    if (options.split == Split::train)
        note_oddities(layout, packed, dataset);
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
