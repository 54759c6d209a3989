#include "tools/trainer/run_state.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

namespace trainer {
namespace {

using Json = nlohmann::ordered_json;

/// The shortest text that reads back as the same number.
std::string text_of(double value) {
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

double number_of(const Checkpoint& checkpoint, const std::string& key) {
    const std::string& text = checkpoint.value(key);
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc{} || at != end)
        throw Error("'" + checkpoint.state.path().string() + "': its metadata has the " + key +
                    " '" + text + "'");
    return value;
}

/// The entries that a checkpoint is compared by.
std::vector<ConfigEntry> compared_entries(const Config& config) {
    std::vector<ConfigEntry> entries = flat_result(config);
    std::erase_if(entries, [](const ConfigEntry& entry) {
        return entry.first == "train.epochs" || entry.first == "train.max_steps" ||
               entry.first == "model.init";
    });
    return entries;
}

/// "key: old → new" of every entry that differs, those for which `counts` holds.
std::vector<std::string> differences(const Checkpoint& checkpoint, const Config& config,
                                     const std::function<bool(const std::string&)>& counts) {
    std::map<std::string, std::string> before;
    try {
        before = Json::parse(checkpoint.value("config")).get<decltype(before)>();
    } catch (const nlohmann::json::exception&) {
        throw Error("'" + checkpoint.state.path().string() + "': its metadata's config is none");
    }
    // A key that is newer than the checkpoint had its default.
    for (const auto& [key, value] : compared_entries(Config()))
        before.emplace(key, value);
    std::vector<std::string> result;
    for (const auto& [key, value] : compared_entries(config)) {
        const auto found = before.find(key);
        const std::string old = found == before.end() ? "(not there)" : found->second;
        if (old != value && counts(key))
            result.push_back(key + ": " + old + " → " + value);
    }
    return result;
}

std::string joined(const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& part : parts)
        text += (text.empty() ? "" : ", ") + part;
    return text;
}

}  // namespace

void put_sums(Metadata& metadata, const std::string& prefix, const LossSums& sums) {
    metadata[prefix + ".loss_sum"] = text_of(sums.loss);
    metadata[prefix + ".top1"] = std::to_string(sums.top1);
    metadata[prefix + ".top5"] = std::to_string(sums.top5);
    metadata[prefix + ".samples"] = std::to_string(sums.samples);
}

LossSums sums_of(const Checkpoint& checkpoint, const std::string& prefix) {
    return {number_of(checkpoint, prefix + ".loss_sum"), checkpoint.number(prefix + ".top1"),
            checkpoint.number(prefix + ".top5"), checkpoint.number(prefix + ".samples")};
}

void append_model(CheckpointContents& contents, const ParameterArena& parameters,
                  const ParameterArena& statistics, const int64_t& step) {
    append_tensors(contents.model, parameters, slab::weights);
    append_tensors(contents.model, statistics, slab::weights);
    constexpr std::string_view mean = "running_mean";
    for (const TensorInfo& tensor : statistics.table().tensors())
        if (tensor.name.ends_with(mean))
            contents.model.push_back(
                {tensor.name.substr(0, tensor.name.size() - mean.size()) + "num_batches_tracked",
                 "I64",
                 {},
                 std::as_bytes(std::span(&step, 1))});
}

void check_finite(const ParameterArena& arena, std::string_view slab_name, int64_t step) {
    const auto finite = [&](const TensorInfo& tensor) {
        const auto all = [](auto values) {
            return std::all_of(values.begin(), values.end(),
                               [](auto value) { return std::isfinite(value); });
        };
        return arena.type() == DType::f64 ? all(arena.tensor<double>(slab_name, tensor))
                                          : all(arena.tensor<float>(slab_name, tensor));
    };
    for (const TensorInfo& tensor : arena.table().tensors())
        if (!finite(tensor))
            throw Error("after step " + std::to_string(step) + " the " + std::string(slab_name) +
                        " of '" + tensor.name +
                        "' are not finite; try a smaller optim.lr or a warm-up");
}

std::optional<Checkpoint> checkpoint_to_resume(const Config& config, CheckpointStore& store,
                                               const std::function<void(std::string)>& say) {
    const auto set_aside = [&] {
        if (const auto aside = store.set_aside())
            say("earlier checkpoints are now in " + aside->string());
    };
    const std::string& resume = config.checkpoint.resume;
    if (resume == "never") {
        set_aside();
        return std::nullopt;
    }
    std::optional<Checkpoint> found =
        resume == "auto" ? store.newest() : std::optional(Checkpoint::open(resume));
    if (!found)
        return std::nullopt;
    check_resumable(*found, config);
    if (!std::filesystem::equivalent(found->path().parent_path(), store.directory()))
        set_aside();
    return found;
}

Metadata metadata_of(const RunState& state, const Config& config, int64_t steps_per_epoch) {
    Json entries = Json::object();
    for (const auto& [key, value] : compared_entries(config))
        entries[key] = value;
    Metadata metadata{{"schema_version", "1"},
                      {"step", std::to_string(state.step)},
                      {"epoch", std::to_string(state.step / steps_per_epoch)},
                      {"cursor", std::to_string(state.step % steps_per_epoch)},
                      {"seed", std::to_string(config.seed)},
                      {"model", config.model.name},
                      {"config", entries.dump(-1, ' ', false, Json::error_handler_t::replace)},
                      {"evaluated", std::to_string(state.evaluated)},
                      {"best", std::to_string(state.best)},
                      {"best_saved", std::to_string(state.best_saved)}};
    put_sums(metadata, "epoch_sums", state.epoch);
    put_sums(metadata, "window_sums", state.window);
    put_sums(metadata, "evaluation", state.evaluation);
    put_sums(metadata, "best_evaluation", state.best_evaluation);
    return metadata;
}

RunState state_of(const Checkpoint& checkpoint) {
    RunState state;
    state.step = checkpoint.step;
    state.evaluated = checkpoint.number("evaluated");
    state.best = checkpoint.number("best");
    state.best_saved = checkpoint.number("best_saved");
    state.epoch = sums_of(checkpoint, "epoch_sums");
    state.window = sums_of(checkpoint, "window_sums");
    state.evaluation = sums_of(checkpoint, "evaluation");
    state.best_evaluation = sums_of(checkpoint, "best_evaluation");
    return state;
}

void check_resumable(const Checkpoint& checkpoint, const Config& config) {
    const auto differing = differences(checkpoint, config, [](const std::string&) { return true; });
    if (!differing.empty())
        throw UsageError("the checkpoint '" + checkpoint.path().string() + "' is of another run (" +
                         joined(differing) +
                         "); set that back, choose another checkpoint.dir, or start again with "
                         "checkpoint.resume=never");
}

std::string check_evaluable(const Checkpoint& checkpoint, const Config& config) {
    const auto of_model = [](const std::string& key) {
        return key == "model.name" || key == "model.num_classes";
    };
    const auto model = differences(checkpoint, config, of_model);
    if (!model.empty())
        throw UsageError("the checkpoint '" + checkpoint.path().string() +
                         "' is of another model (" + joined(model) + ")");
    return joined(differences(checkpoint, config, [](const std::string& key) {
        return key == "precision" || key == "data.dataset" || key == "data.batch_size" ||
               key == "data.mean" || key == "data.std";
    }));
}

}  // namespace trainer
