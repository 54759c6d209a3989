// Measures training steps on the CPU or a GPU: forward, backward and an SGD update with momentum on
// synthetic images, in images a second. Prints a table of where the time goes and one JSON line,
// the last.
//
// With --conv-only each step is followed by its convolutions alone, run by the same lanes on the
// same shapes without anything between them: the speed that no step made of them can exceed.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/cuda/cuda_engine.h"
#include "engine/executor.h"
#include "engine/random.h"
#include "models/models.h"
#include "optim/sgd.h"

namespace {

using namespace trainer;

struct Options {
    std::string model = "resnet20", precision = "fp32", device = "cpu";
    int64_t size = 0, batch = 128, steps = 0, warm_up = 3;
    int threads = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    double seconds = 10;
    bool conv_only = false, winograd = true, tf32 = false, graphs = true, deterministic = true;

    bool on_gpu() const { return device != "cpu"; }
};

Options parse(int count, char** arguments) {
    Options options;
    CLI::App app("Measures training steps on synthetic images.");
    app.add_option("--model", options.model);
    app.add_option("--size", options.size,
                   "height and width of an image; 0: 32 for VGG, else usual");
    app.add_option("--batch", options.batch)->check(CLI::PositiveNumber);
    app.add_option("--threads", options.threads)->check(CLI::PositiveNumber);
    app.add_option("--device", options.device, "cpu, cuda or cuda:N")
        ->check(CLI::Validator(
            [](const std::string& text) {
                return text == "cpu" || text.starts_with("cuda") ? "" : "is cpu, cuda or cuda:N";
            },
            ""));
    app.add_flag("--winograd,--no-winograd{false}", options.winograd,
                 "fp32 convolutions by Winograd's algorithm where that is faster");
    app.add_flag("--tf32", options.tf32, "on a GPU: fp32 with products of 10-bit mantissas");
    app.add_flag("--graphs,!--no-graphs", options.graphs, "on a GPU: record steps");
    app.add_flag("--deterministic,!--no-deterministic", options.deterministic,
                 "on a GPU: the same bits each time");
    app.add_option("--precision", options.precision)->check(CLI::IsMember({"fp32", "bf16"}));
    app.add_option("--seconds", options.seconds, "time to measure, after the warm-up");
    app.add_option("--steps", options.steps, "so many steps instead");
    app.add_option("--warm-up", options.warm_up, "steps before the first measured one");
    app.add_flag("--conv-only", options.conv_only, "measure the convolutions alone as well");
    try {
        app.parse(count, arguments);
    } catch (const CLI::ParseError& error) {
        std::exit(app.exit(error) == 0 ? 0 : 2);
    }
    return options;
}

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

template <typename Work>
double seconds_of(Work work) {
    const double start = seconds_now();
    work();
    return seconds_now() - start;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// The largest resident size of this process so far.
double peak_rss_mib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("VmHWM:"))
            return std::stod(line.substr(6)) / 1024;
    return 0;
}

std::vector<std::string> training_slabs() {
    return {std::string(slab::weights), std::string(slab::gradients), std::string(slab::momentum)};
}

Network build(const Options& options) {
    ModelOptions images = usual_options(options.model);
    const int64_t size = options.size == 0 && options.model.starts_with("vgg") ? 32 : options.size;
    if (size > 0) {
        images.height = images.width = size;
        images.num_classes = size <= 64 ? 10 : 1000;
    }
    return build_model(options.model, images);
}

std::unique_ptr<Backend> make_backend(const Options& options) {
    const Precision precision = options.precision == "bf16" ? Precision::bf16 : Precision::fp32;
    if (!options.on_gpu())
        return make_cpu_backend(
            {.threads = options.threads, .precision = precision, .winograd = options.winograd});
    if (options.conv_only)
        throw UsageError("--conv-only measures the CPU's convolutions");
    const size_t colon = options.device.find(':');
    return make_cuda_backend(
        {.device = colon == std::string::npos ? 0 : std::atoi(options.device.c_str() + colon + 1),
         .precision = precision,
         .deterministic = options.deterministic,
         .tf32 = options.tf32,
         .graphs = options.graphs});
}

/// Everything of a training step.
class Job {
  public:
    explicit Job(const Options& options)
        : network_(build(options)),
          backend_(make_backend(options)),
          parameters_(network_.parameters(), DType::f32, training_slabs(), slabs()),
          statistics_(network_.statistics(), DType::f32, {std::string(slab::weights)}, slabs()),
          optimizer_(
              make_optimizer({.momentum = 0.9, .weight_decay = 1e-4}, network_.parameters())),
          executor_(network_, *backend_, parameters_, statistics_, {.batch = options.batch}) {
        initialize_weights(parameters_, 1);
        initialize_weights(statistics_, 1);
        Random random{1, static_cast<uint64_t>(RandomPurpose::synthetic)};
        const int64_t pixels = options.batch * element_count(network_.node(0).shape);
        std::vector<float> drawn;
        for (int64_t i = 0; i < pixels; ++i)
            drawn.push_back(static_cast<float>(2 * random.uniform() - 1));
        images_ = backend_->allocate(drawn.size() * sizeof(float));
        backend_->write(images_.data.get(), reinterpret_cast<const std::byte*>(drawn.data()),
                        images_.bytes);
        for (int64_t i = 0; i < options.batch; ++i)
            labels_.push_back(
                static_cast<int32_t>(random.below(static_cast<uint64_t>(network_.classes()))));
        input_ = {.images = reinterpret_cast<const float*>(images_.data.get()),
                  .labels = labels_.data(),
                  .batch = options.batch};
        update_ = [this](Lane& lane) {
            const Range all{0, parameters_.size()};
            optimizer_->update(parameters_, optimizer_->part(all, lane.index(), lane.count()), 0.01,
                               backend_->slab_math());
        };
    }

    void step() {
        executor_.train(input_);
        backend_->lanes().run(update_);
        ++input_.step;
    }

    const Network& network() const { return network_; }
    Backend& backend() { return *backend_; }
    Executor& executor() { return executor_; }
    const ParameterArena& parameters() const { return parameters_; }

  private:
    std::function<Memory(size_t)> slabs() {
        return [this](size_t bytes) { return backend_->allocate_slabs(bytes, SlabHome::device); };
    }

    Network network_;
    std::unique_ptr<Backend> backend_;
    ParameterArena parameters_, statistics_;
    std::unique_ptr<Optimizer> optimizer_;
    Executor executor_;
    Memory images_;  // of the device that computes
    std::vector<int32_t> labels_;
    StepInput input_;
    std::function<void(Lane&)> update_;
};

/// The convolutions of a network without the rest, forward in order and then backward. All read
/// and write the same few buffers, which is kinder to the caches than a real step.
class ConvolutionsAlone {
  public:
    ConvolutionsAlone(const Network& network, Backend& backend, const ParameterArena& parameters,
                      int64_t batch)
        : backend_(backend) {
        for (int lane = 0; lane < backend.lanes().count(); ++lane) {
            gradients_.emplace_back(network.parameters(), DType::f32,
                                    std::vector<std::string>{std::string(slab::gradients)});
            slabs_.push_back(gradients_.back().address(slab::gradients));
        }
        for (const Node& node : network.nodes())
            if (node.kind == Kind::convolution)
                bind(network, node, parameters, batch);
        take_memory(batch);
        for (const Bound& bound : bound_)
            operations_.push_back(backend.build(bound.binding));
        for (const auto& operation : operations_)
            operation->load_weights();
        work_ = [this](Lane& lane) {
            for (const auto& operation : operations_)
                operation->forward(lane);
            for (size_t i = operations_.size(); i-- > 0;)
                operations_[i]->backward(lane);
        };
    }

    void run() { backend_.lanes().run(work_); }

  private:
    struct Bound {
        Buffer x, y, dx, dy;
        Binding binding;
    };

    void bind(const Network& network, const Node& node, const ParameterArena& parameters,
              int64_t batch) {
        const Node& producer = network.node(node.inputs[0]);
        Bound& bound = bound_.emplace_back();
        bound.x = bound.dx = backend_.layout(network, producer);
        bound.y = bound.dy = backend_.layout(network, node);
        bound.binding.network = &network;
        bound.binding.node = &node;
        bound.binding.batch = batch;
        bound.binding.inputs = {&bound.x};
        bound.binding.output = &bound.y;
        bound.binding.output_gradients = {&bound.dy};
        bound.binding.input_gradients = {producer.kind == Kind::input ? nullptr : &bound.dx};
        bound.binding.parameters = &parameters;
        bound.binding.gradients = slabs_;
        bound.binding.step = &step_;
    }

    /// One piece of memory for all x, one for all y, and so on; full of small random numbers.
    void take_memory(int64_t batch) {
        int64_t bytes = 0;
        bool bf16 = false;
        for (const Bound& bound : bound_) {
            bytes = std::max({bytes, bound.x.sample_bytes, bound.y.sample_bytes});
            bf16 = bf16 || bound.y.type == DType::bf16;
        }
        Random random{2, static_cast<uint64_t>(RandomPurpose::synthetic)};
        for (Buffer Bound::*slot : {&Bound::x, &Bound::y, &Bound::dx, &Bound::dy}) {
            memory_.push_back(backend_.allocate(static_cast<size_t>(batch * bytes)));
            std::byte* const data = memory_.back().data.get();
            auto* const words = reinterpret_cast<uint32_t*>(data);
            for (int64_t i = 0; i < batch * bytes / 4; ++i) {
                const auto value = static_cast<float>(2 * random.uniform() - 1);
                const uint32_t bits = std::bit_cast<uint32_t>(value);
                words[i] = bf16 ? (bits & 0xffff0000) | bits >> 16 : bits;
            }
            for (Bound& bound : bound_)
                (bound.*slot).data = data;
        }
    }

    Backend& backend_;
    StepInput step_;
    std::list<ParameterArena> gradients_;  // one a lane
    std::vector<std::byte*> slabs_;
    std::list<Bound> bound_;  // operations keep pointers to them
    std::vector<Memory> memory_;
    std::vector<std::unique_ptr<Operation>> operations_;
    std::function<void(Lane&)> work_;
};

double rounded(double value) {
    return std::round(value * 100) / 100;
}

/// Times by kind of operation, of lane 0: {"convolution": {"forward_ms": ..., ...}, ...}.
nlohmann::json profile(Job& job, int64_t steps, double lane_images) {
    job.executor().profile(true);
    for (int64_t i = 0; i < steps; ++i)
        job.step();
    const auto times = job.executor().times();
    job.executor().profile(false);
    struct Sum {
        double forward = 0, backward = 0, multiply_adds = 0;
    };
    std::map<std::string, Sum> kinds;
    for (const OperationTime& time : times) {
        Sum& sum = kinds[time.kind];
        sum.forward += time.forward_s / static_cast<double>(steps);
        sum.backward += time.backward_s / static_cast<double>(steps);
        sum.multiply_adds += static_cast<double>(time.multiply_adds) * lane_images;
    }
    nlohmann::json result;
    for (const auto& [kind, sum] : kinds) {
        const double seconds = sum.forward + sum.backward;
        result[kind] = {{"forward_ms", rounded(1e3 * sum.forward)},
                        {"backward_ms", rounded(1e3 * sum.backward)}};
        if (sum.multiply_adds > 0)  // two operations each, forward and twice backward
            result[kind]["gflop_per_s"] = rounded(6e-9 * sum.multiply_adds / seconds);
    }
    return result;
}

void print_table(const nlohmann::json& kinds) {
    std::printf("%-14s %12s %12s %14s\n", "lane 0", "forward, ms", "backward, ms",
                "GFLOP/s a lane");
    for (const auto& [kind, times] : kinds.items()) {
        std::printf("%-14s %12.2f %12.2f", kind.c_str(), times["forward_ms"].get<double>(),
                    times["backward_ms"].get<double>());
        if (times.contains("gflop_per_s"))
            std::printf(" %14.1f", times["gflop_per_s"].get<double>());
        std::printf("\n");
    }
}

nlohmann::json measure(const Options& options) {
    Job job(options);
    for (int64_t i = 0; i < options.warm_up; ++i)
        job.step();
    const double peak = peak_rss_mib();
    std::optional<ConvolutionsAlone> alone;
    if (options.conv_only) {
        alone.emplace(job.network(), job.backend(), job.parameters(), options.batch);
        alone->run();
    }
    std::vector<double> steps, convolutions;
    const double end = seconds_now() + options.seconds;
    const auto wanted = static_cast<size_t>(options.steps);
    while (wanted > 0 ? steps.size() < wanted : seconds_now() < end) {
        steps.push_back(seconds_of([&] { job.step(); }));
        if (alone)
            convolutions.push_back(seconds_of([&] { alone->run(); }));
    }
    const auto batch = static_cast<double>(options.batch);
    nlohmann::json line{
        {"program", "trainer"},
        {"model", options.model},
        {"batch", options.batch},
        {"threads", options.on_gpu() ? 1 : options.threads},
        {"device", options.device},
        {"precision", options.precision},
        {"images_per_s", rounded(batch / median(steps))},
        {"images_per_s_best", rounded(batch / *std::min_element(steps.begin(), steps.end()))},
        {"n", steps.size()},
        {"peak_rss_mib", rounded(peak)},
        {"backend", job.backend().description()}};
    if (alone) {
        line["conv_only_images_per_s"] = rounded(batch / median(convolutions));
        line["share_of_conv_only"] = rounded(median(convolutions) / median(steps));
    }
    const int lanes = options.on_gpu() ? 1 : options.threads;
    const double lane_images = static_cast<double>(part_of(options.batch, 0, lanes).count);
    const auto kinds = profile(job, std::clamp<int64_t>(options.batch / 8, 2, 10), lane_images);
    print_table(kinds);
    line["kinds"] = kinds;
    return line;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        std::cout << measure(parse(argc, argv)).dump() << std::endl;
    } catch (const UsageError& error) {
        std::cerr << "step: " << error.what() << "\n";
        return 2;
    } catch (const Error& error) {
        std::cerr << "step: " << error.what() << "\n";
        return 1;
    }
}
