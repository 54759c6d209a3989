// Loader: a ring of ready batches that threads fill ahead of the training loop.
//
// Global step t of an epoch uses the next workers * batch samples of the epoch's order
// (permutation.h); worker i takes the i-th run of `batch` of them. What a batch holds is a pure
// function of (options, epoch, step): the same bits on any number of threads, after any restart.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "data/sample_source.h"
#include "engine/memory.h"

namespace trainer {

struct LoaderOptions {
    int64_t batch = 32;     ///< samples of one worker
    int64_t worker = 0;     ///< this worker's rank
    int64_t workers = 1;    ///< of the run; a global batch has workers * batch samples
    bool shuffle = true;    ///< false: the data set's own order in every epoch
    bool drop_last = true;  ///< false: the rest of an epoch makes a last, smaller global batch
    bool repeat = true;     ///< false: stop after the epoch that start() names
    uint64_t seed = 1;      ///< of the order, and of a Dataset's augmentation
    int threads = 1;        ///< that fill batches
    int64_t ring = 3;       ///< batches in memory, the one handed out among them; at least 2
    /// Memory of the ring; empty: allocate_host. A GPU reads faster from memory that is locked for
    /// it.
    std::function<Memory(size_t)> allocate = {};

    /// false: batches have labels and indices alone, for a device that keeps the images (kept_set).
    bool images = true;

    // For loaders made from a Dataset.
    /// Of a damaged photograph that Photos::skip_corrupt skips: the next one takes its place, so
    /// that batches stay as large; else it is left out, so that none counts twice.
    bool substitute = true;
    AugmentOptions augment = {};
    Normalization normalization = {};  ///< default_normalization(dataset) for `auto`
};

/// One worker's part of one global step.
struct Batch {
    const float* images = nullptr;     ///< [batch, channels, height, width]; 0 from `size` on
    const int32_t* labels = nullptr;   ///< [batch]; 0 from `size` on
    const int32_t* indices = nullptr;  ///< [size], of its samples in the data set
    int64_t size = 0;  ///< samples; fewer than `batch`, perhaps 0, in a last smaller step or where
                       ///< the source left some out
    int64_t global_size = 0;      ///< of all workers together, those left out too; 0: the end
                                  ///< (LoaderOptions::repeat)
    int64_t first_sample = 0;     ///< index of sample 0 within the global batch
    int64_t epoch = 0, step = 0;  ///< step within the epoch
    uint64_t id = 0;              ///< unlike those of all other batches of the loader; above 0
};

/// Its functions are called from one thread at a time. Its threads may run where the thread that
/// makes it may: make it before a LaneTeam pins that thread to one processor.
class Loader {
  public:
    /// Starts the threads, which wait for start(). `dataset` outlives the loader.
    /// Throws UsageError where options do not fit each other or the data: a worker out of range, a
    /// global batch larger than the data set under drop_last, augmentation or normalisation that
    /// do not fit the images.
    Loader(const Dataset& dataset, const LoaderOptions& options);

    /// The same for any other source; augment and normalization of the options are not used.
    Loader(std::unique_ptr<SampleSource> source, const LoaderOptions& options);

    /// Stops the threads, each at its next sample.
    ~Loader();
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    const LoaderOptions& options() const { return options_; }
    const Shape& sample_shape() const { return source_->shape(); }

    /// Global steps of one epoch, at least 1.
    int64_t steps_per_epoch() const { return steps_; }

    /// Samples that one epoch uses, over all workers.
    int64_t samples_per_epoch() const;

    /// Makes next() go on with step `step` of epoch `epoch`; drops what was read ahead, and ends
    /// the life of the last Batch. May be called at any time, and again.
    /// REQUIRES: epoch >= 0, 0 <= step < steps_per_epoch().
    void start(int64_t epoch, int64_t step = 0);

    /// The same from sample `first_sample` of the epoch's order on, as worker `worker` of `workers`
    /// from now on: for runs whose workers come and go. Batches of one worker stay as large. Where
    /// what is left of the epoch fills no step it goes on with the next epoch.
    /// REQUIRES: a global batch of `workers` fits the samples, as for the constructor.
    void start_share(int64_t worker, int64_t workers, int64_t epoch, int64_t first_sample);

    /// The next batch: waits until it is ready. It and its buffers live until the next call of
    /// next() or start(). After the last step of epoch e comes the first of e + 1; without
    /// `repeat` a batch with global_size 0 and no images, again and again. So one evaluation is
    ///
    ///     loader.start(0);
    ///     for (const Batch* b = &loader.next(); b->global_size > 0; b = &loader.next()) ...
    ///
    /// Throws what the source threw for a sample of the batch (the first such sample), at every
    /// call until start(). Allocates nothing. REQUIRES: start() was called.
    const Batch& next();

    /// The batch that next() will return, where it is ready; else nullptr. It lives as if returned.
    const Batch* peek();

    /// What a step works on: `batch`, the last that next() has returned, and the images of the one
    /// after where they are ready. `kept` has the images where the batches have none. The key of
    /// dropout is the caller's to set.
    StepInput input_of(const Batch& batch, const DeviceImages* kept);

    /// Time that next() has spent waiting, since the loader was made.
    double waited_seconds() const { return waited_seconds_; }

    /// What the threads have spent their time with.
    SourceTimes source_times() const { return source_->times(); }

    /// What a user should be told, e.g. of images that were skipped: lines not taken yet.
    std::vector<std::string> take_notes() { return source_->take_notes(); }

  private:
    /// A batch in the ring.
    struct Slot {
        float* images = nullptr;
        int32_t* labels = nullptr;
        std::vector<int32_t> indices;  // [batch], of its samples in the data set
        Batch batch;
        int64_t filled = 0;         // samples done, padding included
        int64_t failed_sample = 0;  // the first that `error` is about
        std::exception_ptr error;
    };

    /// Samples [first, first + count) of a slot, for one thread to fill.
    struct Task {
        Slot* slot;
        int64_t first, count;
    };

    void allocate();
    int64_t steps_from(int64_t first_sample) const;
    void stop_reading(std::unique_lock<std::mutex>& lock);
    void start_reading();
    void work(std::stop_token stop);
    bool may_open() const;
    void open();
    bool gather_ahead(std::vector<int32_t>& indices);
    Task claim();
    void fill(Slot& slot, int64_t sample) const;
    void finish(const Task& task, std::exception_ptr error, int64_t failed_sample);
    void close_ranks(Slot& slot) const;
    Slot& slot_of(int64_t batch) { return slots_[static_cast<size_t>(batch % options_.ring)]; }

    LoaderOptions options_;
    std::unique_ptr<SampleSource> source_;
    int64_t sample_size_ = 0;  // floats
    int64_t steps_ = 0;
    Memory memory_;  // images, then labels, of all slots
    const Batch end_;
    double waited_seconds_ = 0;

    std::mutex mutex_;
    std::condition_variable_any work_;   // threads: there may be something to do
    std::condition_variable_any ready_;  // the caller: a batch is full, or no thread is busy
    // Guarded by mutex_. Batches are numbered from 0 at start(); batch n lies in slot n % ring.
    std::vector<Slot> slots_;
    std::vector<int32_t> order_;  // of order_epoch_
    int64_t order_epoch_ = -1;
    int64_t ahead_epoch_ = -1, ahead_step_ = 0;  // read_ahead() was told of the steps before
    int64_t epoch_ = 0, step_ = 0;               // of the batch to open next
    int64_t base_ = 0;                           // samples of epoch_ before its step 0: start_share
    bool running_ = false;
    bool ended_ = false;    // no batch is left to open (not `repeat`)
    bool holding_ = false;  // the caller has batch taken_ - 1
    int64_t opened_ = 0;    // batches that were begun
    int64_t claimed_ = 0;   // samples of batch opened_ - 1 that threads have taken on
    int64_t taken_ = 0;     // batches handed out
    int64_t busy_ = 0;      // threads at a task
    uint64_t last_id_ = 0;  // of batches

    std::vector<std::jthread> threads_;  // last: they end before the rest goes
};

}  // namespace trainer
