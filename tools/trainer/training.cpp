#include "tools/trainer/training.h"

#include <cinttypes>
#include <cstdio>
#include <iostream>

#include "tools/trainer/evaluator.h"
#include "tools/trainer/metrics.h"
#include "tools/trainer/model_card.h"
#include "tools/trainer/run_state.h"
#include "tools/trainer/setup.h"
#include "tools/trainer/trainer.h"

namespace trainer {

int run_training(const Config& config) {
    return static_cast<int>(Trainer(config).run());
}

int run_evaluation(const Config& config, const std::string& path) {
    const Checkpoint checkpoint = Checkpoint::open(path);
    const std::string differing = check_evaluable(checkpoint, config);
    const Dataset dataset = make_dataset(config, Split::test);
    check_class_names(checkpoint, dataset);
    Loader loader(dataset, evaluation_loader(config, dataset));
    const std::unique_ptr<Backend> backend = make_backend(config, std::nullopt);
    const Network network = make_network(config, dataset);
    const auto allocate = [&](size_t bytes) {
        return backend->allocate_slabs(bytes, SlabHome::device);
    };
    const std::vector<std::string> slabs{std::string(slab::weights)};
    const ParameterArena parameters(network.parameters(), backend->parameter_type(), slabs,
                                    allocate);
    const ParameterArena statistics(network.statistics(), backend->parameter_type(), slabs,
                                    allocate);
    read_tensors(checkpoint.model, parameters, slab::weights);
    read_tensors(checkpoint.model, statistics, slab::weights);
    const auto kept = keep_images(dataset, loader.options(), *backend);
    const LossSums sums =
        *Evaluator(loader, network, *backend, parameters, statistics, kept.get()).run();

    for (const auto& notes : {dataset.notes, loader.take_notes()})
        for (const std::string& note : notes)
            std::cerr << "trainer: warning: " << note << "\n";
    const double count = static_cast<double>(sums.samples);
    std::cout << config.model.name << " of " << checkpoint.path().string() << " on "
              << dataset.description << "\n";
    char line[256];
    std::snprintf(line, sizeof line,
                  "loss %.9g  top-1 %.2f %% (%" PRId64 " of %" PRId64 ")  top-5 %.2f %% (%" PRId64
                  ")\n",
                  sums.loss / count, 100 * static_cast<double>(sums.top1) / count, sums.top1,
                  sums.samples, 100 * static_cast<double>(sums.top5) / count, sums.top5);
    std::cout << line;
    const RunState logged = state_of(checkpoint);
    if (!differing.empty())
        std::cout << "not as in training: " << differing << "\n";
    if (logged.evaluated == checkpoint.step)
        std::cout << (logged.evaluation == sums ? "the same" : "not the same")
                  << " as training logged, to the last bit\n";
    return static_cast<int>(ExitCode::done);
}

}  // namespace trainer
