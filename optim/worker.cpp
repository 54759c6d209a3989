#include "optim/worker.h"

#include <algorithm>
#include <cmath>

namespace trainer {

Worker::Worker(const WorkerParts& parts, const WorkerOptions& options)
    : parts_(parts),
      options_(options),
      clipper_(options.clip_grad_norm, parts.parameters.size()),
      update_work_([this](Lane& lane) { update(lane); }) {
    executor_for(parts.loader.options().batch);
}

void Worker::start(int64_t step) {
    const int64_t steps_per_epoch = parts_.loader.steps_per_epoch();
    parts_.loader.start(step / steps_per_epoch, step % steps_per_epoch);
    steps_ = step;
}

StepResult Worker::step() {
    const Batch& batch = parts_.loader.next();
    Executor& executor = executor_for(batch.size);
    const StepInput input{.images = batch.images,
                          .labels = batch.labels,
                          .batch = batch.size,
                          .seed = options_.seed,
                          .step = steps_,
                          .first_sample = batch.first_sample};
    const LossSums sums = executor.train(input, batch.global_size);
    if (!std::isfinite(sums.loss))
        stop_not_finite(executor, sums.loss);
    lr_ = parts_.schedule.at(steps_);
    parts_.backend.lanes().run(update_work_);
    ++steps_;
    return {sums, lr_};
}

void Worker::update(Lane& lane) {
    if (clipper_.active())
        clipper_.run(lane, parts_.parameters);
    const Range all{0, parts_.parameters.size()};
    const Range mine = parts_.optimizer.part(all, lane.index(), lane.count());
    parts_.optimizer.update(parts_.parameters, mine, lr_);
}

Executor& Worker::executor_for(int64_t batch) {
    const auto found =
        std::find_if(executors_.begin(), executors_.end(),
                     [&](const SizedExecutor& sized) { return sized.batch == batch; });
    if (found != executors_.end())
        return *found->executor;
    const ExecutorOptions options{.batch = batch,
                                  .training = true,
                                  .label_smoothing = options_.label_smoothing,
                                  .range_elements = 0};
    executors_.push_back(
        {batch, std::make_unique<Executor>(parts_.network, parts_.backend, parts_.parameters,
                                           parts_.statistics, options)});
    return *executors_.back().executor;
}

void Worker::stop_not_finite(const Executor& executor, double loss) const {
    const auto layer = executor.first_not_finite();
    throw Error("the loss of step " + std::to_string(steps_ + 1) + " is " +
                (std::isnan(loss) ? "not a number" : "infinite") + ", first in layer '" +
                layer.value_or("loss") + "'; try a smaller optim.lr or a warm-up");
}

}  // namespace trainer
