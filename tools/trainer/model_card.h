// ModelCard: what one must know of a checkpoint to use its model without the config and the data
// that it was trained with.
#pragma once

#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/normalization.h"
#include "engine/checkpoint.h"
#include "engine/network.h"

namespace trainer {

struct ModelCard {
    std::string model;  ///< name, as of build_model
    int64_t classes = 0;
    Shape input;                           ///< [channels, height, width]
    std::string dataset;                   ///< that it was trained on
    std::vector<std::string> class_names;  ///< of the first classes, perhaps of none
    Normalization normalization;           ///< a mean and a deviation a channel
    /// Of imagenet and folder: how evaluation saw its photographs.
    int64_t resize = 0;
    bool upright = true;

    bool of_photos() const { return dataset == "imagenet" || dataset == "folder"; }

    /// The class's name, or "class <index>".
    std::string class_name(int64_t index) const;
};

/// Adds to a checkpoint's metadata what its card is made of: "input" ("3x32x32"), "class_names"
/// (JSON, where the data set has them) and "normalization" (JSON).
void add_card(Metadata& metadata, const Dataset& dataset, const Normalization& normalization);

/// Of a checkpoint; one without add_card's entries is taken to be of its data set's usual shape and
/// normalisation. Throws Error where the metadata lacks something.
ModelCard card_of(const Checkpoint& checkpoint);

/// Throws UsageError where both name their classes and the names differ: a label would mean
/// something else.
void check_class_names(const Checkpoint& checkpoint, const Dataset& dataset);

/// A checkpoint's network and its values, in fp32 in this machine's memory.
struct LoadedModel {
    ModelCard card;
    Network network;
    ParameterArena parameters, statistics;  ///< slab "weights"
};

/// Throws Error where the checkpoint is damaged or does not fit its model.
LoadedModel load_model(const std::string& checkpoint);

}  // namespace trainer
