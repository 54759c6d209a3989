#include "tools/trainer/model_card.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "models/models.h"

namespace trainer {
namespace {

using Json = nlohmann::ordered_json;

/// The value of a key of the metadata as JSON; null where it is not there.
Json json_value(const Checkpoint& checkpoint, const std::string& key) {
    const auto found = checkpoint.state.metadata().find(key);
    if (found == checkpoint.state.metadata().end())
        return nullptr;
    Json json = Json::parse(found->second, nullptr, false);
    if (json.is_discarded())
        throw Error("'" + checkpoint.state.path().string() + "': its metadata's " + key +
                    " is not JSON");
    return json;
}

Shape usual_shape(const ModelCard& card) {
    if (card.of_photos()) {
        const ModelOptions usual = usual_options(card.model);
        return {usual.channels, usual.height, usual.width};
    }
    return {3, 32, 32};  // MNIST, too, is padded to CIFAR's shape
}

Shape shape_of(const Checkpoint& checkpoint, const ModelCard& card) {
    const auto found = checkpoint.state.metadata().find("input");
    if (found == checkpoint.state.metadata().end())
        return usual_shape(card);
    Shape shape(3);
    if (std::sscanf(found->second.c_str(), "%ldx%ldx%ld", &shape[0], &shape[1], &shape[2]) != 3 ||
        shape[0] < 1 || shape[1] < 1 || shape[2] < 1)
        throw Error("'" + checkpoint.state.path().string() + "': its metadata has the input '" +
                    found->second + "'");
    return shape;
}

ModelCard parse_card(const Checkpoint& checkpoint) {
    ModelCard card;
    card.model = checkpoint.value("model");
    const auto config =
        Json::parse(checkpoint.value("config")).get<std::map<std::string, std::string>>();
    card.classes = std::stoll(config.at("model.num_classes"));
    card.dataset = config.at("data.dataset");
    card.input = shape_of(checkpoint, card);
    const auto setting = [&](const std::string& key, const std::string& otherwise) {
        const auto found = config.find(key);
        return found == config.end() ? otherwise : found->second;
    };
    const std::string resize = setting("data.resize", "auto");
    card.resize = resize == "auto" ? usual_resize(card.input[1]) : std::stoll(resize);
    card.upright = setting("data.exif_orientation", "true") == "true";
    if (const Json names = json_value(checkpoint, "class_names"); !names.is_null())
        names.get_to(card.class_names);
    if (const Json values = json_value(checkpoint, "normalization"); !values.is_null()) {
        values.at("mean").get_to(card.normalization.mean);
        values.at("std").get_to(card.normalization.std);
    } else {
        card.normalization = default_normalization(card.dataset);
    }
    return card;
}

}  // namespace

std::string ModelCard::class_name(int64_t index) const {
    return index < std::ssize(class_names) ? class_names[static_cast<size_t>(index)]
                                           : "class " + std::to_string(index);
}

void add_card(Metadata& metadata, const Dataset& dataset, const Normalization& normalization) {
    metadata["input"] = std::to_string(dataset.channels) + "x" + std::to_string(dataset.height) +
                        "x" + std::to_string(dataset.width);
    if (!dataset.class_names.empty())
        metadata["class_names"] =
            Json(dataset.class_names).dump(-1, ' ', false, Json::error_handler_t::replace);
    metadata["normalization"] =
        Json{{"mean", normalization.mean}, {"std", normalization.std}}.dump();
}

ModelCard card_of(const Checkpoint& checkpoint) {
    try {
        return parse_card(checkpoint);
    } catch (const Error&) {
        throw;
    } catch (const std::exception& error) {  // JSON of another form, a key that is not there
        throw Error("'" + checkpoint.state.path().string() +
                    "': its metadata does not describe the model (" + error.what() + ")");
    }
}

void check_class_names(const Checkpoint& checkpoint, const Dataset& dataset) {
    const std::vector<std::string> trained = card_of(checkpoint).class_names;
    // Names go through JSON, which replaces bytes that are not UTF-8.
    Metadata own;
    add_card(own, dataset, {});
    const auto found = own.find("class_names");
    if (trained.empty() || found == own.end())
        return;
    const auto names = Json::parse(found->second).get<std::vector<std::string>>();
    if (names == trained)
        return;
    const auto count = std::min(names.size(), trained.size());
    size_t i = 0;
    while (i < count && names[i] == trained[i])
        ++i;
    const auto name_at = [i](const std::vector<std::string>& all) {
        return i < all.size() ? "'" + all[i] + "'" : std::string("none");
    };
    throw UsageError("the checkpoint '" + checkpoint.path().string() +
                     "' was trained on other classes: its class " + std::to_string(i) + " is " +
                     name_at(trained) + ", that of the data is " + name_at(names) +
                     "; set data.dir to data with the same classes");
}

LoadedModel load_model(const std::string& path) {
    const Checkpoint checkpoint = Checkpoint::open(path);
    ModelCard card = card_of(checkpoint);
    Network network = build_model(card.model, {.num_classes = card.classes,
                                               .channels = card.input[0],
                                               .height = card.input[1],
                                               .width = card.input[2]});
    const std::vector<std::string> slabs{std::string(slab::weights)};
    ParameterArena parameters(network.parameters(), DType::f32, slabs);
    ParameterArena statistics(network.statistics(), DType::f32, slabs);
    read_tensors(checkpoint.model, parameters, slab::weights);
    read_tensors(checkpoint.model, statistics, slab::weights);
    return {std::move(card), std::move(network), std::move(parameters), std::move(statistics)};
}

}  // namespace trainer
