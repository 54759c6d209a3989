// `trainer predict`: what a checkpoint's model sees in images.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "data/image.h"
#include "tools/trainer/model_card.h"

namespace trainer {

/// `image` as a model of small images was trained to see them, uint8 [channels, height, width]: cut
/// to the middle of the input's form and resized; gray with a black edge where it was trained on
/// MNIST or Fashion-MNIST.
std::vector<uint8_t> fit_image(const Image& image, const ModelCard& card);

/// What the network gets of an image file, float [channels, height, width], normalised: of a model
/// of photographs what evaluation gives it, to the last bit; else what fit_image() makes of it.
/// Throws CorruptImage as ImageDecoder does.
std::vector<float> network_input(std::span<const std::byte> file, const ModelCard& card);

struct Guess {
    int64_t label = 0;
    double probability = 0;
};

/// The `count` likeliest classes of each row of logits [rows, classes], likeliest first.
std::vector<std::vector<Guess>> likeliest(const std::vector<float>& logits, int64_t classes,
                                          int64_t count);

/// Prints the five likeliest classes of each image file and returns 0. Throws Error and UsageError.
int run_prediction(const std::string& checkpoint, const std::vector<std::string>& images);

}  // namespace trainer
