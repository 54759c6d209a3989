// Measures a server's arithmetic on one core: the pushes of four workers taken, decoded, summed in
// worker order, one step of momentum SGD made of them, and the four pulls that wait for it
// answered, for each codec that pushes use. GB of floats pushed a second (all workers together),
// next to memcpy of as many floats in the same run (rounds interleaved, medians). Prints a table,
// then one JSON line a codec. Usage: server [MiB of floats] [rounds] [workers]
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/memory.h"
#include "engine/random.h"
#include "optim/shard.h"
#include "tools/bench/stopwatch.h"

namespace {

using namespace trainer;

/// A server of the whole table, and what its workers push in every step: one push a tensor.
struct Job {
    Job(std::shared_ptr<const Codec> a_codec, const TensorTable& table, int a_workers,
        std::span<const float> gradients)
        : codec(std::move(a_codec)),
          workers(a_workers),
          optimizer(make_optimizer({.momentum = 0.9, .weight_decay = 1e-4}, table)),
          options{.rule = ShardOptions::Rule::average,
                  .workers = workers,
                  .codec = codec,
                  .lr = [](int64_t) { return 1e-4; }},
          arena(table, DType::f32, slabs()),
          shard(Shard::make(options, *optimizer, arena, {0, table.size()})) {
        for (const TensorInfo& tensor : table.tensors()) {
            const Range range = tensor.range();
            const auto segments = segments_of(*codec, table, range);
            const size_t size = encoded_bytes(*codec, segments);
            auto codes = std::make_shared<Memory>(allocate_host(size));
            encode_range(*codec, segments, gradients, codes->data.get());
            pushes.push_back({range, codec->id(), {codes->data.get(), size}, codes});
        }
    }

    std::vector<std::string> slabs() const {
        std::vector<std::string> result{"weights", "gradients", "momentum"};
        for (const std::string& name : Shard::slabs(options))
            result.push_back(name);
        return result;
    }

    void step() {
        for (int worker = 0; worker < workers; ++worker) {
            for (const Push& push : pushes)
                shard->push(worker, at, push);
            shard->pull(worker, at + 1);
        }
        if (shard->replies().size() != static_cast<size_t>(workers))
            throw std::runtime_error("a step has not been completed");
        ++at;
    }

    std::shared_ptr<const Codec> codec;
    int workers;
    std::unique_ptr<Optimizer> optimizer;
    ShardOptions options;
    ParameterArena arena;
    std::unique_ptr<Shard> shard;
    std::vector<Push> pushes;
    int64_t at = 0;
    std::vector<double> times;
};

}  // namespace

int main(int argc, char** argv) {
    const int64_t mebibytes = argc > 1 ? std::atoll(argv[1]) : 100;
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
    const int workers = argc > 3 ? std::atoi(argv[3]) : 4;
    if (mebibytes < 1 || rounds < 1 || workers < 1) {
        std::fprintf(stderr, "usage: server [MiB of floats] [rounds] [workers]\n");
        return 2;
    }
    const int64_t count = mebibytes << 18;
    TensorTable table;  // as many tensors as a ResNet-50 has
    for (int i = 0; i < 160; ++i)
        table.add("layer" + std::to_string(i), {count / 160}, true, {});
    const size_t bytes = static_cast<size_t>(table.size()) * 4;
    const Memory memory = allocate_host(2 * bytes);
    const std::span gradients(reinterpret_cast<float*>(memory.data.get()),
                              static_cast<size_t>(table.size()));
    Random random{1, 2};
    for (float& gradient : gradients)
        gradient = static_cast<float>(random.uniform() * 2 - 1) * 0.02F;

    std::vector<std::unique_ptr<Job>> jobs;
    const auto add = [&](std::shared_ptr<const Codec> codec) {
        jobs.push_back(std::make_unique<Job>(std::move(codec), table, workers, gradients));
    };
    add(make_raw_codec());
    add(make_fp16_codec());
    add(make_bf16_codec());
    add(make_two_bit_codec(0.01F));
    std::vector<double> copies;
    for (int round = 0; round <= rounds; ++round) {  // the first warms up
        const double copying =
            seconds([&] { std::memcpy(memory.data.get() + bytes, gradients.data(), bytes); });
        if (round > 0)
            copies.push_back(copying);
        for (const auto& job : jobs) {
            const double time = seconds([&] { job->step(); });
            if (round > 0)
                job->times.push_back(time);
        }
    }

    const double memcpy_rate = static_cast<double>(bytes) / median(copies) / 1e9;
    std::printf(
        "%d workers, %ld MiB of floats each, %d rounds, one core, medians; memcpy %.1f GB/s\n",
        workers, mebibytes, rounds, memcpy_rate);
    std::printf("%-8s %18s %10s\n", "codec", "floats pushed GB/s", "/memcpy");
    const auto rate = [&](const Job& job) {
        return static_cast<double>(bytes) * workers / median(job.times) / 1e9;
    };
    for (const auto& job : jobs)
        std::printf("%-8s %18.1f %10.2f\n", job->codec->name().c_str(), rate(*job),
                    rate(*job) / memcpy_rate);
    for (const auto& job : jobs)
        std::printf(
            "{\"bench\": \"server\", \"codec\": \"%s\", \"workers\": %d, \"mib\": %ld, "
            "\"n\": %d, \"floats_gb_s\": %.2f, \"memcpy_gb_s\": %.2f}\n",
            job->codec->name().c_str(), workers, mebibytes, rounds, rate(*job), memcpy_rate);
    return 0;
}
