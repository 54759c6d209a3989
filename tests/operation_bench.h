// One operation at a time on any backend, in plain values: what the tests of the backends have in
// common, and the cases that each of them has to agree with the reference on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>

#include "engine/backend.h"
#include "engine/random.h"

namespace trainer::operation_bench {

using Values = std::vector<double>;

struct OperationCase {
    std::string name;
    std::function<void(Network&)> describe;  // the last node is the one that is tested
    double fp32 = 1e-5, bf16 = 1e-2;         // relative error of each vector
    size_t output_gradients = 1;
    bool followed = false;  // whether another node stands behind: its output is no logits
};

// What one node is given, and what it makes of it, in C, H, W order whatever the backend.
struct Data {
    std::vector<Values> inputs, output_gradients;
    Values weights, statistics;
};
struct Result {
    Values output;
    std::vector<Values> input_gradients;
    Values weight_gradients, statistics;
    std::string implementation;
};

inline Values random_values(int64_t count, uint64_t seed, bool as_bf16) {
    Random random{seed, 77};
    Values result(static_cast<size_t>(count));
    for (double& value : result) {
        auto rounded = static_cast<float>(random.normal());
        if (as_bf16) {
            uint32_t bits;
            std::memcpy(&bits, &rounded, sizeof bits);
            bits &= 0xffff0000;
            std::memcpy(&rounded, &bits, sizeof bits);
        }
        value = static_cast<double>(rounded);
    }
    return result;
}

inline double relative_error(const Values& value, const Values& truth) {
    EXPECT_EQ(value.size(), truth.size());
    double error = 0, norm = 0;
    for (size_t i = 0; i < truth.size(); ++i) {
        error += (value[i] - truth[i]) * (value[i] - truth[i]);
        norm += truth[i] * truth[i];
    }
    return std::isfinite(error) ? std::sqrt(error) / std::max(std::sqrt(norm), 1e-12) : INFINITY;
}

// How the samples of a backend's activations [c, h, w] lie, besides [c][h][w].
enum class Lies { in_blocks_of_channels, channels_last };

// A buffer of one backend, filled from and read as plain values.
class TestBuffer {
  public:
    TestBuffer(Backend& backend, const Network& network, const Node& node, int64_t batch)
        : buffer(backend.layout(network, node)),
          backend_(backend),
          batch_(batch),
          lies_(backend.free_memory() ? Lies::channels_last : Lies::in_blocks_of_channels),
          copy_(static_cast<size_t>(batch * buffer.sample_bytes)) {
        memory_ = backend.allocate(copy_.size());
        buffer.data = memory_.data.get();
        fill_with_rubbish();
    }

    // NaN in every type, to see that all is written.
    void fill_with_rubbish() {
        std::ranges::fill(copy_, std::byte{0xff});
        backend_.write(buffer.data, copy_.data(), copy_.size());
    }

    void write(const Values& values) {
        std::ranges::fill(copy_, std::byte{0});
        for_each([&](size_t plain, int64_t i) { set(i, values[plain]); });
        backend_.write(buffer.data, copy_.data(), copy_.size());
    }

    // Whatever the device computes is done by then.
    void fetch() { backend_.read(copy_.data(), buffer.data, copy_.size()); }

    // REQUIRES: fetched.
    Values values() const {
        Values result(static_cast<size_t>(batch_ * element_count(buffer.shape)));
        for_each([&](size_t plain, int64_t i) { result[plain] = get(i); });
        return result;
    }

    // Whether all that is stored besides the values is zero. REQUIRES: fetched.
    bool padding_is_zero() const {
        double all = 0, counted = 0;
        for (int64_t i = 0; i < batch_ * sample_elements(); ++i)
            all += get(i) != 0;  // a NaN counts too
        for (const double value : values())
            counted += value != 0;
        return all == counted;
    }

    Buffer buffer;

  private:
    int64_t sample_elements() const {
        return buffer.sample_bytes / static_cast<int64_t>(size_of(buffer.type));
    }

    // Calls visit(place in C, H, W order, place as stored) for every value.
    template <typename Visit>
    void for_each(Visit visit) const {
        const int64_t area = element_count(buffer.shape) / buffer.shape[0];
        const bool blocked =
            buffer.shape.size() == 3 && buffer.channels % 8 == 0 && buffer.type != DType::f64;
        const int64_t block = lies_ == Lies::channels_last ? buffer.channels
                              : blocked                    ? block_of_channels()
                                                           : 1;
        size_t plain = 0;
        for (int64_t n = 0; n < batch_; ++n)
            for (int64_t c = 0; c < buffer.shape[0]; ++c)
                for (int64_t i = 0; i < area; ++i)
                    visit(plain++,
                          n * sample_elements() + (c / block * area + i) * block + c % block);
    }

    static int64_t block_of_channels() {
        static const int64_t block = [] {
            Network network;
            network.pad_shortcut(network.input(1, 1, 1), 1, 1);
            return make_cpu_backend({.threads = 1, .pin = false})
                ->layout(network, network.node(network.output()))
                .channels;
        }();
        return block;
    }

    template <typename T>
    T* elements() {
        return reinterpret_cast<T*>(copy_.data());
    }
    template <typename T>
    const T* elements() const {
        return reinterpret_cast<const T*>(copy_.data());
    }

    void set(int64_t i, double value) {
        if (buffer.type == DType::f64) {
            elements<double>()[i] = value;
        } else if (buffer.type == DType::f32) {
            elements<float>()[i] = static_cast<float>(value);
        } else {
            const auto single = static_cast<float>(value);
            uint32_t bits;
            std::memcpy(&bits, &single, sizeof bits);
            elements<uint16_t>()[i] = static_cast<uint16_t>(bits >> 16);
        }
    }

    double get(int64_t i) const {
        if (buffer.type == DType::f64)
            return elements<double>()[i];
        if (buffer.type == DType::f32)
            return static_cast<double>(elements<float>()[i]);
        const uint32_t bits = static_cast<uint32_t>(elements<uint16_t>()[i]) << 16;
        float single;
        std::memcpy(&single, &bits, sizeof single);
        return static_cast<double>(single);
    }

    Backend& backend_;
    int64_t batch_;
    Lies lies_;
    Memory memory_;
    std::vector<std::byte> copy_;  // on the host
};

// The tested node of a network on one backend, run forward and, where training, backward.
class Bench {
  public:
    Bench(Backend& backend, const Network& network, NodeId id, int64_t batch, bool training)
        : backend_(backend),
          network_(network),
          node_(network.node(id)),
          parameters_(network.parameters(), backend.parameter_type(), {"weights", "gradients"},
                      slabs_of(backend)),
          statistics_(network.statistics(), backend.parameter_type(), {"weights"},
                      slabs_of(backend)),
          images_(static_cast<size_t>(batch * element_count(network.node(0).shape))),
          labels_(static_cast<size_t>(batch)),
          output_(backend, network, node_, batch) {
        step_.images = images_.data();
        step_.labels = labels_.data();
        step_.batch = batch;
        step_.seed = 5;
        step_.step = 7;
        step_.first_sample = 11;
        for (const NodeId input : node_.inputs)
            inputs_.push_back(
                std::make_unique<TestBuffer>(backend, network, network.node(input), batch));
        binding_.network = &network;
        binding_.node = &node_;
        binding_.batch = batch;
        binding_.training = training;
        binding_.output = &output_.buffer;
        binding_.parameters = &parameters_;
        binding_.statistics = &statistics_;
        binding_.step = &step_;
        steps_ = backend.make_steps({.network = &network,
                                     .batch = batch,
                                     .training = training,
                                     .parameters = &parameters_,
                                     .statistics = &statistics_,
                                     .step = &step_});
        for (const auto& input : inputs_)
            binding_.inputs.push_back(&input->buffer);
    }

    Result run(const Data& data) {
        if (binding_.training)
            bind_gradients(data);
        fill(parameters_, data.weights);
        fill(statistics_, data.statistics);
        for (size_t i = 0; i < inputs_.size(); ++i)
            inputs_[i]->write(data.inputs[i]);
        const auto operation = backend_.build(binding_);
        // An operation that is built may have tried itself on its buffers.
        for (auto& gradient : input_gradients_)
            if (gradient)
                gradient->fill_with_rubbish();
        output_.fill_with_rubbish();
        if (steps_)
            steps_->begin(binding_.batch, true);
        backend_.lanes().run([&](Lane& lane) {
            if (lane.index() == 0)
                operation->load_weights();
            lane.barrier();
            operation->forward(lane);
        });
        Result result;
        result.implementation = operation->implementation();
        output_.fetch();
        result.output = output_.values();
        EXPECT_TRUE(output_.padding_is_zero());
        if (binding_.training)
            backend_.lanes().run([&](Lane& lane) { operation->backward(lane); });
        if (steps_) {
            if (binding_.training)
                steps_->send(0, {0, parameters_.size()});
            steps_->finish();
        }
        result.statistics = values_of(statistics_, slab::weights);
        if (binding_.training)
            read_gradients(result);
        return result;
    }

  private:
    void bind_gradients(const Data& data) {
        for (const Values& values : data.output_gradients) {
            output_gradients_.push_back(
                std::make_unique<TestBuffer>(backend_, network_, node_, binding_.batch));
            output_gradients_.back()->write(values);
            binding_.output_gradients.push_back(&output_gradients_.back()->buffer);
        }
        input_gradients_.reserve(node_.inputs.size());
        for (const NodeId input : node_.inputs) {
            input_gradients_.emplace_back();
            if (network_.node(input).kind != Kind::input)
                input_gradients_.back().emplace(backend_, network_, network_.node(input),
                                                binding_.batch);
            binding_.input_gradients.push_back(
                input_gradients_.back() ? &input_gradients_.back()->buffer : nullptr);
        }
        if (steps_) {
            binding_.gradients.push_back(steps_->gradients());
            return;
        }
        const size_t slab_bytes =
            static_cast<size_t>(parameters_.size()) * size_of(parameters_.type());
        for (int lane = 0; lane < backend_.lanes().count(); ++lane) {
            slabs_.emplace_back(slab_bytes, std::byte{0xff});
            binding_.gradients.push_back(slabs_.back().data());
        }
    }

    void read_gradients(Result& result) {
        if (steps_)
            ;  // they have arrived
        else if (parameters_.type() == DType::f32)
            backend_.sum_slabs(parameters_.address(slab::gradients), binding_.gradients,
                               {0, parameters_.size()});
        else
            std::copy(slabs_[0].begin(), slabs_[0].end(), parameters_.address(slab::gradients));
        result.weight_gradients = values_of(parameters_, slab::gradients);
        for (auto& gradient : input_gradients_) {
            if (!gradient)
                continue;
            gradient->fetch();
            result.input_gradients.push_back(gradient->values());
            EXPECT_TRUE(gradient->padding_is_zero());
        }
    }

    // On the host, as in a cluster.
    static std::function<Memory(size_t)> slabs_of(Backend& backend) {
        return [&backend](size_t bytes) { return backend.allocate_slabs(bytes, SlabHome::host); };
    }

    static void fill(ParameterArena& arena, const Values& values) {
        for (size_t i = 0; i < values.size(); ++i) {
            if (arena.type() == DType::f64)
                arena.slab<double>(slab::weights)[i] = values[i];
            else
                arena.slab<float>(slab::weights)[i] = static_cast<float>(values[i]);
        }
    }

    static Values values_of(const ParameterArena& arena, std::string_view name) {
        if (arena.type() == DType::f64) {
            const auto slab = arena.slab<double>(name);
            return {slab.begin(), slab.end()};
        }
        const auto slab = arena.slab<float>(name);
        return {slab.begin(), slab.end()};
    }

    Backend& backend_;
    const Network& network_;
    const Node& node_;
    ParameterArena parameters_, statistics_;
    std::vector<float> images_;
    std::vector<int32_t> labels_;
    StepInput step_;
    std::unique_ptr<DeviceSteps> steps_;  // nullptr where the backend computes at once
    TestBuffer output_;
    std::vector<std::unique_ptr<TestBuffer>> inputs_, output_gradients_;
    std::vector<std::optional<TestBuffer>> input_gradients_;
    std::vector<std::vector<std::byte>> slabs_;
    Binding binding_;
};

// A blocked activation of the shape: an image itself stays as it came.
inline NodeId activation(Network& network, const Shape& shape) {
    return network.pad_shortcut(network.input(shape[0], shape[1], shape[2]), shape[0], 1);
}

struct ConvolutionCase {
    Shape in;
    ConvolutionOptions options;
    bool image = false;  // straight on the network's input
};

inline OperationCase convolution(const ConvolutionCase& c) {
    const ConvolutionOptions& o = c.options;
    return {.name = "conv_" + std::to_string(c.in[0]) + "x" + std::to_string(c.in[1]) + "_to_" +
                    std::to_string(o.out_channels) + "_k" + std::to_string(o.kernel) + "s" +
                    std::to_string(o.stride) + "p" + std::to_string(o.padding) +
                    (o.bias ? "_bias" : "") + (c.image ? "_image" : ""),
            .describe =
                [c](Network& network) {
                    const NodeId x = c.image ? network.input(c.in[0], c.in[1], c.in[2])
                                             : activation(network, c.in);
                    network.convolution("conv", x, c.options);
                },
            .fp32 = 2e-6,
            .bf16 = 6e-3};
}

inline std::vector<OperationCase> convolutions() {
    std::vector<OperationCase> result;
    for (const ConvolutionCase& c : std::vector<ConvolutionCase>{
             {{3, 32, 32}, {.out_channels = 16}, true},
             {{3, 23, 23}, {.out_channels = 64, .kernel = 7, .stride = 2, .padding = 3}, true},
             {{1, 28, 28}, {.out_channels = 6, .kernel = 5, .padding = 2, .bias = true}, true},
             {{20, 6, 6}, {.out_channels = 16}, true},
             {{16, 8, 8}, {.out_channels = 16}},
             {{16, 9, 9}, {.out_channels = 32, .stride = 2}},
             {{64, 7, 7}, {.out_channels = 24, .kernel = 1, .padding = 0}},
             {{24, 7, 7}, {.out_channels = 10, .bias = true}},
             {{10, 7, 7}, {.out_channels = 48, .kernel = 1, .stride = 2, .padding = 0}},
             {{6, 14, 14}, {.out_channels = 16, .kernel = 5, .padding = 0, .bias = true}},
             {{3, 7, 7}, {.out_channels = 16}},
             {{64, 14, 14}, {.out_channels = 128, .kernel = 1, .stride = 2, .padding = 0}},
             {{256, 2, 2}, {.out_channels = 256}},
             {{16, 22, 19}, {.out_channels = 48, .bias = true}},  // by Winograd where it is had
             {{32, 24, 24}, {.out_channels = 32}}})
        result.push_back(convolution(c));
    return result;
}

inline OperationCase batch_norm(const Shape& shape, bool relu, bool residual, size_t gradients) {
    return {.name = "batch_norm_" + std::to_string(shape[0]) + "x" + std::to_string(shape[1]) +
                    (relu ? "_relu" : "") + (residual ? "_residual" : "") + "_" +
                    std::to_string(gradients),
            .describe =
                [=](Network& network) {
                    const NodeId x = activation(network, shape);
                    const NodeId other = residual ? network.pad_shortcut(x, shape[0], 1) : no_node;
                    network.batch_norm("bn", x, {.relu = relu, .residual = other});
                },
            .fp32 = 2e-6,
            .bf16 = 4e-3,
            .output_gradients = gradients};
}

inline std::vector<OperationCase> batch_norms() {
    std::vector<OperationCase> result;
    for (const Shape& shape : {Shape{16, 8, 8}, Shape{24, 7, 7}, Shape{10, 5, 3}})
        for (const bool relu : {false, true})
            for (const bool residual : {false, true})
                for (const size_t gradients : {1, 2, 3})
                    result.push_back(batch_norm(shape, relu, residual, gradients));
    result.push_back(batch_norm({16, 40, 40}, true, true, 1));  // more than one segment a plane
    return result;
}

inline std::vector<OperationCase> poolings() {
    std::vector<OperationCase> result;
    const auto add = [&](const Shape& in, int64_t k, int64_t stride, int64_t padding) {
        result.push_back({.name = "max_pool_" + std::to_string(in[0]) + "x" +
                                  std::to_string(in[1]) + "_k" + std::to_string(k) + "s" +
                                  std::to_string(stride) + "p" + std::to_string(padding),
                          .describe =
                              [=](Network& network) {
                                  network.max_pool(activation(network, in), k, stride, padding);
                              },
                          .fp32 = 1e-7,
                          .bf16 = 2e-3});
    };
    add({16, 8, 8}, 2, 2, 0);
    add({24, 7, 7}, 2, 2, 0);
    add({64, 15, 15}, 3, 2, 1);
    add({10, 7, 5}, 3, 1, 1);
    add({16, 9, 9}, 5, 3, 2);
    for (const Shape& shape : {Shape{64, 8, 8}, Shape{24, 7, 7}, Shape{10, 1, 1}})
        for (const bool followed : {false, true})
            result.push_back({.name = "average_pool_" + std::to_string(shape[0]) + "x" +
                                      std::to_string(shape[1]) + (followed ? "" : "_logits"),
                              .describe =
                                  [=](Network& network) {
                                      network.global_average_pool(activation(network, shape));
                                  },
                              .fp32 = 1e-6,
                              .bf16 = 3e-3,
                              .followed = followed});
    return result;
}

inline std::vector<OperationCase> linears() {
    std::vector<OperationCase> result;
    const auto add = [&](const std::string& name, auto input, int64_t out, bool followed) {
        result.push_back(
            {.name = "linear_" + name + "_to_" + std::to_string(out) + (followed ? "" : "_logits"),
             .describe = [=](Network& network) { network.linear("fc", input(network), out); },
             .fp32 = 2e-6,
             .bf16 = 6e-3,
             .followed = followed});
    };
    const auto image = [](Network& network) { return network.input(3, 8, 8); };
    const auto many = [](Network& network) { return network.input(20, 3, 3); };
    const auto row = [](Network& network) {
        return network.global_average_pool(activation(network, {64, 2, 2}));
    };
    const auto plane = [](Network& network) { return activation(network, {16, 5, 5}); };
    const auto odd = [](Network& network) { return activation(network, {10, 7, 7}); };
    for (const bool followed : {false, true}) {
        add("image", image, 10, followed);
        add("many_channels", many, 33, followed);
        add("row64", row, 10, followed);
        add("16x5", plane, 120, followed);
        add("10x7", odd, 17, followed);
        add("row64", row, 1000, followed);
    }
    return result;
}

inline std::vector<OperationCase> elementwise() {
    std::vector<OperationCase> result;
    const auto row = [](Network& network, int64_t width) {
        return network.global_average_pool(activation(network, {width, 1, 1}));
    };
    for (const Shape& shape : {Shape{16, 8, 8}, Shape{10, 7, 7}})
        result.push_back({.name = "relu_" + std::to_string(shape[0]),
                          .describe = [=](Network& n) { n.relu(activation(n, shape)); },
                          .fp32 = 0,
                          .bf16 = 0});
    result.push_back({.name = "relu_row",
                      .describe = [=](Network& n) { n.relu(row(n, 33)); },
                      .fp32 = 0,
                      .bf16 = 0,
                      .followed = true});
    const auto shortcut = [&](const Shape& in, int64_t out, int64_t stride) {
        result.push_back(
            {.name = "shortcut_" + std::to_string(in[0]) + "x" + std::to_string(in[1]) + "_to_" +
                     std::to_string(out) + "_s" + std::to_string(stride),
             .describe = [=](Network& n) { n.pad_shortcut(activation(n, in), out, stride); },
             .fp32 = 0,
             .bf16 = 0});
    };
    shortcut({16, 8, 8}, 32, 2);
    shortcut({16, 7, 7}, 32, 2);
    shortcut({24, 7, 7}, 48, 2);
    shortcut({10, 5, 5}, 16, 1);
    shortcut({10, 5, 5}, 40, 3);
    result.push_back({.name = "dropout_10x7",
                      .describe =
                          [=](Network& n) {
                              n.dropout("d", activation(n, {10, 7, 7}), 0.3);
                          },
                      .fp32 = 1e-7,
                      .bf16 = 3e-3});
    result.push_back({.name = "dropout_row",
                      .describe = [=](Network& n) { n.dropout("d", row(n, 100), 0.5); },
                      .fp32 = 0,
                      .bf16 = 0,
                      .followed = true});
    result.push_back({.name = "input_20",  // an image that others than convolutions read
                      .describe = [](Network& n) { n.relu(n.input(20, 3, 3)); },
                      .fp32 = 0,
                      .bf16 = 0});
    return result;
}

inline std::vector<OperationCase> all_cases() {
    std::vector<OperationCase> result;
    for (const auto& cases : {convolutions(), batch_norms(), poolings(), linears(), elementwise()})
        result.insert(result.end(), cases.begin(), cases.end());
    return result;
}

// A case on some backend, against the reference in double.
class OperationTest : public testing::TestWithParam<OperationCase> {
  protected:
    void SetUp() override {
        GetParam().describe(network_);
        id_ = network_.output();
        if (GetParam().followed)
            network_.linear("behind", id_, 3);
    }

    const Node& node() const { return network_.node(id_); }

    Data random_data(int64_t batch, bool as_bf16) const {
        Data data;
        uint64_t seed = 1;
        for (const NodeId input : node().inputs)
            data.inputs.push_back(
                random_values(batch * element_count(network_.node(input).shape), seed++, as_bf16));
        for (size_t i = 0; i < GetParam().output_gradients; ++i)
            data.output_gradients.push_back(
                random_values(batch * element_count(node().shape), seed++, as_bf16));
        data.weights = random_values(network_.parameters().size(), seed++, false);
        data.statistics = random_values(network_.statistics().size(), seed++, false);
        for (double& value : data.statistics)
            value = 0.5 + std::abs(value);
        return data;
    }

    Result reference(const Data& data, int64_t batch, bool training) const {
        const auto backend = make_reference_backend(DType::f64);
        Data summed = data;
        summed.output_gradients.resize(1);
        for (size_t k = 1; k < data.output_gradients.size(); ++k)
            for (size_t i = 0; i < data.output_gradients[k].size(); ++i)
                summed.output_gradients[0][i] += data.output_gradients[k][i];
        return Bench(*backend, network_, id_, batch, training).run(summed);
    }

    // The tested node's own parameters: what stands behind it leaves its gradients alone.
    Values own_gradients(const Result& result) const {
        Values own;
        for (const int index : node().parameters) {
            const TensorInfo& info = network_.parameters()[index];
            own.insert(own.end(), result.weight_gradients.begin() + info.offset,
                       result.weight_gradients.begin() + info.offset + info.size());
        }
        return own;
    }

    void compare(const Result& result, const Result& truth, double tolerance) const {
        EXPECT_LE(relative_error(result.output, truth.output), tolerance);
        ASSERT_EQ(result.input_gradients.size(), truth.input_gradients.size());
        for (size_t i = 0; i < truth.input_gradients.size(); ++i)
            EXPECT_LE(relative_error(result.input_gradients[i], truth.input_gradients[i]),
                      tolerance)
                << "gradient of input " << i;
        if (!truth.weight_gradients.empty()) {
            EXPECT_LE(relative_error(own_gradients(result), own_gradients(truth)), tolerance);
        }
        EXPECT_LE(relative_error(result.statistics, truth.statistics), 1e-6);
    }

    Network network_;
    NodeId id_ = no_node;
};

}  // namespace trainer::operation_bench
