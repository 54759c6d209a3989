// The worker's loop against straight-line code, and what it must not do: allocate.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "models/models.h"
#include "optim/worker.h"

namespace {

std::atomic<int64_t> allocations{0};

}  // namespace

// Counts what any thread of this program takes from the heap.
void* operator new(std::size_t bytes) {
    ++allocations;
    if (void* memory = std::malloc(bytes))
        return memory;
    throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {  // std::stable_sort's
    ++allocations;
    return std::malloc(bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    ++allocations;
    const auto align = static_cast<std::size_t>(alignment);
    if (void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align))
        return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
    std::free(memory);
}

namespace trainer {
namespace {

struct Settings {
    std::string model = "linear";
    int64_t batch = 16;
    bool drop_last = true;
    std::string optimizer = "sgd";
    WorkerOptions worker = {};
};

/// Everything that a worker needs, on synthetic images.
struct Bench {
    Bench(const Settings& settings, std::unique_ptr<Backend> device)
        : dataset(load_dataset({.dataset = "synthetic",
                                .dir = "",
                                .split = Split::train,
                                .synthetic = {.train_count = 40}})),
          loader(dataset, loader_options(settings)),
          backend(std::move(device)),
          network(build_model(settings.model, {})),
          parameters(network.parameters(), backend->parameter_type(),
                     {"weights", "gradients", "momentum"}),
          statistics(network.statistics(), backend->parameter_type(), {"weights"}),
          optimizer(make_optimizer({.name = settings.optimizer, .weight_decay = 1e-3},
                                   network.parameters())),
          schedule({.type = "poly", .lr = 0.05, .steps_per_epoch = 2, .total_steps = 50}),
          worker({network, *backend, parameters, statistics, loader, *optimizer, schedule},
                 settings.worker) {
        initialize_weights(parameters, 1);
        initialize_weights(statistics, 1);
        worker.start(0);
    }

    LoaderOptions loader_options(const Settings& settings) const {
        LoaderOptions options;
        options.batch = settings.batch;
        options.drop_last = settings.drop_last;
        options.threads = 2;
        options.augment.crops = {.pad_crop = 4, .flip = true};
        options.normalization = default_normalization("synthetic");
        return options;
    }

    Dataset dataset;
    Loader loader;
    std::unique_ptr<Backend> backend;
    Network network;
    ParameterArena parameters, statistics;
    std::unique_ptr<Optimizer> optimizer;
    LearningRate schedule;
    Worker worker;
};

/// The softmax regression of `linear` on one batch in plain double arithmetic: adds the gradient
/// of the mean loss to `gradient` and returns the sum of the losses. w is [10, n] then bias [10].
double straight_line_gradient(const Batch& batch, const std::vector<double>& w, size_t n,
                              std::vector<double>& gradient) {
    double loss = 0;
    for (int64_t sample = 0; sample < batch.size; ++sample) {
        const float* x = batch.images + static_cast<size_t>(sample) * n;
        double logits[10], total = 0;
        for (size_t c = 0; c < 10; ++c) {
            logits[c] = w[10 * n + c];
            for (size_t i = 0; i < n; ++i)
                logits[c] += w[c * n + i] * static_cast<double>(x[i]);
        }
        for (double logit : logits)
            total += std::exp(logit);
        const auto label = static_cast<size_t>(batch.labels[sample]);
        loss += std::log(total) - logits[label];
        for (size_t c = 0; c < 10; ++c) {
            const double d = (std::exp(logits[c]) / total - (c == label ? 1 : 0)) /
                             static_cast<double>(batch.size);
            for (size_t i = 0; i < n; ++i)
                gradient[c * n + i] += d * static_cast<double>(x[i]);
            gradient[10 * n + c] += d;
        }
    }
    return loss;
}

void follow_straight_line(const Settings& settings, const std::vector<int64_t>& sizes) {
    Bench bench(settings, make_reference_backend(DType::f64));
    Loader loader(bench.dataset, bench.loader_options(settings));
    loader.start(0);
    const auto weights = bench.parameters.slab<double>("weights");
    std::vector<double> w(weights.begin(), weights.end()), v(w.size(), 0);
    for (size_t step = 0; step < sizes.size(); ++step) {
        std::vector<double> g(w.size(), 0);
        const double loss = straight_line_gradient(loader.next(), w, 3 * 32 * 32, g);
        double norm = 0;
        for (double value : g)
            norm += value * value;
        norm = std::sqrt(norm);
        const double most = settings.worker.clip_grad_norm;
        const double scale = most > 0 && norm > most ? most / (norm + 1e-6) : 1;
        const double lr = 0.05 * std::pow(1 - static_cast<double>(step) / 50, 2);
        for (size_t i = 0; i < w.size(); ++i) {
            v[i] = 0.9 * v[i] + g[i] * scale + 1e-3 * w[i];
            w[i] -= lr * v[i];
        }
        const StepResult result = bench.worker.step();
        EXPECT_EQ(result.sums.samples, sizes[step]);
        EXPECT_DOUBLE_EQ(result.lr, lr);
        ASSERT_NEAR(result.sums.loss, loss, 1e-8 * std::abs(loss)) << "step " << step;
    }
    EXPECT_EQ(bench.worker.steps(), static_cast<int64_t>(sizes.size()));
    for (size_t i = 0; i < w.size(); ++i)
        ASSERT_NEAR(weights[i], w[i], 1e-8);
}

TEST(Worker, FollowsStraightLineCode) {
    follow_straight_line({}, {16, 16, 16, 16, 16});
}

TEST(Worker, ClipsTheGradient) {
    follow_straight_line({.worker = {.clip_grad_norm = 0.5}}, {16, 16, 16, 16, 16});
}

TEST(Worker, ALastSmallerBatchWeighsItsSamplesAlike) {
    follow_straight_line({.drop_last = false}, {16, 16, 8, 16, 16, 8});
}

TEST(Worker, GoesOnFromAnyStep) {
    Bench whole({}, make_reference_backend(DType::f32));
    std::vector<float> after_three;
    for (int step = 0; step < 7; ++step) {
        whole.worker.step();
        if (step != 2)
            continue;
        const auto weights = whole.parameters.slab<float>("weights");
        const auto momentum = whole.parameters.slab<float>("momentum");
        after_three.assign(weights.begin(), weights.end());
        after_three.insert(after_three.end(), momentum.begin(), momentum.end());
    }
    Bench resumed({}, make_reference_backend(DType::f32));
    const auto weights = resumed.parameters.slab<float>("weights");
    const auto momentum = resumed.parameters.slab<float>("momentum");
    std::copy_n(after_three.begin(), weights.size(), weights.begin());
    std::copy_n(after_three.begin() + static_cast<long>(weights.size()), momentum.size(),
                momentum.begin());
    resumed.worker.start(3);
    for (int step = 3; step < 7; ++step)
        resumed.worker.step();
    const auto expected = whole.parameters.slab<float>("weights");
    for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_EQ(weights[i], expected[i]);
}

TEST(Worker, NamesTheLayerOfALossThatIsNotFinite) {
    Bench bench({.model = "lenet5"}, make_reference_backend(DType::f32));
    bench.worker.step();
    const TensorInfo* tensor = bench.network.parameters().find("conv2.weight");
    bench.parameters.tensor<float>("weights", *tensor)[3] = std::nanf("");
    const auto weights = bench.parameters.slab<float>("weights");
    const std::vector<float> before(weights.begin(), weights.end());
    try {
        bench.worker.step();
        FAIL() << "a step on weights that are not finite";
    } catch (const Error& error) {
        EXPECT_STREQ(error.what(),
                     "the loss of step 2 is not a number, first in layer 'conv2'; try a smaller "
                     "optim.lr or a warm-up");
    }
    EXPECT_EQ(std::memcmp(before.data(), weights.data(), weights.size_bytes()), 0);
}

/// Heap allocations of `steps` calls of `work`.
template <typename Work>
int64_t allocations_of(int steps, Work work) {
    const int64_t before = allocations;
    for (int step = 0; step < steps; ++step)
        work();
    return allocations - before;
}

TEST(Worker, AStepAllocatesNothing) {
    for (const char* optimizer : {"sgd", "lars"}) {
        Bench bench({.model = "lenet5",
                     .batch = 4,
                     .drop_last = true,
                     .optimizer = optimizer,
                     .worker = {.label_smoothing = 0.1, .clip_grad_norm = 1}},
                    make_reference_backend(DType::f32));
        const auto step = [&] { bench.worker.step(); };
        allocations_of(12, step);  // more than an epoch
        EXPECT_EQ(allocations_of(25, step), 0);
    }
}

#ifdef TRAINER_HAS_ONEDNN
TEST(Worker, AStepAllocatesNoMoreThanOneDnnDoes) {
    Bench bench({.model = "resnet20", .batch = 4}, make_cpu_backend({.threads = 2, .pin = false}));
    const auto step = [&] { bench.worker.step(); };
    allocations_of(12, step);
    const int64_t of_worker = allocations_of(12, step);
    const Batch& batch = bench.loader.next();
    const StepInput input{.images = batch.images, .labels = batch.labels, .batch = batch.size};
    EXPECT_EQ(of_worker, allocations_of(12, [&] { bench.worker.executor().train(input); }));
}
#endif

}  // namespace
}  // namespace trainer
