// Dataset: labelled images, in memory or in files, and the strict readers that fill it.
//
// Readers accept a file only if every byte of it is accounted for. Their messages name the file,
// what is wrong with it, where, and what to do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/image_store.h"
#include "engine/memory.h"

namespace trainer {

enum class Split { train, test };

/// "train" or "test".
std::string_view name_of(Split split);

/// Images as they were stored (not normalised), with their classes: in memory, or as photographs of
/// any size that are decoded when they are used.
struct Dataset {
    std::string name;         ///< e.g. "cifar10"
    std::string description;  ///< what was read and from where, for the first lines of a run

    int64_t count = 0;  ///< images
    int64_t channels = 0, height = 0, width = 0;
    /// uint8 [count, channels, height, width]; nothing where they are photos, whose height and
    /// width are those of the network's input.
    Memory pixels;
    std::vector<int32_t> labels;  ///< [count], each in [0, classes)

    int64_t classes = 0;
    /// [classes], or empty where the files do not name them.
    std::vector<std::string> class_names;

    Photos photos = {};
    /// What a user should be told of the data set, a line each.
    std::vector<std::string> notes = {};

    bool has_photos() const { return photos.store != nullptr; }
    int64_t image_bytes() const { return channels * height * width; }

    /// Image `index`, uint8 [channels, height, width].
    const uint8_t* image(int64_t index) const {
        return reinterpret_cast<const uint8_t*>(pixels.data.get()) + index * image_bytes();
    }
    uint8_t* image(int64_t index) {
        return reinterpret_cast<uint8_t*>(pixels.data.get()) + index * image_bytes();
    }
};

/// What `synthetic` makes up.
struct SyntheticOptions {
    int64_t train_count = 8192, test_count = 1024;
    int64_t classes = 10, channels = 3, height = 32, width = 32;
    uint64_t seed = 1;
};

/// To how many pixels evaluation resizes the shorter side unless told otherwise: 256 for 224.
constexpr int64_t usual_resize(int64_t image_size) {
    return (image_size * 256 + 112) / 224;
}

/// What `imagenet` and `folder` are read with.
struct PhotoOptions {
    int64_t image_size = 224;     ///< side of the network's input
    int64_t resize = 256;         ///< shorter side in evaluation, before the centre crop
    bool upright = true;          ///< turned as EXIF says
    bool skip_corrupt = false;    ///< else what is damaged is an Error
    std::string val_labels = {};  ///< says the classes of a flat val/; empty: where it usually is
    double held_out = 0;          ///< of folder without val/: share of the test split
};

struct DatasetOptions {
    std::string dataset;  ///< one of dataset_names()
    std::string dir;      ///< where its files lie; unused by synthetic
    Split split = Split::train;
    SyntheticOptions synthetic = {};  ///< used by synthetic only
    PhotoOptions photos = {};         ///< used by imagenet and folder only
};

/// The names that load_dataset knows.
const std::vector<std::string>& dataset_names();

/// Reads a split, into memory but for photographs, of which it lists the files.
///
/// - cifar10: data_batch_1.bin to data_batch_5.bin or test_batch.bin in `dir` or in its
///   cifar-10-batches-bin (https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version");
///   batches.meta.txt names the classes, where it is there.
/// - cifar100: train.bin or test.bin in `dir` or in its cifar-100-binary, with the fine labels;
///   fine_label_names.txt likewise.
/// - mnist, fashion_mnist: {train,t10k}-images-idx3-ubyte and -labels-idx1-ubyte in `dir`, plain
///   or with ".gz" (http://yann.lecun.com/exdb/mnist). The 28x28 gray images are padded with two
///   rows and columns of zeros at each edge to 32x32, and repeated to 3 channels, so that every
///   model takes them as it takes CIFAR.
/// - synthetic: a pure function of SyntheticOptions and the split. Image i is of class
///   i mod classes: that class's pattern of coarse blocks, the same in both splits, under noise.
///
/// - imagenet, folder: packed shards (data/SHARDS.md) in `dir`, where there are any; else class
///   folders as FolderLayout (folder.h) says. The classes are the folders' names, sorted; those of
///   the test split must be those of the training split.
///
/// Throws UsageError for a name that is not known and for sizes that synthetic cannot have, Error
/// for files that are missing, cut short, too long or corrupt.
Dataset load_dataset(const DatasetOptions& options);

}  // namespace trainer
