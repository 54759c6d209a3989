#include "tools/trainer/config_checks.h"

#include <algorithm>
#include <map>

#include "engine/error.h"

namespace trainer {
namespace {

using Place = std::function<std::string(const std::string&)>;

void check_required(const Config& config, const Place& place) {
    if (config.model.name.empty())
        throw UsageError(place("model.name") +
                         "missing; say which model, e.g. model: {name: " + "resnet20}");
    if (config.data.dir.empty() && config.data.dataset != "synthetic")
        throw UsageError(place("data.dir") + "missing; say where " + config.data.dataset +
                         " lies, e.g. data: {dir: data/" + config.data.dataset + "}");
}

void check_data(const Config& config, const Place& place) {
    static const std::map<std::string, int> classes_of = {
        {"cifar10", 10}, {"cifar100", 100}, {"fashion_mnist", 10}, {"mnist", 10}};
    const auto classes = classes_of.find(config.data.dataset);
    if (classes != classes_of.end() && config.model.num_classes < classes->second)
        throw UsageError(place("model.num_classes") + std::to_string(config.model.num_classes) +
                         " is too few for " + config.data.dataset + ", which has " +
                         std::to_string(classes->second) + " classes");
    const auto check_channels = [&](const auto& values, const std::string& key) {
        if (values && values->size() != 1 && values->size() != 3)
            throw UsageError(place(key) + "a list of " + std::to_string(values->size()) +
                             "; expected: auto, or one number or three, a channel each");
    };
    check_channels(config.data.mean, "data.mean");
    check_channels(config.data.std, "data.std");
    const auto check_range = [&](const std::vector<double>& values, const std::string& key) {
        if (values.size() != 2 || values[0] > values[1])
            throw UsageError(place(key) + "expected: two numbers, the least and the most");
    };
    const auto& augment = config.data.augment;
    check_range(augment.scale, "data.augment.scale");
    check_range(augment.ratio, "data.augment.ratio");
    if (augment.color_jitter.size() > 4)
        throw UsageError(place("data.augment.color_jitter") + "a list of " +
                         std::to_string(augment.color_jitter.size()) +
                         "; expected: up to four numbers, brightness, contrast, saturation, hue");
    if (config.data.resize && *config.data.resize < config.data.image_size)
        throw UsageError(place("data.resize") + std::to_string(*config.data.resize) +
                         " is less than data.image_size, " +
                         std::to_string(config.data.image_size));
}

void check_schedule(const Config& config, const Place& place) {
    const auto& milestones = config.optim.schedule.milestones;
    const auto unsorted =
        std::adjacent_find(milestones.begin(), milestones.end(), std::greater_equal<>());
    if (unsorted != milestones.end())
        throw UsageError(place("optim.schedule.milestones") +
                         "out of order; each is an epoch after the one before it");
}

void check_tls(const Config& config, const Place& place) {
    const auto& tls = config.comm.tls;
    if (tls.cert.empty() != tls.key.empty())
        throw UsageError(place(tls.cert.empty() ? "comm.tls.key" : "comm.tls.cert") +
                         "cert and key go together; the other one is missing");
    if (tls.cert.empty() != tls.ca.empty())
        throw UsageError(place(tls.ca.empty() ? "comm.tls.ca" : "comm.tls.cert") +
                         "missing; both ends show a certificate, of the authority in ca");
}

void check_lease(const Config& config, const Place& place) {
    if (config.comm.lease && *config.comm.lease >= config.comm.timeout)
        throw UsageError(place("comm.lease") +
                         "expected: less than comm.timeout, after which those who wait for someone "
                         "lost would give up themselves");
}

void check_distributed(const Config& config, const Place& place) {
    const int backup = config.distributed.backup_workers, workers = config.distributed.workers;
    if (backup > 0 && backup >= workers)
        throw UsageError(place("distributed.backup_workers") + std::to_string(backup) + " of " +
                         std::to_string(workers) + (workers == 1 ? " worker" : " workers") +
                         " leave none whose push a step waits for; take fewer");
}

}  // namespace

void check_config(const Config& config, const Place& place) {
    check_required(config, place);
    check_data(config, place);
    check_schedule(config, place);
    check_distributed(config, place);
    check_lease(config, place);
    check_tls(config, place);
}

}  // namespace trainer
