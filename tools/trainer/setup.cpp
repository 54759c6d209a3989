#include "tools/trainer/setup.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>

#include "engine/checkpoint.h"
#include "engine/cuda/cuda_engine.h"
#include "engine/nearest.h"
#include "models/models.h"
#include "tools/trainer/cluster_plan.h"

namespace trainer {
namespace {

/// The config's normalisation; one value stands for every channel.
Normalization normalization_of(const Config& config, int64_t channels) {
    Normalization normalization;
    if (!config.data.mean || !config.data.std)
        normalization = default_normalization(config.data.dataset);
    if (config.data.mean)
        normalization.mean = *config.data.mean;
    if (config.data.std)
        normalization.std = *config.data.std;
    for (std::vector<double>* values : {&normalization.mean, &normalization.std})
        if (values->size() == 1)
            values->resize(static_cast<size_t>(channels), values->front());
    return normalization;
}

/// The number in a file such as those of control groups; nullopt where there is none.
std::optional<int64_t> number_in(const std::string& path) {
    std::ifstream file(path);
    int64_t number = 0;
    return file >> number ? std::optional(number) : std::nullopt;
}

AugmentOptions augment_options(const Config& config) {
    const auto& augment = config.data.augment;
    AugmentOptions options;
    options.crops = {augment.pad_crop, augment.flip, augment.cutout};
    options.photo.crop = augment.random_crop;
    options.photo.scale_low = augment.scale[0];
    options.photo.scale_high = augment.scale[1];
    options.photo.ratio_low = augment.ratio[0];
    options.photo.ratio_high = augment.ratio[1];
    options.photo.flip = augment.flip;
    std::copy(augment.color_jitter.begin(), augment.color_jitter.end(),
              options.photo.jitter.begin());
    return options;
}

}  // namespace

Dataset make_dataset(const Config& config, Split split) {
    DatasetOptions options;
    options.dataset = config.data.dataset;
    options.dir = config.data.dir;
    options.split = split;
    options.synthetic.seed = config.seed;
    options.photos = {.image_size = config.data.image_size,
                      .resize = config.data.resize.value_or(usual_resize(config.data.image_size)),
                      .upright = config.data.exif_orientation,
                      .skip_corrupt = config.data.on_corrupt == "skip",
                      .val_labels = config.data.val_labels,
                      .held_out = config.data.split};
    Dataset dataset = load_dataset(options);
    if (dataset.classes > config.model.num_classes)
        throw UsageError("model.num_classes: " + std::to_string(config.model.num_classes) +
                         " is too few for " + dataset.name + ", which has " +
                         std::to_string(dataset.classes) + " classes");
    return dataset;
}

LoaderOptions training_loader(const Config& config, bool on_gpu) {
    LoaderOptions options;
    options.batch = config.data.batch_size;
    options.shuffle = config.data.shuffle;
    options.drop_last = config.data.drop_last;
    options.seed = config.seed;
    // Photographs take as much work as there is; the threads that compute wait for them.
    const bool photos = config.data.dataset == "imagenet" || config.data.dataset == "folder";
    options.threads = config.data.workers.value_or(photos ? std::clamp(processors(), 1, 32)
                                                          : std::clamp(processors() / 2, 1, 8));
    options.augment = augment_options(config);
    if (const auto device = on_gpu ? cuda_device(config) : std::nullopt) {
        options.allocate = [gpu = *device](size_t bytes) { return allocate_for_cuda(bytes, gpu); };
        // Of several GPUs only the first would keep them.
        options.images = photos || !config.cuda.keep_images || config.worker.gpus > 1;
    }
    options.normalization = normalization_of(config, 3);
    return options;
}

LoaderOptions evaluation_loader(const Config& config, const Dataset& dataset, bool on_gpu) {
    LoaderOptions options = training_loader(config, on_gpu);
    options.batch = std::min<int64_t>(config.data.batch_size, dataset.count);
    options.shuffle = false;
    options.drop_last = false;
    options.repeat = false;
    options.substitute = false;
    options.augment = {};
    return options;
}

std::unique_ptr<DeviceImages> keep_images(const Dataset& dataset, const LoaderOptions& options,
                                          Backend& backend) {
    if (options.images)
        return nullptr;
    auto kept = backend.keep_images(
        kept_set(dataset, options.augment.crops, options.normalization, options.seed));
    check(kept != nullptr, "a backend that keeps no images gets them");
    return kept;
}

int64_t steps_per_epoch(const Config& config, int64_t images) {
    const int64_t batch = int64_t{config.data.batch_size} * config.distributed.workers;
    return std::max<int64_t>(1, (images + (config.data.drop_last ? 0 : batch - 1)) / batch);
}

int64_t run_length(const Config& config, int64_t steps_per_epoch) {
    const int64_t steps = config.train.epochs * steps_per_epoch;
    return config.train.max_steps > 0 ? std::min(steps, config.train.max_steps) : steps;
}

ScheduleOptions schedule_options(const Config& config, int64_t steps_per_epoch) {
    const auto& optim = config.optim;
    ScheduleOptions options;
    options.type = optim.schedule.type;
    options.lr = optim.lr;
    options.milestones = optim.schedule.milestones;
    options.gamma = optim.schedule.gamma;
    options.power = optim.schedule.power;
    options.final_lr = optim.schedule.final_lr;
    options.warmup_epochs = optim.schedule.warmup_epochs;
    options.steps_per_epoch = steps_per_epoch;
    options.total_steps =
        config.train.max_steps > 0 ? config.train.max_steps : config.train.epochs * steps_per_epoch;
    return options;
}

OptimizerOptions optimizer_options(const Config& config) {
    OptimizerOptions options;
    options.name = config.optim.name;
    options.momentum = config.optim.momentum;
    options.weight_decay = config.optim.weight_decay;
    options.decay_bn_bias = config.optim.decay_bn_bias;
    options.frozen = config.model.freeze;
    return options;
}

int processors() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

void use_processors(int first, int count) {
    cpu_set_t all, mine;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < first + count)
        return;
    CPU_ZERO(&mine);
    int index = 0;
    for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
        if (!CPU_ISSET(processor, &all))
            continue;
        if (index >= first && index < first + count)
            CPU_SET(processor, &mine);
        ++index;
    }
    // A machine that forbids it only runs a little slower.
    sched_setaffinity(0, sizeof mine, &mine);
}

int computing_threads(const Config& config) {
    return config.threads.value_or(processors());
}

std::optional<int> cuda_device(const Config& config) {
    if (config.device == "cpu")
        return std::nullopt;
    if (config.device == "auto")
        return has_cuda_device() && !why_no_cuda(0) ? std::optional(0) : std::nullopt;
    const int index = config.device.starts_with("cuda:") ? std::atoi(config.device.c_str() + 5) : 0;
    if (const auto why = why_no_cuda(index))
        throw UsageError("device: " + config.device + ": " + *why);
    return index;
}

void check_gpus(const Config& config) {
    const std::optional<int> device = cuda_device(config);
    const int gpus = config.worker.gpus;
    const bool allreduce = config.distributed.topology == "allreduce";
    if (gpus == 1 && !(device && allreduce))
        return;
    const std::string asked = gpus > 1 ? "worker.gpus: " + std::to_string(gpus)
                                       : std::string("distributed.topology: allreduce");
    if (!device)
        throw UsageError(
            asked + ": the CPU computes here" +
            (config.device == "cpu" ? std::string() : ", since " + why_no_cuda(0).value_or("")) +
            "; take worker.gpus 1");
    for (int gpu = 0; gpu < gpus; ++gpu)
        if (const auto why = why_no_cuda(*device + gpu))
            throw UsageError(asked + ": " + *why);
    if (const auto why = why_no_nccl())
        throw UsageError(asked + " needs NCCL: " + *why);
    if (config.data.batch_size < gpus)
        throw UsageError(asked + ": data.batch_size " + std::to_string(config.data.batch_size) +
                         " has not a sample for each; take a larger one");
}

void check_device(const Config& config) {
    const std::optional<int> device = cuda_device(config);
    if (config.device != "auto" || device || !has_cuda_device())
        return;
    if (const auto why = why_no_cuda(0))
        std::cerr << "trainer: device: auto: the CPU computes, since " << *why << "\n";
}

std::unique_ptr<Backend> make_backend(const Config& config, std::optional<DType> reference,
                                      bool pin) {
    if (reference)
        return make_reference_backend(*reference);
    const Precision precision = config.precision == "bf16" ? Precision::bf16 : Precision::fp32;
    if (const std::optional<int> device = cuda_device(config))
        return make_cuda_backend({.device = *device,
                                  .precision = precision,
                                  .deterministic = config.deterministic,
                                  .tf32 = config.cuda.tf32,
                                  .graphs = config.cuda.graphs,
                                  .gpus = config.worker.gpus,
                                  .timeout = comm_timeout(config)});
#ifndef TRAINER_HAS_ONEDNN
    if (precision == Precision::fp32)
        return make_reference_backend(DType::f32);
#endif
    return make_cpu_backend({.threads = computing_threads(config),
                             .precision = precision,
                             .pin = pin,
                             .winograd = config.cpu.winograd});
}

namespace {

// A beginning that no tensor has would freeze nothing, silently.
void check_frozen(const TensorTable& table, const std::vector<std::string>& freeze) {
    for (const std::string& beginning : freeze) {
        const auto& tensors = table.tensors();
        if (std::any_of(tensors.begin(), tensors.end(), [&](const TensorInfo& tensor) {
                return tensor.name.starts_with(beginning);
            }))
            continue;
        std::vector<std::string> names;
        for (const TensorInfo& tensor : tensors)
            names.push_back(tensor.name);
        throw UsageError("model.freeze: no tensor's name begins with '" + beginning +
                         "'; did you mean " + nearest_name(beginning, names) + "?");
    }
}

}  // namespace

Network make_network(const Config& config, const Dataset& dataset) {
    ModelOptions options;
    options.num_classes = config.model.num_classes;
    options.channels = dataset.channels;
    options.height = dataset.height;
    options.width = dataset.width;
    options.zero_last_gamma = config.model.zero_last_gamma;
    Network network = build_model(config.model.name, options);
    check_frozen(network.parameters(), config.model.freeze);
    return network;
}

int64_t free_memory() {
    int64_t available = std::numeric_limits<int64_t>::max();
    std::ifstream meminfo("/proc/meminfo");
    for (std::string word; meminfo >> word;) {
        int64_t kilobytes = 0;
        if (word == "MemAvailable:" && meminfo >> kilobytes)
            available = kilobytes * 1024;
    }
    const auto limit = number_in("/sys/fs/cgroup/memory.max");
    const auto used = number_in("/sys/fs/cgroup/memory.current");
    if (limit && used)
        available = std::min(available, std::max<int64_t>(0, *limit - *used));
    return available;
}

namespace {

void read_tensor(const SafetensorsFile& file, const ParameterArena& arena,
                 const TensorInfo& tensor) {
    if (arena.type() == DType::f64)
        file.read(tensor.name, tensor.shape, arena.tensor<double>(slab::weights, tensor));
    else
        file.read(tensor.name, tensor.shape, arena.tensor<float>(slab::weights, tensor));
}

}  // namespace

InitResult read_model(const SafetensorsFile& file, const Network& network,
                      const ParameterArena& parameters, const ParameterArena& statistics) {
    InitResult result;
    const std::vector<int>& head = network.node(network.output()).parameters;
    for (size_t index = 0; index < parameters.table().tensors().size(); ++index) {
        const TensorInfo& tensor = parameters.table().tensors()[index];
        const bool in_head =
            std::find(head.begin(), head.end(), static_cast<int>(index)) != head.end();
        const SafetensorsEntry* entry = file.find(tensor.name);
        if (in_head && (entry == nullptr || entry->shape != tensor.shape))
            result.fresh.push_back(tensor.name);
        else
            read_tensor(file, parameters, tensor);
    }
    read_tensors(file, statistics, slab::weights);
    return result;
}

std::vector<std::string> start_model(const Config& config, const Network& network,
                                     ParameterArena& parameters, ParameterArena& statistics) {
    initialize_weights(parameters, config.seed);
    initialize_weights(statistics, config.seed);
    if (config.model.init.empty())
        return {};
    try {
        const InitResult result =
            read_model(SafetensorsFile(config.model.init), network, parameters, statistics);
        std::vector<std::string> lines{"start        from " + config.model.init};
        for (const std::string& name : result.fresh)
            lines.push_back("             " + name +
                            " is of another size there, and starts afresh");
        return lines;
    } catch (const Error& error) {
        throw Error(std::string("model.init: ") + error.what());
    }
}

}  // namespace trainer
