// What training and evaluation are made of, as the config says: data, device, model.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/dataset.h"
#include "data/loader.h"
#include "engine/backend.h"
#include "engine/network.h"
#include "engine/safetensors.h"
#include "optim/schedule.h"
#include "optim/sgd.h"
#include "tools/trainer/config.h"

namespace trainer {

/// Reads a split of the config's data set. Throws as load_dataset, and UsageError where it has
/// more classes than model.num_classes.
Dataset make_dataset(const Config& config, Split split);

/// How training batches, and those of an evaluation, are read; `on_gpu` false: by a backend that is
/// not the config's device.
LoaderOptions training_loader(const Config& config, bool on_gpu = true);
LoaderOptions evaluation_loader(const Config& config, const Dataset& dataset, bool on_gpu = true);

/// The images that batches of those options leave to the backend; nullptr where they have them.
std::unique_ptr<DeviceImages> keep_images(const Dataset& dataset, const LoaderOptions& options,
                                          Backend& backend);

/// Global steps of an epoch over `images` training images, at least 1, and of the whole run.
int64_t steps_per_epoch(const Config& config, int64_t images);
int64_t run_length(const Config& config, int64_t steps_per_epoch);

/// The config's learning rate and optimizer.
ScheduleOptions schedule_options(const Config& config, int64_t steps_per_epoch);
OptimizerOptions optimizer_options(const Config& config);

/// Processors that the calling thread may use.
int processors();

/// Binds the calling thread, and those that it starts, to `count` of its processors, from the
/// `first`-th on; does nothing where there are not so many.
void use_processors(int first, int count);

/// Computing threads of one worker: the config's, or one a processor that this process may use.
int computing_threads(const Config& config);

/// The GPU that the config's device means; nullopt: the CPU computes. `auto` takes GPU 0 where it
/// can compute. Throws UsageError where the config asks for a GPU that cannot, and says why.
std::optional<int> cuda_device(const Config& config);

/// Throws UsageError where a worker that is to train has not all its GPUs, or they cannot work
/// together, or with others'.
void check_gpus(const Config& config);

/// Throws as cuda_device(); says on standard error why `auto` does without a GPU that is there. To
/// be called before anything that takes time.
void check_device(const Config& config);

/// What computes: the config's device, or `reference`, plain loops of that type, where given. A
/// build without oneDNN computes `auto` and `cpu` with plain loops too. Throws UsageError for a
/// device that this build or machine has not. `pin`: binds lanes to processors.
std::unique_ptr<Backend> make_backend(const Config& config, std::optional<DType> reference,
                                      bool pin = true);

/// The config's model for images as `dataset` has them.
Network make_network(const Config& config, const Dataset& dataset);

/// Bytes that this process may still take: of the machine, or of its control group where that is
/// less.
int64_t free_memory();

/// What a file says of a model.init that is not its whole: names of tensors that start afresh.
struct InitResult {
    std::vector<std::string> fresh;
};

/// Fills weights and statistics (slabs "weights") from a model.safetensors. The tensors of the last
/// layer, where the file has them in another size, keep the values they have. Throws Error where
/// any other tensor is missing or of another shape.
InitResult read_model(const SafetensorsFile& file, const Network& network,
                      const ParameterArena& parameters, const ParameterArena& statistics);

/// What a run that starts afresh has: weights and statistics drawn from the seed, then of
/// model.init where one is given. Returns lines for people. Throws Error that names model.init
/// where it cannot be read or does not fit.
std::vector<std::string> start_model(const Config& config, const Network& network,
                                     ParameterArena& parameters, ParameterArena& statistics);

}  // namespace trainer
