// The readers behind load_dataset, one file a format, and what they share.
#pragma once

#include <filesystem>

#include "data/dataset.h"

namespace trainer {

/// CIFAR-10 and CIFAR-100, binary version (cifar.cpp).
Dataset read_cifar10(const DatasetOptions& options);
Dataset read_cifar100(const DatasetOptions& options);

/// MNIST and Fashion-MNIST, which share a format (idx.cpp). `class_names` has 10.
Dataset read_idx(const DatasetOptions& options, std::vector<std::string> class_names);

/// Made up on the spot (synthetic.cpp).
Dataset make_synthetic(const DatasetOptions& options);

/// Photographs in class folders or shards (photos.cpp): imagenet and folder.
Dataset list_photos(const DatasetOptions& options);

/// Takes zeroed memory for the images; count, channels, height and width are set already.
void allocate_images(Dataset& dataset);

/// What to do about a file of `dataset` that is missing or damaged, to end a message with.
std::string how_to_get(const std::string& dataset);

/// E.g. "cifar10 train: 50000 images of 3x32x32 in 10 classes, from <dir>": a description.
std::string describe(const Dataset& dataset, Split split, const std::filesystem::path& dir);

}  // namespace trainer
