// How an executor works with a device that computes apart: on a device made of a queue, which does
// nothing until it is waited for, and then what the reference backend does.
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "engine/executor.h"
#include "models/models.h"
#include "tests/golden/golden.h"

namespace trainer {
namespace {

constexpr int64_t batch_size = 4, image_size = 32, classes = 10;

// Work in the order in which it was lined up; runs when somebody waits.
struct Queue {
    std::deque<std::function<void()>> work;
    std::vector<std::function<void()>>* recording = nullptr;

    void line_up(std::function<void()> one) {
        if (recording != nullptr)
            recording->push_back(one);
        work.push_back(std::move(one));
    }
    void run_one() {
        work.front()();
        work.pop_front();
    }
    void drain() {
        while (!work.empty())
            run_one();
    }
};

class QueuedOperation final : public Operation {
  public:
    QueuedOperation(Queue& queue, std::unique_ptr<Operation> operation)
        : queue_(queue), operation_(std::move(operation)) {}
    void load_weights() override {
        queue_.line_up([this] { operation_->load_weights(); });
    }
    void forward(Lane& lane) override {
        queue_.line_up([this, lane]() mutable { operation_->forward(lane); });
    }
    void backward(Lane& lane) override {
        queue_.line_up([this, lane]() mutable { operation_->backward(lane); });
    }

  private:
    Queue& queue_;
    std::unique_ptr<Operation> operation_;
};

class QueuedLoss final : public Loss {
  public:
    QueuedLoss(Queue& queue, std::unique_ptr<Loss> loss, LossSums& sums, int64_t& mean_over)
        : queue_(queue), loss_(std::move(loss)), sums_(sums), mean_over_(mean_over) {}
    LossSums run(Lane& lane, int64_t) override {
        queue_.line_up([this, lane]() mutable { sums_ = loss_->run(lane, mean_over_); });
        return {};
    }

  private:
    Queue& queue_;
    std::unique_ptr<Loss> loss_;
    LossSums& sums_;
    int64_t& mean_over_;
};

// What the tests look at afterwards.
struct Traces {
    int begun = 0, reloads = 0, lined_up = 0, replayed = 0, sent = 0;
};

class QueuedSteps final : public DeviceSteps {
  public:
    QueuedSteps(Queue& queue, const DeviceStepsOptions& options, LossSums& sums, int64_t& mean_over,
                Traces& traces)
        : queue_(queue),
          options_(options),
          sums_(sums),
          mean_over_(mean_over),
          traces_(traces),
          gradients_(static_cast<size_t>(options.parameters->size()), 777.0F) {}

    std::byte* gradients() override { return reinterpret_cast<std::byte*>(gradients_.data()); }
    void begin(int64_t mean_over, bool reload) override {
        EXPECT_TRUE(queue_.work.empty());
        ++traces_.begun;
        traces_.reloads += reload;
        mean_over_ = mean_over;
    }
    void run(size_t index, const std::function<void()>& line_up, bool replay) override {
        auto& recording = recordings_[index];
        if (replay && !recording.empty()) {
            ++traces_.replayed;
            for (const auto& one : recording)
                queue_.line_up(one);
            return;
        }
        ++traces_.lined_up;
        queue_.recording = replay ? &recording : nullptr;
        line_up();
        queue_.recording = nullptr;
    }
    void send(size_t index, Range range) override {
        ++traces_.sent;
        arrived_[index] = false;
        queue_.line_up([this, index, range] {
            float* const slab = options_.parameters->slab<float>(slab::gradients).data();
            std::copy_n(gradients_.data() + range.first, range.count, slab + range.first);
            arrived_[index] = true;
        });
    }
    void await(size_t index) override {
        while (!arrived_.at(index))
            queue_.run_one();
    }
    void wait() override { queue_.drain(); }
    LossSums finish() override {
        wait();
        return sums_;
    }

  private:
    Queue& queue_;
    DeviceStepsOptions options_;
    LossSums& sums_;
    int64_t& mean_over_;
    Traces& traces_;
    std::vector<float> gradients_;
    std::map<size_t, std::vector<std::function<void()>>> recordings_;
    std::map<size_t, bool> arrived_;
};

class QueuedBackend final : public Backend {
  public:
    std::string description() const override { return "a queue"; }
    DType parameter_type() const override { return DType::f32; }
    Memory allocate(size_t bytes) override { return inner_->allocate(bytes); }
    LaneTeam& lanes() override { return inner_->lanes(); }
    Buffer layout(const Network& network, const Node& node) const override {
        return inner_->layout(network, node);
    }
    bool sums_gradients(Kind kind) const override { return inner_->sums_gradients(kind); }
    std::unique_ptr<Operation> build(const Binding& binding) override {
        return std::make_unique<QueuedOperation>(queue, inner_->build(binding));
    }
    void add(Lane& lane, const Buffer& source, const Buffer& target, int64_t batch) override {
        queue.line_up([this, lane, source, target, batch]() mutable {
            inner_->add(lane, source, target, batch);
        });
    }
    std::unique_ptr<Loss> build_loss(const Buffer& logits, const Buffer* gradient,
                                     const StepInput& step, double label_smoothing) override {
        return std::make_unique<QueuedLoss>(
            queue, inner_->build_loss(logits, gradient, step, label_smoothing), sums_, mean_over_);
    }
    void sum_slabs(std::byte*, std::span<std::byte* const>, Range) override {
        FAIL() << "there is one lane";
    }
    std::unique_ptr<DeviceSteps> make_steps(const DeviceStepsOptions& options) override {
        return std::make_unique<QueuedSteps>(queue, options, sums_, mean_over_, traces);
    }

    Queue queue;
    Traces traces;

  private:
    std::unique_ptr<Backend> inner_ = make_reference_backend(DType::f32);
    LossSums sums_;
    int64_t mean_over_ = 1;
};

// A model on some backend.
struct Model {
    Model(const Network& net, Backend& backend, const ExecutorOptions& options)
        : parameters(net.parameters(), DType::f32,
                     {std::string(slab::weights), std::string(slab::gradients)}),
          statistics(net.statistics(), DType::f32, {std::string(slab::weights)}),
          executor(net, backend, parameters, statistics, options) {
        golden::fill_weights<float>(parameters);
        initialize_weights(statistics, 0);
    }
    std::vector<float> gradients() const {
        const auto slab = parameters.slab<float>(slab::gradients);
        return {slab.begin(), slab.end()};
    }

    ParameterArena parameters, statistics;
    Executor executor;
};

class DeviceStepsTest : public testing::TestWithParam<const char*> {
  protected:
    DeviceStepsTest()
        : network_(build_model(
              GetParam(), {.num_classes = classes, .height = image_size, .width = image_size})) {}

    static StepInput input_of(const golden::Batch& batch, int64_t count = batch_size) {
        return {.images = batch.images.data(), .labels = batch.labels.data(), .batch = count};
    }

    Network network_;
    std::unique_ptr<Backend> plain_ = make_reference_backend(DType::f32);
    QueuedBackend device_;
};

TEST_P(DeviceStepsTest, TrainsAsWithoutAQueue) {
    const ExecutorOptions options{.batch = batch_size, .range_elements = 20'000};
    Model expected(network_, *plain_, options), model(network_, device_, options);
    const auto ranges = static_cast<int>(model.executor.ranges().size());
    for (uint64_t step = 0; step < 3; ++step) {
        const golden::Batch batch = golden::make_batch(step, batch_size, image_size, classes);
        std::vector<float> seen(static_cast<size_t>(model.parameters.size()), -1.0F);
        std::vector<Range> announced;
        const LossSums sums = model.executor.train(input_of(batch), 9, [&](Range range) {
            announced.push_back(range);
            const auto g = model.parameters.slab<float>(slab::gradients);
            std::copy_n(g.begin() + range.first, range.count, seen.begin() + range.first);
        });
        EXPECT_EQ(sums, expected.executor.train(input_of(batch), 9));
        EXPECT_EQ(announced, model.executor.ranges());
        EXPECT_EQ(seen, expected.gradients());
        EXPECT_EQ(model.gradients(), expected.gradients());
        EXPECT_EQ(device_.traces.sent, ranges * static_cast<int>(step + 1));
        EXPECT_EQ(device_.traces.lined_up, ranges);
        EXPECT_EQ(device_.traces.replayed, ranges * static_cast<int>(step));
    }
}

// The gradients of one range may leave before the next ones are made.
TEST_P(DeviceStepsTest, RangesAreAnnouncedWhileTheDeviceGoesOn) {
    Model model(network_, device_, {.batch = batch_size, .range_elements = 2000});
    if (model.executor.ranges().size() < 2)
        GTEST_SKIP() << "this model is one range";
    const golden::Batch batch = golden::make_batch(0, batch_size, image_size, classes);
    std::vector<size_t> waiting;
    model.executor.train(input_of(batch), 0,
                         [&](Range) { waiting.push_back(device_.queue.work.size()); });
    EXPECT_GT(waiting.front(), 0U);
    EXPECT_EQ(waiting.back(), 0U);
    EXPECT_TRUE(std::is_sorted(waiting.rbegin(), waiting.rend()));
}

TEST_P(DeviceStepsTest, EvaluatesAndReloadsOnlyWhenAsked) {
    const ExecutorOptions options{.batch = batch_size, .training = false};
    Model expected(network_, *plain_, options), model(network_, device_, options);
    for (uint64_t step = 0; step < 4; ++step) {
        const golden::Batch batch = golden::make_batch(step, batch_size, image_size, classes);
        const StepInput input = input_of(batch, step == 3 ? 3 : batch_size);
        EXPECT_EQ(model.executor.evaluate(input, step == 0),
                  expected.executor.evaluate(input, step == 0));
        EXPECT_EQ(model.executor.logits(), expected.executor.logits());
    }
    EXPECT_EQ(device_.traces.reloads, 1);
    EXPECT_EQ(device_.traces.begun, 4);
    EXPECT_EQ(device_.traces.lined_up + device_.traces.replayed, 5);
}

TEST_P(DeviceStepsTest, AProfileAndAStretchedStepReplayNothing) {
    Model model(network_, device_, {.batch = batch_size, .range_elements = 2000});
    Model expected(network_, *plain_, {.batch = batch_size});
    const golden::Batch batch = golden::make_batch(0, batch_size, image_size, classes);
    model.executor.profile(true);
    EXPECT_EQ(model.executor.train(input_of(batch)), expected.executor.train(input_of(batch)));
    EXPECT_EQ(model.executor.train(input_of(batch)), expected.executor.train(input_of(batch)));
    EXPECT_EQ(device_.traces.replayed, 0);
    double seconds = 0;
    for (const OperationTime& time : model.executor.times())
        seconds += time.forward_s + time.backward_s;
    EXPECT_GT(seconds, 0);
}

TEST_P(DeviceStepsTest, NamesTheFirstLayerThatIsNotFinite) {
    Model model(network_, device_, {.batch = batch_size});
    const TensorInfo& last = model.parameters.table().tensors().back();  // a bias of the head
    model.parameters.tensor<float>(slab::weights, last)[0] = INFINITY;
    const golden::Batch batch = golden::make_batch(0, batch_size, image_size, classes);
    EXPECT_FALSE(std::isfinite(model.executor.train(input_of(batch)).loss));
    EXPECT_EQ(model.executor.first_not_finite(), network_.node(network_.output()).name);
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceStepsTest, testing::Values("linear", "lenet5", "resnet20"),
                         [](const auto& which) { return std::string(which.param); });

}  // namespace
}  // namespace trainer
