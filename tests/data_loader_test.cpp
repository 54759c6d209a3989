// The loader: which samples a batch holds, that threads and restarts change no bit of it, and that
// it ends and fails as it should.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>

#include "data/loader.h"
#include "data/permutation.h"
#include "engine/error.h"
#include "tests/error_of.h"

// Every allocation of this program is counted. Not inlined: the compiler would take malloc and free
// for mismatched.
static std::atomic<int64_t> allocations = 0;

[[gnu::noinline]] void* operator new(size_t bytes) {
    ++allocations;
    if (void* memory = std::malloc(bytes))
        return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
    std::free(memory);
}

namespace trainer {
namespace {

/// Samples of [1, 2, 3] whose numbers tell index and epoch.
class CountingSource : public SampleSource {
  public:
    explicit CountingSource(int64_t count) : count_(count) {}
    int64_t count() const override { return count_; }
    const Shape& shape() const override { return shape_; }
    void load(int64_t epoch, int64_t index, float* image, int32_t& label) const override {
        if (index == fails_at_)
            throw Error("sample " + std::to_string(index) + " is broken");
        for (int64_t i = 0; i < 6; ++i)
            image[i] = static_cast<float>(epoch * 100000 + index * 10 + i + 1);
        label = static_cast<int32_t>(index);
        ++loaded_;
    }

    int64_t fails_at_ = -1;
    mutable std::atomic<int64_t> loaded_ = 0;

  private:
    int64_t count_;
    Shape shape_{1, 2, 3};
};

/// What a Batch was, kept beyond its life.
struct Kept {
    std::vector<float> images;
    std::vector<int32_t> labels;
    int64_t size, global_size, first_sample, epoch, step;
    bool operator==(const Kept&) const = default;
};

Kept keep(const Loader& loader, const Batch& batch) {
    const int64_t samples = loader.options().batch;
    const int64_t floats = samples * element_count(loader.sample_shape());
    return {{batch.images, batch.images + floats},
            {batch.labels, batch.labels + samples},
            batch.size,
            batch.global_size,
            batch.first_sample,
            batch.epoch,
            batch.step};
}

std::vector<Kept> take(Loader& loader, int64_t batches) {
    std::vector<Kept> result;
    for (int64_t i = 0; i < batches; ++i)
        result.push_back(keep(loader, loader.next()));
    return result;
}

std::vector<Kept> take_all(Loader& loader) {
    std::vector<Kept> result;
    for (const Batch* batch = &loader.next(); batch->global_size > 0; batch = &loader.next())
        result.push_back(keep(loader, *batch));
    return result;
}

std::unique_ptr<Loader> counting_loader(int64_t count, const LoaderOptions& options) {
    return std::make_unique<Loader>(std::make_unique<CountingSource>(count), options);
}

Dataset small_dataset() {
    return load_dataset({"synthetic", "", Split::train, {.train_count = 200}});
}

LoaderOptions augmented() {
    LoaderOptions options;
    options.batch = 20;
    options.seed = 7;
    options.augment.crops = {.pad_crop = 4, .flip = true, .cutout = 8};
    options.normalization = default_normalization("synthetic");
    return options;
}

TEST(Loader, FollowsTheOrderOverEpochs) {
    auto loader = counting_loader(23, {.batch = 5, .seed = 11});
    EXPECT_EQ(loader->steps_per_epoch(), 4);
    EXPECT_EQ(loader->samples_per_epoch(), 20);
    loader->start(2);
    std::vector<int32_t> order;
    for (int64_t epoch = 2; epoch < 5; ++epoch) {
        epoch_order(23, true, 11, epoch, order);
        for (int64_t step = 0; step < 4; ++step) {
            const Batch& batch = loader->next();
            EXPECT_EQ(batch.epoch, epoch);
            EXPECT_EQ(batch.step, step);
            EXPECT_EQ(batch.size, 5);
            EXPECT_EQ(batch.global_size, 5);
            EXPECT_EQ(batch.first_sample, 0);
            for (int64_t i = 0; i < 5; ++i) {
                const int32_t index = order[static_cast<size_t>(step * 5 + i)];
                EXPECT_EQ(batch.labels[i], index);
                for (int64_t p = 0; p < 6; ++p)
                    EXPECT_EQ(batch.images[i * 6 + p],
                              static_cast<float>(epoch * 100000 + index * 10 + p + 1));
            }
        }
    }
}

TEST(Loader, WorkersShareTheGlobalBatch) {
    // 53 samples: whole global batches of 12 leave 5, which drop_last drops or spreads.
    for (const bool drop_last : {true, false})
        for (const bool shuffle : {true, false})
            for (const int64_t workers : {1, 2, 4, 12}) {
                const LoaderOptions alone{.batch = 12, .shuffle = shuffle, .drop_last = drop_last};
                auto single = counting_loader(53, alone);
                single->start(0);
                EXPECT_EQ(single->steps_per_epoch(), drop_last ? 4 : 5);
                EXPECT_EQ(single->samples_per_epoch(), drop_last ? 48 : 53);
                const std::vector<Kept> whole = take(*single, 12);

                std::vector<std::vector<int32_t>> labels(12);
                std::vector<std::vector<float>> images(12);
                for (int64_t worker = 0; worker < workers; ++worker) {
                    LoaderOptions options = alone;
                    options.batch = 12 / workers;
                    options.worker = worker;
                    options.workers = workers;
                    auto loader = counting_loader(53, options);
                    loader->start(0);
                    EXPECT_EQ(loader->steps_per_epoch(), single->steps_per_epoch());
                    EXPECT_EQ(loader->samples_per_epoch(), single->samples_per_epoch());
                    for (size_t t = 0; t < 12; ++t) {
                        const Batch& batch = loader->next();
                        EXPECT_EQ(batch.global_size, whole[t].global_size);
                        EXPECT_EQ(batch.first_sample, std::ssize(labels[t]));
                        labels[t].insert(labels[t].end(), batch.labels, batch.labels + batch.size);
                        images[t].insert(images[t].end(), batch.images,
                                         batch.images + batch.size * 6);
                    }
                }
                for (size_t t = 0; t < 12; ++t) {
                    const auto size = static_cast<size_t>(whole[t].size);
                    EXPECT_EQ(size, !drop_last && t % 5 == 4 ? 5U : 12U);
                    labels[t].resize(12);
                    images[t].resize(72);
                    EXPECT_EQ(labels[t], whole[t].labels);
                    EXPECT_EQ(images[t], whole[t].images);
                }
            }
}

TEST(Loader, ALastSmallerBatchLeavesZerosBehindIt) {
    // 2 workers of 4 on 10 samples: 8, then 2, one for each worker; of 9 the second has none.
    for (const int64_t count : {10, 9}) {
        auto loader = counting_loader(
            count, {.batch = 4, .worker = 1, .workers = 2, .shuffle = false, .drop_last = false});
        loader->start(0);
        for (int epoch = 0; epoch < 3; ++epoch) {  // buffers are used again
            EXPECT_EQ(loader->next().size, 4);
            const Kept last = keep(*loader, loader->next());
            EXPECT_EQ(last.size, count - 9);
            EXPECT_EQ(last.global_size, count - 8);
            EXPECT_EQ(last.first_sample, 1);
            EXPECT_EQ(last.labels[0], count == 10 ? 9 : 0);
            for (size_t i = static_cast<size_t>(last.size); i < 4; ++i)
                EXPECT_EQ(last.labels[i], 0);
            for (size_t i = static_cast<size_t>(last.size * 6); i < 24; ++i)
                EXPECT_EQ(last.images[i], 0.0F);
        }
    }
}

TEST(Loader, EvaluationShowsEachImageOnceAndEnds) {
    const LoaderOptions options{
        .batch = 8, .shuffle = false, .drop_last = false, .repeat = false, .threads = 2};
    for (const int64_t count : {1, 7, 8, 9, 100}) {
        auto loader = counting_loader(count, options);
        for (int round = 0; round < 2; ++round) {
            loader->start(0);
            const std::vector<Kept> batches = take_all(*loader);
            EXPECT_EQ(std::ssize(batches), (count + 7) / 8);
            EXPECT_EQ(std::ssize(batches), loader->steps_per_epoch());
            int32_t expected = 0;
            for (const Kept& batch : batches)
                for (int64_t i = 0; i < batch.size; ++i)
                    EXPECT_EQ(batch.labels[static_cast<size_t>(i)], expected++);
            EXPECT_EQ(expected, count);
            const Batch& end = loader->next();
            EXPECT_EQ(end.global_size, 0);
            EXPECT_EQ(end.size, 0);
            EXPECT_EQ(end.images, nullptr);
        }
    }
}

TEST(Loader, ThreadsChangeNoBit) {
    const Dataset data = small_dataset();
    std::vector<Kept> expected;
    for (const int threads : {1, 2, 4, 7})
        for (const int64_t ring : {2, 3, 6}) {
            LoaderOptions options = augmented();
            options.threads = threads;
            options.ring = ring;
            Loader loader(data, options);
            loader.start(0);
            const std::vector<Kept> batches = take(loader, 35);
            if (expected.empty())
                expected = batches;
            EXPECT_TRUE(batches == expected) << threads << " threads, ring of " << ring;
        }
}

TEST(Loader, BatchesAreAugmentedAndNormalised) {
    const Dataset data = small_dataset();
    const LoaderOptions options = augmented();
    Loader loader(data, options);
    loader.start(5, 3);
    const Kept batch = keep(loader, loader.next());
    std::vector<int32_t> order;
    epoch_order(200, true, 7, 5, order);
    std::vector<float> image(3072);
    for (size_t i = 0; i < 20; ++i) {
        const int32_t index = order[60 + i];
        apply_transform(
            Transform::draw(options.augment.crops, 32, 32, 7, 5, static_cast<uint64_t>(index)),
            Normalizer(options.normalization, 3), data.image(index), 3, 32, 32, image.data());
        EXPECT_EQ(batch.labels[i], index % 10);
        EXPECT_EQ(std::memcmp(image.data(), batch.images.data() + i * 3072, 3072 * 4), 0);
    }
}

TEST(Loader, RestartGoesOnWhereItWould) {
    const Dataset data = small_dataset();
    LoaderOptions options = augmented();
    options.threads = 3;
    Loader loader(data, options);
    loader.start(0);
    const std::vector<Kept> all = take(loader, 45);  // 10 steps an epoch
    for (const int64_t at : {17, 0, 9, 10, 31}) {
        loader.start(at / 10, at % 10);
        const std::vector<Kept> rest = take(loader, 14);
        EXPECT_TRUE(std::equal(rest.begin(), rest.end(), all.begin() + at)) << "from " << at;
    }
    Loader fresh(data, options);
    fresh.start(2, 6);
    const std::vector<Kept> rest = take(fresh, 19);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), all.begin() + 26));
}

TEST(Loader, NothingIsAllocatedBetweenBatches) {
    const Dataset data = small_dataset();
    LoaderOptions options = augmented();
    options.threads = 2;
    Loader loader(data, options);
    loader.start(0);
    loader.next();
    const int64_t before = allocations;
    for (int i = 0; i < 35; ++i)  // over three ends of epochs
        loader.next();
    EXPECT_EQ(allocations, before);
}

TEST(Loader, DestroyedAtAnyTime) {
    const Dataset data = small_dataset();
    LoaderOptions options = augmented();
    for (int round = 0; round < 60; ++round) {
        options.threads = 1 + round % 4;
        Loader loader(data, options);
        if (round % 5 > 0)
            loader.start(round, round % 10);
        for (int i = 0; i < round % 5 - 1; ++i)
            loader.next();
        if (round % 7 == 0)
            loader.start(0);
    }
}

TEST(Loader, ErrorsOfTheSourceReachTheCaller) {
    auto source = std::make_unique<CountingSource>(40);
    source->fails_at_ = 13;
    Loader loader(std::move(source), {.batch = 10, .shuffle = false, .threads = 2});
    loader.start(0);
    EXPECT_EQ(loader.next().labels[9], 9);
    for (int again = 0; again < 2; ++again) {
        try {
            loader.next();
            FAIL() << "no error";
        } catch (const Error& error) {
            EXPECT_STREQ(error.what(), "sample 13 is broken");
        }
    }
    loader.start(0, 2);
    EXPECT_EQ(loader.next().labels[0], 20);
    EXPECT_EQ(loader.next().labels[0], 30);
    EXPECT_EQ(loader.next().labels[0], 0);
    EXPECT_THROW(loader.next(), Error);
}

TEST(Loader, ReadsAheadNoFurtherThanTheRingAndSleeps) {
    auto owned = std::make_unique<CountingSource>(1000);
    const CountingSource& source = *owned;
    Loader loader(std::move(owned), {.batch = 10, .threads = 2, .ring = 4});
    loader.start(0);
    loader.next();
    const auto wait_for = [&](int64_t samples) {
        for (int i = 0; i < 2000 && source.loaded_ < samples; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    wait_for(40);
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 50);
    EXPECT_EQ(source.loaded_, 40);
    const double waited = loader.waited_seconds();
    loader.next();  // is ready: nothing to wait for
    EXPECT_EQ(loader.waited_seconds(), waited);
    wait_for(50);
    EXPECT_EQ(source.loaded_, 50);
}

TEST(Loader, BadOptionsAreUsageErrors) {
    const auto message = [](const LoaderOptions& options) {
        return error_of<UsageError>([&] { counting_loader(100, options); });
    };
    EXPECT_EQ(message({.batch = 26, .workers = 4}),
              "the batch is larger than the data set: 4 workers x data.batch_size 26, but 100 "
              "samples; lower data.batch_size or set data.drop_last: false");
    EXPECT_EQ(message({.batch = 26, .workers = 4, .drop_last = false}), "no error");
    EXPECT_EQ(message({.batch = 25, .workers = 4}), "no error");
    EXPECT_EQ(message({.batch = 0}), "loader: batch is 0, at least 1 is needed");
    EXPECT_EQ(message({.worker = 2, .workers = 2}), "loader: worker 2 of 2; ranks start at 0");
    EXPECT_EQ(message({.threads = 0}), "loader: threads is 0, at least 1 is needed");
    EXPECT_EQ(message({.ring = 1}), "loader: ring is 1, at least 2 is needed");
    const Dataset data = small_dataset();
    LoaderOptions options = augmented();
    options.normalization.mean.pop_back();
    EXPECT_EQ(error_of<UsageError>([&] { Loader(data, options); }),
              "data.mean has 2 values, but images have 3 channels; give one a channel");
    options = augmented();
    options.augment.crops.pad_crop = 40;
    EXPECT_EQ(error_of<UsageError>([&] { Loader(data, options); }),
              "data.augment.pad_crop is 40; for images of 32x32 it is 0 to 32");
}

}  // namespace
}  // namespace trainer
