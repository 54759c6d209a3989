// Models: functions that build a Network, and the table of their names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/network.h"

namespace trainer {

/// What a model is built for.
struct ModelOptions {
    int64_t num_classes = 10;
    int64_t channels = 3;  ///< of the images
    int64_t height = 32;
    int64_t width = 32;
    /// Residual networks: the last batch norm of each block starts at zero, so that each block
    /// starts as the identity (arXiv 1706.02677, section 5.1). Others have no use for it.
    bool zero_last_gamma = false;
};

/// All names that build_model takes.
std::vector<std::string> model_names();

/// The model of that name. Throws UsageError for an unknown name, with the nearest known one, and
/// for images that are too small (or of a size that the model has not).
Network build_model(std::string_view name, const ModelOptions& options);

/// The data that the model was published for: CIFAR-10, MNIST or ImageNet. Throws as build_model.
ModelOptions usual_options(std::string_view name);

// What stands behind the names. Tensors are named, and shaped, as torchvision's (resnet, vgg) or
// as a PyTorch module with attributes of these names would have them.

/// ResNet for small images: He et al., arXiv 1512.03385, section 4.2. `depth` is 6n + 2; shortcuts
/// that change the shape are option A, the new channels behind the old ones.
Network resnet_cifar(int depth, const ModelOptions& options);

/// ResNet-18, 34, 50, 101 or 152 for ImageNet: the same paper's table 1, with the stride of a
/// bottleneck at its 3x3 convolution ("v1.5"). Images of any size; the stem is always the 7x7 one.
Network resnet_imagenet(int depth, const ModelOptions& options);

/// VGG-11, 13, 16 or 19: arXiv 1409.1556, table 1, columns A, B, D, E; `batch_norm` after each
/// convolution. Images from 224 to 255 get the three classifier layers classifier.0, .3, .6, with
/// dropout; smaller ones, from 32, a single layer `classifier`.
Network vgg(int depth, bool batch_norm, const ModelOptions& options);

/// Softmax regression: one layer `fc` on the flattened image.
Network linear_classifier(const ModelOptions& options);

/// Three layers fc1 (256), fc2 (128), fc3 with ReLU between them.
Network mlp(const ModelOptions& options);

/// LeNet-5 (LeCun et al. 1998) as it is used now, with ReLU, max pooling and full connections:
/// conv1, conv2, fc1, fc2, fc3. Images from 16x16; 28x28 ones are padded to 32x32 by conv1.
Network lenet5(const ModelOptions& options);

}  // namespace trainer
