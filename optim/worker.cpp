#include "optim/worker.h"

#include <algorithm>
#include <cmath>

namespace trainer {

namespace {

// Large enough that a message costs little beside its bytes, small enough that several leave
// while backward goes on.
int64_t range_elements(int64_t parameters) {
    return std::clamp<int64_t>(parameters / 8, 64 << 10, 1 << 20);
}

}  // namespace

Worker::Worker(const WorkerParts& parts, const WorkerOptions& options)
    : parts_(parts),
      options_(options),
      clipper_(options.clip_grad_norm, parts.parameters.size()),
      update_work_([this](Lane& lane) { update(lane); }),
      clip_work_([this](Lane& lane) { clipper_.run(lane, parts_.parameters); }) {
    // Clipping takes the whole gradient before any of it leaves.
    if (parts_.exchange != nullptr && !clipper_.active())
        range_done_ = [this](Range range) { range_done(range); };
    range_leaves_ = [this](Range range, float* gradients) {
        return taken_ = parts_.exchange->range_leaves(range, gradients, gradient_factor_);
    };
    executor_for(parts.loader.options().batch);
}

void Worker::start(int64_t step) {
    const int64_t steps_per_epoch = parts_.loader.steps_per_epoch();
    parts_.loader.start(step / steps_per_epoch, step % steps_per_epoch);
    steps_ = step;
}

void Worker::start(int64_t step, int64_t worker, int64_t workers, int64_t epoch,
                   int64_t first_sample) {
    parts_.loader.start_share(worker, workers, epoch, first_sample);
    steps_ = step;
}

StepResult Worker::step() {
    const Batch& batch = parts_.loader.next();
    lr_ = parts_.schedule.at(steps_);
    const LossSums sums = compute_gradients(batch);
    if (parts_.exchange == nullptr) {
        parts_.backend.lanes().run(update_work_);
    } else {
        if (clipper_.active()) {
            parts_.backend.lanes().run(clip_work_);
            parts_.exchange->range_done({0, parts_.parameters.size()});
        }
        parts_.exchange->finish();
    }
    ++steps_;
    return {sums, lr_};
}

LossSums Worker::compute_gradients(const Batch& batch) {
    // Divided by its own samples where all workers have as many; in a last, smaller step the
    // divisor is a fraction, and the factor makes up for it.
    const int64_t workers = parts_.loader.options().workers;
    const bool even = batch.global_size % workers == 0;
    const int64_t mean_over = even ? batch.global_size / workers : batch.global_size;
    gradient_factor_ = even ? 1.0F : static_cast<float>(workers);
    if (batch.size == 0) {
        give_nothing();
        return {};
    }
    Executor& executor = executor_for(batch.size);
    StepInput input = parts_.loader.input_of(batch, parts_.kept);
    input.seed = options_.seed;
    input.step = steps_;
    const LossSums sums = executor.train(input, mean_over, range_done_, range_leaves_);
    if (!std::isfinite(sums.loss))
        stop_not_finite(executor, sums.loss);
    if (!range_done_ && gradient_factor_ != 1)
        scale({0, parts_.parameters.size()});
    return sums;
}

void Worker::give_nothing() {
    std::ranges::fill(parts_.parameters.slab<float>(slab::gradients), 0.0F);
    if (range_done_)
        for (const Range range : executor().ranges()) {
            taken_ = parts_.exchange->range_leaves(range, nullptr, 1);
            range_done_(range);
        }
}

void Worker::scale(Range range) const {
    float* const gradients = parts_.parameters.slab<float>(slab::gradients).data();
    for (int64_t i = range.first; i < range.end(); ++i)
        gradients[i] *= gradient_factor_;
}

void Worker::range_done(Range range) {
    if (gradient_factor_ != 1 && !taken_)
        scale(range);
    parts_.exchange->range_done(range);
}

void Worker::update(Lane& lane) {
    SlabMath* const device = parts_.backend.slab_math();
    if (clipper_.active())
        clipper_.run(lane, parts_.parameters, device);
    const Range all{0, parts_.parameters.size()};
    const Range mine = parts_.optimizer.part(all, lane.index(), lane.count());
    parts_.optimizer.update(parts_.parameters, mine, lr_, device);
}

Executor& Worker::executor_for(int64_t batch) {
    const auto found =
        std::find_if(executors_.begin(), executors_.end(),
                     [&](const SizedExecutor& sized) { return sized.batch == batch; });
    if (found != executors_.end())
        return *found->executor;
    const ExecutorOptions options{
        .batch = batch,
        .training = true,
        .label_smoothing = options_.label_smoothing,
        .range_elements = range_done_ ? range_elements(parts_.parameters.size()) : 0,
        .step_seconds = options_.step_seconds};
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
