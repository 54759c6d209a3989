// The table of models.
#include "models/models.h"

#include <algorithm>
#include <functional>

#include "engine/nearest.h"

namespace trainer {

namespace {

struct Model {
    std::string name;
    std::function<Network(const ModelOptions&)> build;
    ModelOptions usual;
};

const ModelOptions mnist{.num_classes = 10, .channels = 1, .height = 28, .width = 28};
const ModelOptions cifar10{.num_classes = 10, .channels = 3, .height = 32, .width = 32};
const ModelOptions imagenet{.num_classes = 1000, .channels = 3, .height = 224, .width = 224};

std::vector<Model> models() {
    std::vector<Model> result{
        {"linear", linear_classifier, mnist}, {"mlp", mlp, mnist}, {"lenet5", lenet5, mnist}};
    const auto add = [&](std::string name, const ModelOptions& usual, auto build) {
        result.push_back({std::move(name), std::move(build), usual});
    };
    for (const int depth : {20, 32, 44, 56, 110})
        add("resnet" + std::to_string(depth), cifar10,
            [depth](const ModelOptions& options) { return resnet_cifar(depth, options); });
    for (const int depth : {18, 34, 50, 101, 152})
        add("resnet" + std::to_string(depth), imagenet,
            [depth](const ModelOptions& options) { return resnet_imagenet(depth, options); });
    for (const int depth : {11, 13, 16, 19}) {
        add("vgg" + std::to_string(depth), imagenet,
            [depth](const ModelOptions& options) { return vgg(depth, false, options); });
        add("vgg" + std::to_string(depth) + "_bn", imagenet,
            [depth](const ModelOptions& options) { return vgg(depth, true, options); });
    }
    return result;
}

Model find_model(std::string_view name) {
    for (Model& model : models())
        if (model.name == name)
            return std::move(model);
    throw UsageError("unknown model '" + std::string(name) + "'; did you mean '" +
                     nearest_name(name, model_names()) + "'?");
}

}  // namespace

std::vector<std::string> model_names() {
    std::vector<std::string> names;
    for (const Model& model : models())
        names.push_back(model.name);
    return names;
}

Network build_model(std::string_view name, const ModelOptions& options) {
    const Model model = find_model(name);
    if (options.num_classes < 1 || options.channels < 1 || options.height < 1 || options.width < 1)
        throw UsageError("model " + model.name +
                         " needs at least one class and images of at least one pixel");
    return model.build(options);
}

ModelOptions usual_options(std::string_view name) {
    return find_model(name).usual;
}

}  // namespace trainer
