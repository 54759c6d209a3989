#include "tools/trainer/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "tools/trainer/format.h"
#include "tools/trainer/model_card.h"
#include "tools/trainer/profile.h"
#include "tools/trainer/setup.h"

namespace trainer {
namespace {

std::string gibibytes(double bytes) {
    return bytes < 0x1p30 ? format("%.0f MiB", bytes * 0x1p-20)
                          : format("%.1f GiB", bytes * 0x1p-30);
}

double accuracy(const LossSums& sums) {
    return static_cast<double>(sums.top1) / static_cast<double>(std::max<int64_t>(sums.samples, 1));
}

}  // namespace

Trainer::Trainer(const Config& config, const TrainerOptions& options)
    : config_(config),
      options_(options),
      log_(config),
      store_(config.checkpoint.dir, config.checkpoint.keep,
             [this](const std::string& text) { log_.warn(text); }),
      resumed_(checkpoint_to_resume(config, store_,
                                    [this](const std::string& text) { log_.say(text); })),
      training_data_(make_dataset(config, Split::train)),
      test_data_(make_dataset(config, Split::test)),
      network_(make_network(config, training_data_)),
      optimizer_(make_optimizer(optimizer_options(config), network_.parameters())),
      training_loader_(training_data_,
                       (check_memory(), training_loader(config, !options.reference))),
      evaluation_loader_(test_data_, evaluation_loader(config, test_data_, !options.reference)),
      backend_(make_backend(config, options.reference)),
      kept_training_(keep_images(training_data_, training_loader_.options(), *backend_)),
      kept_test_(keep_images(test_data_, evaluation_loader_.options(), *backend_)),
      steps_per_epoch_(training_loader_.steps_per_epoch()),
      total_steps_(run_length(config, steps_per_epoch_)),
      schedule_(schedule_options(config, steps_per_epoch_)),
      parameters_(make_parameters()),
      statistics_(
          network_.statistics(), parameters_.type(), {std::string(slab::weights)},
          [this](size_t bytes) { return backend_->allocate_slabs(bytes, SlabHome::device); }),
      worker_({network_, *backend_, parameters_, statistics_, training_loader_, *optimizer_,
               schedule_, nullptr, kept_training_.get()},
              {.seed = config.seed,
               .label_smoothing = config.train.label_smoothing,
               .clip_grad_norm = config.train.clip_grad_norm}),
      evaluator_(evaluation_loader_, network_, *backend_, parameters_, statistics_,
                 kept_test_.get()) {
    if (resumed_)
        restore(*resumed_);
    else
        start_afresh();
}

// What a run takes of the memory of what computes.
struct Trainer::Needs {
    const Trainer& run;
    const Backend& backend;  // of a single lane
    int lanes;               // that there will be
    bool on_device = backend.free_memory().has_value();
    LoaderOptions loader = training_loader(run.config_, !run.options_.reference);
    // Images that a GPU keeps.
    size_t kept = loader.images ? 0 : kept_bytes(run.training_data_) + kept_bytes(run.test_data_);

    static size_t kept_bytes(const Dataset& data) {
        return static_cast<size_t>(data.count * data.image_bytes());
    }

    // Of batches of so many images.
    size_t bytes(int64_t batch) const {
        const Network& network = run.network_;
        const int64_t test_batch = std::min(batch, run.test_data_.count);
        const int gpus = run.config_.worker.gpus;
        // The first GPU's part, which is no smaller than the others', and all of an evaluation.
        const int64_t part = part_of(batch, 0, gpus).count;
        const ExecutorOptions training{.batch = part, .training = true};
        const ExecutorOptions evaluation{.batch = test_batch, .training = false};
        // A GPU's libraries have weights and gradients in forms of their own besides.
        const size_t slabs = 2 + run.optimizer_->slabs().size() + (on_device ? 2 : 0) +
                             (gpus > 1 ? 2 : 0);  // what they send each other
        // A GPU has the images of a step, and where they come from the host the next one's.
        const int64_t batches = !on_device ? loader.ring : loader.images ? 2 : 1;
        const auto images = static_cast<size_t>((part + test_batch) * batches);
        return Executor::bytes_needed(network, backend, lanes, training) +
               Executor::bytes_needed(network, backend, lanes, evaluation) + kept +
               images * static_cast<size_t>(run.training_data_.image_bytes()) * sizeof(float) +
               slabs * static_cast<size_t>(network.parameters().size()) *
                   size_of(backend.parameter_type());
    }

    // The largest batch that `free` bytes are enough for; 0: none.
    int64_t largest_batch(size_t free, int64_t too_large) const {
        int64_t fits = 0;
        while (too_large - fits > 1) {
            const int64_t middle = fits + (too_large - fits) / 2;
            (bytes(middle) <= free ? fits : too_large) = middle;
        }
        return fits;
    }
};

void Trainer::check_memory() {
    introduce_model();
    // One of a single lane, which binds nothing to a processor, knows how large buffers are.
    Config single = config_;
    single.threads = 1;
    single.worker.gpus = 1;
    const std::unique_ptr<Backend> backend = make_backend(single, options_.reference);
    const std::optional<size_t> of_device = backend->free_memory();
    const int lanes = options_.reference || of_device ? 1 : computing_threads(config_);
    const Needs needs{*this, *backend, lanes};
    const int64_t batch = config_.data.batch_size;
    const size_t free = of_device.value_or(static_cast<size_t>(free_memory()));
    const size_t needed = needs.bytes(batch);
    const std::string needed_text = gibibytes(static_cast<double>(needed));
    const std::string free_text = gibibytes(static_cast<double>(free));
    log_.say("memory       about " + needed_text + " of " + free_text + " free");
    if (needed <= free)
        return;
    const int64_t fits = needs.largest_batch(free, batch);
    throw Error("a batch of " + std::to_string(batch) + " needs about " + needed_text +
                (of_device ? " of the GPU's memory, " : " of memory, ") + free_text +
                " are free; " +
                (fits > 0 ? "data.batch_size=" + std::to_string(fits) + " fits"
                          : std::string("no batch fits")) +
                (needs.kept > 0 ? "; cuda.keep_images=false leaves " +
                                      gibibytes(static_cast<double>(needs.kept)) +
                                      " of images in the machine's memory"
                                : std::string()));
}

ParameterArena Trainer::make_parameters() {
    introduce_run();
    std::vector<std::string> slabs{std::string(slab::weights), std::string(slab::gradients)};
    const std::vector<std::string> more = optimizer_->slabs();
    slabs.insert(slabs.end(), more.begin(), more.end());
    return {network_.parameters(), backend_->parameter_type(), slabs,
            [this](size_t bytes) { return backend_->allocate_slabs(bytes, SlabHome::device); }};
}

void Trainer::introduce_model() {
    log_.say("model        " + config_.model.name + ", " +
             std::to_string(config_.model.num_classes) + " classes, " +
             grouped(network_.parameters().size()) + " parameters, " +
             format("%.1f", static_cast<double>(network_.multiply_adds()) * 1e-6) +
             " million multiply-adds an image");
    log_.say("data         " + training_data_.description);
    log_.say("             " + grouped(training_data_.count) + " training images, " +
             grouped(test_data_.count) + " test images");
}

void Trainer::introduce_run() {
    const auto& train = config_.train;
    log_.say("device       " + backend_->description());
    log_.say("batch        " + std::to_string(config_.data.batch_size) + " (global), " +
             grouped(steps_per_epoch_) + " steps an epoch, " + std::to_string(train.epochs) +
             (train.epochs == 1 ? " epoch, " : " epochs, ") + grouped(total_steps_) + " steps");
    log_.say("optimizer    " + config_.optim.name +
             format(", lr %g, momentum %g, weight decay %g, schedule ", config_.optim.lr,
                    config_.optim.momentum, config_.optim.weight_decay) +
             config_.optim.schedule.type);
    log_.say("checkpoints  " + store_.directory().string());
    log_.say("logs         " + (log_.directory() / "metrics.jsonl").string() + ", " +
             (log_.directory() / "trainer.log").string());
    for (const Dataset* data : {&training_data_, &test_data_})
        for (const std::string& note : data->notes)
            log_.warn(note);
    if (train.max_steps > train.epochs * steps_per_epoch_)
        log_.warn("train.max_steps (" + std::to_string(train.max_steps) +
                  ") is more than train.epochs make; the run ends after " +
                  std::to_string(total_steps_) + " steps");
}

void Trainer::restore(const Checkpoint& checkpoint) {
    check_class_names(checkpoint, training_data_);
    read_tensors(checkpoint.model, parameters_, slab::weights);
    read_tensors(checkpoint.model, statistics_, slab::weights);
    for (const std::string& name : optimizer_->slabs())
        read_slab(checkpoint.state, parameters_, name, name);
    state_ = state_of(checkpoint);
    unsaved_ = !std::filesystem::equivalent(checkpoint.path().parent_path(), store_.directory());
    if (unsaved_)
        state_.best_saved = -1;  // the link `best` is the other directory's
    log_.say("resume       " + checkpoint.path().string() + ": " + grouped(state_.step) +
             " steps done");
}

void Trainer::start_afresh() {
    for (const std::string& line : start_model(config_, network_, parameters_, statistics_))
        log_.say(line);
}

ExitCode Trainer::run() {
    const bool fresh = !resumed_;
    resumed_.reset();
    const bool evaluated = state_.evaluated == state_.step;
    if (!fresh && is_last() && evaluated && !unsaved_) {
        log_.say("nothing left to do: all " + grouped(total_steps_) +
                 " steps are done; a greater " +
                 (config_.train.max_steps ? "train.max_steps goes" : "train.epochs goes") +
                 " on from here");
        summarize();
        return ExitCode::done;
    }
    log_.header({.device = backend_->description(),
                 .data = training_data_.description,
                 .parameters = network_.parameters().size(),
                 .global_batch = config_.data.batch_size,
                 .steps_per_epoch = steps_per_epoch_,
                 .start_step = state_.step,
                 .fresh = fresh});
    try {
        return train();
    } catch (const Error& error) {
        log_.note(std::string("error: ") + error.what());
        if (const auto steps = store_.steps(); !steps.empty())
            log_.say("the last checkpoint is " +
                     (store_.directory() / ("step-" + std::to_string(steps.back()))).string());
        throw;
    }
}

ExitCode Trainer::train() {
    if (state_.step == 0 && config_.checkpoint.every_steps > 0 && unsaved_)
        save();
    if (!is_last())
        worker_.start(state_.step);
    worker_.executor().profile(config_.profile);
    do {
        if (signals_.requested())
            return stop_for_signal();
        if (!is_last())
            train_step();
        if (is_last() || is_end_of(1))
            log_epoch();
        if (!evaluate_if_due())
            return stop_for_signal();
        save_if_due();
    } while (!is_last());
    summarize();
    log_.finish();
    if (config_.profile)
        print_profile();
    return ExitCode::done;
}

void Trainer::train_step() {
    const auto start = Clock::now();
    const double waited = training_loader_.waited_seconds();
    const StepResult result = worker_.step();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    spent_.step_seconds += seconds;
    spent_.data_wait += training_loader_.waited_seconds() - waited;
    spent_.images += result.sums.samples;
    ++spent_.steps;
    recent_step_seconds_ +=
        (seconds - recent_step_seconds_) / static_cast<double>(std::min<int64_t>(spent_.steps, 50));
    tell_notes(training_loader_);
    lr_ = result.lr;
    state_.step = worker_.steps();
    state_.epoch += result.sums;
    state_.window += result.sums;
    unsaved_ = true;
    log_step();
}

void Trainer::tell_notes(Loader& loader) {
    for (const std::string& note : loader.take_notes())
        log_.warn(note);
}

// Says where training waits for data, once an epoch at most.
void Trainer::hint_at_data() {
    const std::string hint =
        data_hint_.look(spent_.step_seconds, spent_.data_wait, training_loader_.source_times(),
                        training_loader_.options().threads, processors());
    if (!hint.empty())
        log_.say("hint         " + hint);
}

double Trainer::speed_since(const Spent& before) const {
    return static_cast<double>(spent_.images - before.images) /
           (spent_.step_seconds - before.step_seconds);
}

void Trainer::log_step() {
    log_.progress(state_.epoch, speed_since(epoch_start_), position());
    if (state_.step % config_.log.every_steps == 0)
        log_window();
}

void Trainer::log_window() {
    log_.record({.type = RecordType::step,
                 .step = state_.step,
                 .epoch = current_epoch(),
                 .sums = state_.window,
                 .lr = lr_,
                 .images_per_s = speed_since(window_start_),
                 .data_wait = spent_.data_wait - window_start_.data_wait},
                position());
    state_.window = {};
    window_start_ = spent_;
}

void Trainer::log_epoch() {
    if (state_.epoch.samples == 0)
        return;  // said by the run that this one goes on from
    Record record{.type = RecordType::epoch,
                  .step = state_.step,
                  .epoch = current_epoch(),
                  .sums = state_.epoch};
    if (spent_.images > epoch_start_.images) {
        record.lr = lr_;
        record.images_per_s = speed_since(epoch_start_);
        record.data_wait = spent_.data_wait - epoch_start_.data_wait;
    }
    log_.record(record, position());
    hint_at_data();
    if (!is_end_of(1))
        return;  // cut short by train.max_steps: more steps may come, and say it again
    state_.epoch = {};
    epoch_start_ = spent_;
}

bool Trainer::evaluate_if_due() {
    const bool due = is_last() || is_end_of(config_.train.eval_every_epochs);
    if (!due || state_.evaluated == state_.step)
        return true;
    const auto start = Clock::now();
    const auto sums = evaluator_.run([this] { return signals_.requested(); });
    if (!sums)
        return false;
    tell_notes(evaluation_loader_);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    state_.evaluated = state_.step;
    state_.evaluation = *sums;
    if (state_.best < 0 || sums->top1 > state_.best_evaluation.top1) {
        state_.best = state_.step;
        state_.best_evaluation = *sums;
    }
    unsaved_ = true;
    log_.record({.type = RecordType::eval,
                 .step = state_.step,
                 .epoch = current_epoch(),
                 .sums = *sums,
                 .images_per_s = static_cast<double>(sums->samples) / seconds},
                position());
    return true;
}

void Trainer::save_if_due() {
    const auto& checkpoint = config_.checkpoint;
    const bool by_steps = checkpoint.every_steps > 0 && state_.step % checkpoint.every_steps == 0;
    // The best model so far is always there to have, unless only the last one is asked for.
    const bool is_best =
        state_.best == state_.step && (checkpoint.every_epochs > 0 || checkpoint.every_steps > 0);
    if (unsaved_ && (is_last() || by_steps || is_best || is_end_of(checkpoint.every_epochs)))
        save();
}

void Trainer::save() {
    CheckpointContents contents;
    check_finite(parameters_, slab::weights, state_.step);
    append_model(contents, parameters_, statistics_, state_.step);
    for (const std::string& name : optimizer_->slabs()) {
        check_finite(parameters_, name, state_.step);
        append_slab(contents.state, parameters_, name, name);
    }
    const bool best =
        state_.evaluated == state_.step && (state_.best == state_.step || state_.best_saved < 0);
    if (best)
        state_.best_saved = state_.step;
    contents.metadata = metadata_of(state_, config_, steps_per_epoch_);
    add_card(contents.metadata, training_data_, training_loader_.options().normalization);
    store_.save(state_.step, contents, best);
    unsaved_ = false;
}

ExitCode Trainer::stop_for_signal() {
    if (unsaved_)
        save();
    // The steps since the last record; who goes on from the checkpoint says them again, with more.
    if (spent_.steps > window_start_.steps)
        log_window();
    log_.say(format("stopped by signal %d after step ", signals_.number()) +
             std::to_string(state_.step) + ", checkpoint written to " +
             store_.directory().string() + "; the same command goes on from there");
    return ExitCode::interrupted;
}

void Trainer::summarize() {
    const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
    std::string done = "done         " + grouped(state_.step) + " steps";
    if (spent_.steps > 0)
        done += format(", of them %ld in this run's %s, %.0f images/s in training", spent_.steps,
                       duration_text(seconds).c_str(),
                       static_cast<double>(spent_.images) / spent_.step_seconds);
    log_.say(done);
    log_.say("accuracy     last " + percent(accuracy(state_.evaluation)) +
             format(" (loss %.4f), best ",
                    state_.evaluation.loss / static_cast<double>(state_.evaluation.samples)) +
             percent(accuracy(state_.best_evaluation)) + " after step " + grouped(state_.best));
    log_.say("checkpoints  " + (store_.directory() / "latest").string() + " and best; logs " +
             (log_.directory() / "metrics.jsonl").string());
}

void Trainer::print_profile() {
    const int64_t images = part_of(config_.data.batch_size, 0, backend_->lanes().count()).count;
    for (const std::string& line : profile_lines(worker_.executor().times(), spent_.steps, images))
        log_.say(line);
}

bool Trainer::is_end_of(int64_t epochs) const {
    return epochs > 0 && state_.step > 0 && state_.step % (epochs * steps_per_epoch_) == 0;
}

int64_t Trainer::current_epoch() const {
    return (state_.step + steps_per_epoch_ - 1) / steps_per_epoch_;
}

Position Trainer::position() const {
    const int64_t epoch = std::max<int64_t>(current_epoch(), 1);
    return {.step = state_.step,
            .total_steps = total_steps_,
            .epoch = epoch,
            .epochs = config_.train.epochs,
            .step_in_epoch = state_.step - (epoch - 1) * steps_per_epoch_,
            .steps_per_epoch = steps_per_epoch_,
            .seconds_left = recent_step_seconds_ * static_cast<double>(total_steps_ - state_.step)};
}

}  // namespace trainer
