// Threads claim a few samples at a time of the newest batch in the ring and open the next one when
// all of its samples are claimed; so one batch is ready soonest, however many threads there are.
#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "data/permutation.h"
#include "data/photo_source.h"
#include "engine/error.h"

namespace trainer {

namespace {

// Of samples that are in memory; of photographs one, so that all threads work on a small batch.
constexpr int64_t samples_per_task = 16;

void check_options(const LoaderOptions& options, int64_t count) {
    const auto at_least = [](const char* what, int64_t value, int64_t least) {
        if (value < least)
            throw UsageError(std::string("loader: ") + what + " is " + std::to_string(value) +
                             ", at least " + std::to_string(least) + " is needed");
    };
    at_least("batch", options.batch, 1);
    at_least("workers", options.workers, 1);
    at_least("worker", options.worker, 0);
    at_least("threads", options.threads, 1);
    at_least("ring", options.ring, 2);
    at_least("samples", count, 1);
    if (options.worker >= options.workers)
        throw UsageError("loader: worker " + std::to_string(options.worker) + " of " +
                         std::to_string(options.workers) + "; ranks start at 0");
    if (options.drop_last && options.batch > count / options.workers)
        throw UsageError(
            "the batch is larger than the data set: " + std::to_string(options.workers) +
            " workers x data.batch_size " + std::to_string(options.batch) + ", but " +
            std::to_string(count) + " samples; lower data.batch_size or set data.drop_last: false");
}

std::unique_ptr<SampleSource> source_of(const Dataset& dataset, const LoaderOptions& options) {
    if (dataset.has_photos())
        return std::make_unique<PhotoSource>(dataset, options.augment.photo, options.normalization,
                                             options.seed, options.substitute);
    if (!options.images)
        return std::make_unique<LabelSource>(dataset);
    return std::make_unique<DatasetSource>(dataset, options.augment.crops, options.normalization,
                                           options.seed);
}

}  // namespace

Loader::Loader(const Dataset& dataset, const LoaderOptions& options)
    : Loader(source_of(dataset, options), options) {}

Loader::Loader(std::unique_ptr<SampleSource> source, const LoaderOptions& options)
    : options_(options), source_(std::move(source)), end_{} {
    check_options(options_, source_->count());
    sample_size_ = element_count(source_->shape());
    steps_ = steps_from(0);
    allocate();
    try {
        for (int i = 0; i < options_.threads; ++i)
            threads_.emplace_back([this](std::stop_token stop) { work(std::move(stop)); });
    } catch (const std::system_error& error) {
        throw Error("the system refused to start data thread " + std::to_string(threads_.size()) +
                    " of " + std::to_string(options_.threads) + " (" + error.what() +
                    "); lower data.workers");
    }
}

Loader::~Loader() {
    for (std::jthread& thread : threads_)
        thread.request_stop();
}

void Loader::allocate() {
    const auto round_up = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
    const int64_t image_bytes =
        round_up(options_.batch * sample_size_ * static_cast<int64_t>(sizeof(float)));
    const int64_t label_bytes = round_up(options_.batch * static_cast<int64_t>(sizeof(int32_t)));
    const auto bytes = static_cast<size_t>(options_.ring * (image_bytes + label_bytes));
    memory_ = options_.allocate ? options_.allocate(bytes) : allocate_host(bytes);
    slots_.resize(static_cast<size_t>(options_.ring));
    std::byte* at = memory_.data.get();
    for (Slot& slot : slots_) {
        slot.images = reinterpret_cast<float*>(at);
        slot.labels = reinterpret_cast<int32_t*>(at + image_bytes);
        slot.indices.resize(static_cast<size_t>(options_.batch));
        at += image_bytes + label_bytes;
    }
    order_.reserve(static_cast<size_t>(source_->count()));
}

// Steps that the samples of an epoch make from that one on.
int64_t Loader::steps_from(int64_t first_sample) const {
    const int64_t global = options_.workers * options_.batch;
    return (source_->count() - first_sample + (options_.drop_last ? 0 : global - 1)) / global;
}

int64_t Loader::samples_per_epoch() const {
    return options_.drop_last ? steps_ * options_.workers * options_.batch : source_->count();
}

void Loader::start(int64_t epoch, int64_t step) {
    check(epoch >= 0 && step >= 0 && step < steps_, "a loader started outside its epochs");
    std::unique_lock lock(mutex_);
    stop_reading(lock);
    epoch_ = epoch;
    step_ = step;
    base_ = 0;
    start_reading();
}

void Loader::start_share(int64_t worker, int64_t workers, int64_t epoch, int64_t first_sample) {
    check(worker >= 0 && worker < workers && epoch >= 0 && first_sample >= 0,
          "a loader started outside its epochs");
    std::unique_lock lock(mutex_);
    stop_reading(lock);
    options_.worker = worker;
    options_.workers = workers;
    check_options(options_, source_->count());
    steps_ = steps_from(0);
    const bool in_epoch = first_sample < source_->count() && steps_from(first_sample) > 0;
    epoch_ = in_epoch ? epoch : epoch + 1;
    base_ = in_epoch ? first_sample : 0;
    step_ = 0;
    start_reading();
}

void Loader::stop_reading(std::unique_lock<std::mutex>& lock) {
    running_ = false;
    ready_.wait(lock, [&] { return busy_ == 0; });
}

void Loader::start_reading() {
    ended_ = holding_ = false;
    opened_ = taken_ = 0;
    claimed_ = options_.batch;
    ahead_epoch_ = -1;
    running_ = true;
    work_.notify_all();
}

const Batch& Loader::next() {
    std::unique_lock lock(mutex_);
    check(running_, "next() of a loader that was not started");
    if (holding_) {
        holding_ = false;
        work_.notify_all();
    }
    if (ended_ && taken_ == opened_)
        return end_;
    Slot& slot = slot_of(taken_);
    const auto is_ready = [&] { return opened_ > taken_ && slot.filled == options_.batch; };
    if (!is_ready()) {
        const auto begin = std::chrono::steady_clock::now();
        ready_.wait(lock, is_ready);
        waited_seconds_ +=
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    if (slot.error)
        std::rethrow_exception(slot.error);
    close_ranks(slot);
    ++taken_;
    holding_ = true;
    return slot.batch;
}

const Batch* Loader::peek() {
    const std::lock_guard lock(mutex_);
    if (opened_ <= taken_)
        return nullptr;
    Slot& slot = slot_of(taken_);
    if (slot.filled != options_.batch || slot.error)
        return nullptr;
    close_ranks(slot);
    return &slot.batch;
}

StepInput Loader::input_of(const Batch& batch, const DeviceImages* kept) {
    const Batch* const after = peek();
    return {.images = batch.images,
            .labels = batch.labels,
            .batch = batch.size,
            .first_sample = batch.first_sample,
            .kept = kept,
            .indices = batch.indices,
            .epoch = batch.epoch,
            .images_id = batch.id,
            .next_images = after != nullptr ? after->images : nullptr,
            .next_images_id = after != nullptr ? after->id : 0};
}

void Loader::work(std::stop_token stop) {
    std::vector<int32_t> ahead;
    std::unique_lock lock(mutex_);
    const auto may_work = [&] { return running_ && (claimed_ < options_.batch || may_open()); };
    while (work_.wait(lock, stop, may_work) && !stop.stop_requested()) {
        if (claimed_ == options_.batch)
            open();
        const Task task = claim();
        const bool tells = source_->reads_ahead() && gather_ahead(ahead);
        ++busy_;
        lock.unlock();
        if (tells)
            source_->read_ahead(ahead);
        std::exception_ptr error;
        int64_t sample = task.first;
        try {
            for (; sample < task.first + task.count && !stop.stop_requested(); ++sample)
                fill(*task.slot, sample);
        } catch (...) {
            error = std::current_exception();
        }
        lock.lock();
        --busy_;
        finish(task, std::move(error), sample);
    }
}

bool Loader::may_open() const {
    const int64_t in_use_from = taken_ - (holding_ ? 1 : 0);
    return !ended_ && opened_ - in_use_from < options_.ring;
}

// Begins the next batch: decides what is in it, leaves its samples to be claimed.
void Loader::open() {
    if (order_epoch_ != epoch_) {
        epoch_order(source_->count(), options_.shuffle, options_.seed, epoch_, order_);
        order_epoch_ = epoch_;
    }
    const int64_t whole = options_.workers * options_.batch;
    const int64_t global_first = base_ + step_ * whole;
    const int64_t global_size = std::min(whole, source_->count() - global_first);
    const Range own = part_of(global_size, options_.worker, options_.workers);
    Slot& slot = slot_of(opened_);
    slot.batch = {slot.images, slot.labels, slot.indices.data(), own.count, global_size, own.first,
                  epoch_,      step_,       ++last_id_};
    std::copy_n(order_.begin() + global_first + own.first, own.count, slot.indices.begin());
    slot.filled = 0;
    slot.error = nullptr;
    ++opened_;
    claimed_ = 0;
    if (++step_ == (base_ == 0 ? steps_ : steps_from(base_))) {
        step_ = 0;
        base_ = 0;
        ++epoch_;
        ended_ = !options_.repeat;
    }
}

// The samples of the next few steps, sorted, where the source has not been told of them: enough at
// once that a disk or a server can take them in an order of its own.
bool Loader::gather_ahead(std::vector<int32_t>& indices) {
    constexpr int64_t least_samples = 512;
    const int64_t window = std::max((least_samples + options_.batch - 1) / options_.batch,
                                    2 * options_.ring);  // steps
    if (ahead_epoch_ != order_epoch_) {
        ahead_epoch_ = order_epoch_;
        // The step that was opened last.
        ahead_step_ = slot_of(opened_ - 1).batch.step;
    }
    const int64_t at = slot_of(opened_ - 1).batch.step;
    if (ahead_step_ >= steps_ || at + window <= ahead_step_)
        return false;
    const int64_t until = std::min(steps_, ahead_step_ + window);
    const int64_t whole = options_.workers * options_.batch;
    indices.clear();
    for (; ahead_step_ < until; ++ahead_step_) {
        const int64_t global_first = ahead_step_ * whole;
        const Range own = part_of(std::min(whole, source_->count() - global_first), options_.worker,
                                  options_.workers);
        const auto first = order_.begin() + global_first + own.first;
        indices.insert(indices.end(), first, first + own.count);
    }
    std::sort(indices.begin(), indices.end());
    return true;
}

Loader::Task Loader::claim() {
    const int64_t most = source_->reads_ahead() ? 1 : samples_per_task;
    const int64_t count = std::min(most, options_.batch - claimed_);
    const Task task{&slot_of(opened_ - 1), claimed_, count};
    claimed_ += count;
    return task;
}

void Loader::fill(Slot& slot, int64_t sample) const {
    float* image = slot.images + sample * sample_size_;
    int32_t& label = slot.labels[sample];
    if (sample < slot.batch.size) {
        source_->load(slot.batch.epoch, slot.indices[static_cast<size_t>(sample)], image, label);
    } else {
        std::fill_n(image, sample_size_, 0.0F);
        label = 0;
    }
}

// Samples that the source left out are none of the batch: those behind them move up.
void Loader::close_ranks(Slot& slot) const {
    int64_t& size = slot.batch.size;
    const int64_t loaded = size;
    size = 0;
    for (int64_t i = 0; i < loaded; ++i) {
        if (slot.labels[i] == SampleSource::left_out)
            continue;
        if (i != size) {
            std::copy_n(slot.images + i * sample_size_, sample_size_,
                        slot.images + size * sample_size_);
            slot.labels[size] = slot.labels[i];
        }
        ++size;
    }
    std::fill(slot.images + size * sample_size_, slot.images + loaded * sample_size_, 0.0F);
    std::fill(slot.labels + size, slot.labels + loaded, 0);
}

void Loader::finish(const Task& task, std::exception_ptr error, int64_t failed_sample) {
    Slot& slot = *task.slot;
    // Of several errors the first sample's is told, whichever thread came first.
    if (error && (!slot.error || failed_sample < slot.failed_sample)) {
        slot.error = std::move(error);
        slot.failed_sample = failed_sample;
    }
    slot.filled += task.count;
    if (slot.filled == options_.batch || busy_ == 0)
        ready_.notify_all();
}

}  // namespace trainer
