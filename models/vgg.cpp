// VGG: stacks of 3x3 convolutions between max poolings.
#include "models/models.h"

namespace trainer {

namespace {

/// Convolutions before each of the five poolings.
std::vector<int> convolutions_of(int depth) {
    switch (depth) {
        case 11:
            return {1, 1, 2, 2, 2};
        case 13:
            return {2, 2, 2, 2, 2};
        case 16:
            return {2, 2, 3, 3, 3};
        case 19:
            return {2, 2, 4, 4, 4};
    }
    check(false, "no VGG of this depth");
    return {};
}

/// Appends the layers features.0, features.1, ...: ReLU and pooling count as well.
NodeId features(Network& net, NodeId x, int depth, bool batch_norm) {
    const int64_t channels[] = {64, 128, 256, 512, 512};
    int index = 0;
    const auto next_name = [&index] { return "features." + std::to_string(index++); };
    int stage = 0;
    for (const int convolutions : convolutions_of(depth)) {
        for (int i = 0; i < convolutions; ++i) {
            x = net.convolution(next_name(), x, {.out_channels = channels[stage], .bias = true});
            if (batch_norm)
                x = net.batch_norm(next_name(), x, {.relu = true});
            else
                x = net.relu(x);
            ++index;  // the ReLU
        }
        x = net.max_pool(x, 2, 2, 0);
        ++index;
        ++stage;
    }
    return x;
}

constexpr double classifier_std = 0.01;

void large_classifier(Network& net, NodeId x, int64_t classes) {
    x = net.relu(net.linear("classifier.0", x, 4096, classifier_std));
    x = net.dropout("classifier.2", x, 0.5);
    x = net.relu(net.linear("classifier.3", x, 4096, classifier_std));
    x = net.dropout("classifier.5", x, 0.5);
    net.linear("classifier.6", x, classes, classifier_std);
}

}  // namespace

Network vgg(int depth, bool batch_norm, const ModelOptions& options) {
    if (options.height < 32 || options.width < 32 || options.height > 255 || options.width > 255)
        throw UsageError("vgg takes images from 32x32 to 255x255, not " +
                         std::to_string(options.height) + "x" + std::to_string(options.width));
    Network net;
    NodeId x = net.input(options.channels, options.height, options.width);
    x = features(net, x, depth, batch_norm);
    if (options.height >= 224 && options.width >= 224)
        large_classifier(net, x, options.num_classes);
    else
        net.linear("classifier", x, options.num_classes, classifier_std);
    return net;
}

}  // namespace trainer
