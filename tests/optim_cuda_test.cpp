// Workers on a GPU: what the GPU does besides computing gradients gives the processor's bits.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "data/dataset.h"
#include "engine/device_exchange.h"
#include "models/models.h"
#include "optim/exchange.h"
#include "optim/worker.h"
#include "tests/gpu.h"

namespace trainer {
namespace {

Network make_network() {
    return build_model("lenet5", {.num_classes = 10, .height = 32, .width = 32});
}

LoaderOptions loader_options(bool images) {
    LoaderOptions options;
    options.batch = 24;
    options.drop_last = false;
    options.seed = 5;
    options.images = images;
    options.augment.crops = {.pad_crop = 4, .flip = true, .cutout = 9};
    options.normalization = default_normalization("cifar10");
    return options;
}

// A worker alone, whose images come from the loader or stay with the backend.
struct Alone {
    Alone(const Dataset& dataset, bool keeps)
        : network(make_network()),
          loader(dataset, loader_options(!keeps)),
          backend(make_cuda_backend({})),
          kept(keeps ? backend->keep_images(kept_set(dataset, loader.options().augment.crops,
                                                     loader.options().normalization, 5))
                     : nullptr),
          optimizer(make_optimizer({.momentum = 0.9}, network.parameters())),
          schedule({.lr = 0.05}),
          parameters(network.parameters(), DType::f32,
                     {std::string(slab::weights), std::string(slab::gradients),
                      std::string(slab::momentum)},
                     slabs()),
          statistics(network.statistics(), DType::f32, {std::string(slab::weights)}, slabs()),
          worker({network, *backend, parameters, statistics, loader, *optimizer, schedule, nullptr,
                  kept.get()},
                 {}) {
        initialize_weights(parameters, 3);
        initialize_weights(statistics, 3);
        worker.start(0);
    }
    std::function<Memory(size_t)> slabs() {
        return [this](size_t bytes) { return backend->allocate_slabs(bytes, SlabHome::device); };
    }

    Network network;
    Loader loader;
    std::unique_ptr<Backend> backend;
    std::unique_ptr<DeviceImages> kept;
    std::unique_ptr<Optimizer> optimizer;
    LearningRate schedule;
    ParameterArena parameters, statistics;
    Worker worker;
};

// Crops, flips, cutouts, a smaller batch at the end of an epoch, other draws in the next.
TEST(CudaImages, kept_on_the_device_give_the_bits_of_the_loaders) {
    TRAINER_NEEDS_GPU();
    DatasetOptions options{.dataset = "synthetic", .dir = {}};
    options.synthetic.train_count = 110;
    const Dataset dataset = load_dataset(options);
    Alone kept(dataset, true), loaded(dataset, false);
    ASSERT_NE(kept.kept, nullptr);
    for (int step = 0; step < 12; ++step) {
        EXPECT_EQ(kept.worker.step().sums, loaded.worker.step().sums) << "step " << step;
        const auto a = kept.parameters.slab<float>(slab::weights);
        const auto b = loaded.parameters.slab<float>(slab::weights);
        ASSERT_TRUE(std::equal(a.begin(), a.end(), b.begin())) << "step " << step;
    }
}

// Slabs of tensors of all kinds of sizes, with their home on the host, and random numbers in them.
struct Slabs {
    explicit Slabs(std::vector<std::string> names)
        : backend(make_cuda_backend({})),
          arena(table(), DType::f32, std::move(names),
                [this](size_t bytes) { return backend->allocate_slabs(bytes, SlabHome::host); }),
          exchange(backend->make_exchange(arena)),
          gradients(backend->allocate(bytes())) {}

    static TensorTable table() {
        TensorTable result;
        for (const int64_t size : {27, 1, 4096, 513, 5000, 2048, 16, 2047})
            result.add("t" + std::to_string(size), {size}, true, {});
        return result;
    }
    size_t bytes() const { return static_cast<size_t>(arena.size()) * sizeof(float); }
    float* device_gradients() const { return reinterpret_cast<float*>(gradients.data.get()); }

    std::vector<float> draw(uint64_t seed) const {
        Random random{seed, 4};
        std::vector<float> values(static_cast<size_t>(arena.size()));
        for (float& value : values)
            value = static_cast<float>(random.normal());
        // Zeros have a threshold of zero.
        std::fill_n(values.begin() + table()[4].offset, 5000, 0.0F);
        return values;
    }
    std::vector<float> slab(std::string_view name) const {
        const auto values = arena.slab<float>(name);
        return {values.begin(), values.end()};
    }

    std::unique_ptr<Backend> backend;
    ParameterArena arena;
    std::shared_ptr<DeviceExchange> exchange;
    Memory gradients;  // of the device
};

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

struct CodecCase {
    const char* name;
    DeviceCode code;
    std::optional<float> threshold{};

    std::unique_ptr<Codec> make() const {
        switch (code) {
            case DeviceCode::fp16:
                return make_fp16_codec();
            case DeviceCode::bf16:
                return make_bf16_codec();
            default:
                return make_two_bit_codec(threshold);
        }
    }
};

class CudaCodes : public testing::TestWithParam<CodecCase> {};

// Two ranges, one of them split between two servers in the midst of a tensor.
TEST_P(CudaCodes, and_what_they_leave_are_the_processors) {
    TRAINER_NEEDS_GPU();
    Slabs device({std::string(slab::weights), std::string(slab::residual)});
    const auto codec = GetParam().make();
    const TensorTable& table = device.arena.table();
    const int64_t half = table[3].offset, cut = half + 513 + 1001;
    const std::array<std::vector<Range>, 2> pieces{
        std::vector<Range>{{half, cut - half}, {cut, table.size() - cut}},
        std::vector<Range>{{0, half}}};

    std::vector<float> residual(static_cast<size_t>(table.size()));
    ErrorFeedback feedback(*codec, table, residual);
    std::vector<size_t> numbers;
    std::vector<std::vector<Segment>> segments;
    size_t at = 0;
    for (const auto& parts : pieces) {
        const Range range{parts.front().first, parts.back().end() - parts.front().first};
        CodedRange coded{.range = range,
                         .code = GetParam().code,
                         .threshold = GetParam().threshold,
                         .residual = slab::residual};
        coded.first_byte = at;
        for (const Range& part : parts)
            for (const Segment& segment : segments_of(*codec, table, part)) {
                at += codec->has_scale() ? 4 : 0;
                coded.segments.push_back({segment.range, segment.tensor, at});
                at += codec->code_bytes(segment.range.count);
                segments.push_back({segment});
            }
        coded.bytes = at - coded.first_byte;
        at += 8;
        numbers.push_back(device.exchange->prepare(coded));
    }
    const Memory outbox = device.exchange->allocate_outbox(at);
    for (uint64_t push = 0; push < 3; ++push) {
        std::vector<float> gradients = device.draw(push);
        device.backend->write(device.gradients.data.get(),
                              reinterpret_cast<const std::byte*>(gradients.data()), device.bytes());
        const float factor = push == 1 ? 3.0F : 1.0F;
        for (const size_t number : numbers)
            device.exchange->push(number, device.device_gradients(), factor, outbox.data.get());
        for (float& gradient : gradients)
            gradient *= factor;
        std::vector<std::byte> expected(at);
        size_t to = 0, segment = 0;
        for (size_t range = 0; range < pieces.size(); ++range, to += 8) {
            const auto& parts = pieces[range];
            feedback.begin(gradients,
                           {parts.front().first, parts.back().end() - parts.front().first});
            for (; segment < segments.size() &&
                   segments[segment].front().range.first >= parts.front().first &&
                   segments[segment].front().range.end() <= parts.back().end();
                 ++segment) {
                feedback.encode(segments[segment], gradients, expected.data() + to);
                to += encoded_bytes(*codec, segments[segment]);
            }
            device.exchange->await(numbers[range]);
        }
        ASSERT_EQ(segment, segments.size());
        EXPECT_EQ(std::memcmp(expected.data(), outbox.data.get(), at), 0) << "push " << push;
        device.exchange->fetch(slab::residual);
        expect_same_bits(device.slab(slab::residual), residual);
    }
}

INSTANTIATE_TEST_SUITE_P(All, CudaCodes,
                         testing::Values(CodecCase{"fp16", DeviceCode::fp16},
                                         CodecCase{"bf16", DeviceCode::bf16},
                                         CodecCase{"two_bit", DeviceCode::two_bit, 0.7F},
                                         CodecCase{"two_bit_measured", DeviceCode::two_bit}),
                         [](const auto& codec) { return std::string(codec.param.name); });

TEST(CudaCodes, an_exact_push_may_take_the_residual_along) {
    TRAINER_NEEDS_GPU();
    Slabs device({std::string(slab::weights), std::string(slab::residual)});
    const std::vector<float> gradients = device.draw(1), residual = device.draw(2);
    std::ranges::copy(residual, device.arena.slab<float>(slab::residual).begin());
    device.exchange->send(slab::residual);
    device.backend->write(device.gradients.data.get(),
                          reinterpret_cast<const std::byte*>(gradients.data()), device.bytes());
    const Range all{0, device.arena.size()};
    const Memory outbox = device.exchange->allocate_outbox(device.bytes());
    for (const bool flushes : {false, true}) {
        const size_t number =
            device.exchange->prepare({.range = all,
                                      .residual = flushes ? slab::residual : std::string_view(),
                                      .segments = {{all, -1, 0}},
                                      .bytes = device.bytes()});
        device.exchange->push(number, device.device_gradients(), 1, outbox.data.get());
        device.exchange->await(number);
        std::vector<float> expected = gradients;
        for (size_t i = 0; flushes && i < expected.size(); ++i)
            expected[i] += residual[i];
        EXPECT_EQ(std::memcmp(outbox.data.get(), expected.data(), device.bytes()), 0);
        device.exchange->fetch(slab::residual);
        expect_same_bits(device.slab(slab::residual),
                         flushes ? std::vector<float>(expected.size()) : residual);
    }
}

class CudaLocalRule : public testing::TestWithParam<const char*> {};

TEST_P(CudaLocalRule, gives_the_processors_bits) {
    TRAINER_NEEDS_GPU();
    const LocalRuleOptions options{
        .rule = GetParam(), .weight_decay = 1e-4, .seeded = true, .frozen = {"t513"}};
    const auto rule = make_local_rule(options, Slabs::table());
    std::vector<std::string> names{std::string(slab::weights), std::string(slab::gradients),
                                   std::string(slab::incoming)};
    for (const std::string& name : rule->slabs())
        names.push_back(name);
    Slabs device(names);
    const ParameterArena host(Slabs::table(), DType::f32, names);
    const auto fill = [&](std::string_view name, uint64_t seed) {
        const std::vector<float> values = device.draw(seed);
        std::ranges::copy(values, host.slab<float>(name).begin());
        std::ranges::copy(values, device.arena.slab<float>(name).begin());
    };
    fill(slab::weights, 1);
    rule->start(host);
    rule->start(device.arena);
    for (const std::string& name : names)
        if (name != slab::incoming)
            device.exchange->send(name);
    const auto find = [&](std::string_view name) {
        return device.arena.has_slab(name) ? device.exchange->slab(name) : nullptr;
    };
    const LocalSlabs slabs{find(slab::weights),         find(slab::gradients),
                           find(slab::incoming),        find(slab::pulled),
                           find(slab::global_gradient), find(slab::local_momentum)};
    for (uint64_t step = 0; step < 6; ++step) {
        const bool pulled = step % 3 == 2;
        fill(slab::gradients, 10 + step);
        if (pulled)
            fill(slab::incoming, 20 + step);
        device.exchange->send(slab::gradients);
        rule->step(host, {0, host.size()}, pulled, 0.1, 0.3);
        rule->step(slabs, {0, host.size()}, pulled, 0.1, 0.3, &device.exchange->math());
        device.exchange->math().wait();
    }
    for (const std::string& name : names) {
        SCOPED_TRACE(name);
        if (name != slab::incoming)
            device.exchange->fetch(name);
        const auto values = host.slab<float>(name);
        expect_same_bits(device.slab(name), {values.begin(), values.end()});
    }
}

INSTANTIATE_TEST_SUITE_P(Rules, CudaLocalRule, testing::Values("sgd", "dc", "glu", "momentum"),
                         [](const auto& rule) { return std::string(rule.param); });

}  // namespace
}  // namespace trainer
