// Several GPUs: those of one worker, which share a batch, and those of several, which sum slabs.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "models/models.h"
#include "tests/device_training.h"
#include "tests/error_of.h"
#include "tests/gpu.h"

/// In the body of a test; only a macro can leave it.
#define TRAINER_NEEDS_GPUS(count)                                 \
    TRAINER_NEEDS_GPU();                                          \
    if (const auto why = ::trainer::why_no_cuda((count)-1))       \
        GTEST_SKIP() << "needs " << (count) << " GPUs: " << *why; \
    if (const auto why = ::trainer::why_no_nccl())                \
    GTEST_SKIP() << "needs NCCL: " << *why

namespace trainer {
namespace {

using device_training::Training;

constexpr int64_t image_size = 8, classes = 10;

// Batch norms with and without a residual, a bias, a dropout-free end: all that is summed.
Network small_network() {
    Network network;
    const NodeId x = network.input(3, image_size, image_size);
    NodeId y = network.convolution("conv1", x, {.out_channels = 12});
    const NodeId shortcut = y = network.batch_norm("bn1", y, {.relu = true});
    y = network.convolution("conv2", y, {.out_channels = 12});
    y = network.batch_norm("bn2", y, {.relu = true, .residual = shortcut});
    y = network.convolution("conv3", y, {.out_channels = 20, .stride = 2, .bias = true});
    y = network.relu(y);
    network.linear("fc", network.global_average_pool(y), classes);
    return network;
}

/// The largest difference, by the largest value.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
    double largest = 0, scale = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        largest = std::max(largest, std::fabs(static_cast<double>(a[i] - b[i])));
        scale = std::max(scale, std::fabs(static_cast<double>(a[i])));
    }
    return a.size() == b.size() && std::isfinite(largest) ? largest / (scale + 1e-12) : 1e9;
}

void expect_close(Training& one, Training& other, double tolerance) {
    for (uint64_t step = 0; step < 4; ++step) {
        const LossSums a = one.step(step), b = other.step(step);
        EXPECT_NEAR(a.loss, b.loss, tolerance * a.loss) << "step " << step;
        EXPECT_EQ(a.samples, b.samples);
        EXPECT_LT(difference(one.values(one.parameters, slab::gradients),
                             other.values(other.parameters, slab::gradients)),
                  tolerance)
            << "step " << step;
        EXPECT_LT(difference(one.values(one.statistics, slab::weights),
                             other.values(other.statistics, slab::weights)),
                  tolerance)
            << "step " << step;
    }
}

/// Communicators that have ended otherwise than in good order, as the emulated NCCL counts them; 0
/// where it is a real one.
int aborts_so_far() {
    const char* const path = std::getenv("TRAINER_NCCL");
    void* const library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    auto* const count = library == nullptr
                            ? nullptr
                            : reinterpret_cast<int (*)()>(dlsym(library, "emulated_nccl_aborts"));
    return count == nullptr ? 0 : count();
}

class CudaTeam : public testing::TestWithParam<int> {};

// Statistics of batch norms too are of the whole batch: nothing depends on the number of GPUs.
TEST_P(CudaTeam, is_one_gpu_with_the_same_batch) {
    TRAINER_NEEDS_GPUS(GetParam());
    for (const SlabHome home : {SlabHome::device, SlabHome::host})
        for (const int64_t batch : {8, 11}) {  // parts alike, and not
            SCOPED_TRACE(batch);
            Training one(small_network(), {}, home, batch);
            Training team(small_network(), {.gpus = GetParam()}, home, batch, 2000);
            EXPECT_EQ(team.backend->followers().size(), static_cast<size_t>(GetParam() - 1));
            expect_close(one, team, 2e-5);
        }
}

TEST_P(CudaTeam, may_sum_in_the_order_that_nccl_likes) {
    TRAINER_NEEDS_GPUS(GetParam());
    const auto network = [] {
        return build_model("linear",
                           {.num_classes = classes, .height = image_size, .width = image_size});
    };
    Training one(network(), {}, SlabHome::device, 8);
    Training team(network(), {.deterministic = false, .gpus = GetParam()}, SlabHome::device, 8);
    expect_close(one, team, 1e-5);
}

TEST_P(CudaTeam, gives_the_same_bits_twice) {
    TRAINER_NEEDS_GPUS(GetParam());
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        const CudaOptions options{.precision = precision, .gpus = GetParam()};
        Training first(small_network(), options, SlabHome::host, 8);
        Training second(small_network(), options, SlabHome::device, 8, 1000);
        for (uint64_t step = 0; step < 4; ++step) {
            EXPECT_EQ(first.step(step), second.step(step));
            ASSERT_EQ(first.values(first.parameters, slab::gradients),
                      second.values(second.parameters, slab::gradients));
            ASSERT_EQ(first.values(first.statistics, slab::weights),
                      second.values(second.statistics, slab::weights));
        }
    }
}

// Each takes its part of the images of the step after, and then reads them no more.
TEST_P(CudaTeam, fetches_images_ahead) {
    TRAINER_NEEDS_GPUS(GetParam());
    constexpr int64_t batch = 11;
    Training plain(small_network(), {.gpus = GetParam()}, SlabHome::host, batch);
    Training ahead(small_network(), {.gpus = GetParam()}, SlabHome::host, batch);
    golden::Batch now = golden::make_batch(0, batch, image_size, classes);
    for (uint64_t step = 0; step < 4; ++step) {
        const golden::Batch after = golden::make_batch(step + 1, batch, image_size, classes);
        if (step > 0)
            std::ranges::fill(now.images, std::nanf(""));
        const LossSums sums = ahead.executor.train({.images = now.images.data(),
                                                    .labels = now.labels.data(),
                                                    .batch = batch,
                                                    .seed = 3,
                                                    .step = static_cast<int64_t>(step),
                                                    .images_id = step + 1,
                                                    .next_images = after.images.data(),
                                                    .next_images_id = step + 2});
        EXPECT_EQ(plain.step(step), sums) << "step " << step;
        ASSERT_EQ(plain.values(plain.parameters, slab::gradients),
                  ahead.values(ahead.parameters, slab::gradients));
        std::ranges::copy(plain.parameters.slab<float>(slab::weights),
                          ahead.parameters.slab<float>(slab::weights).begin());
        now = after;
    }
}

TEST_P(CudaTeam, announces_ranges_that_are_sums) {
    TRAINER_NEEDS_GPUS(GetParam());
    Training team(small_network(), {.gpus = GetParam()}, SlabHome::host, 8, 500);
    std::vector<float> seen(static_cast<size_t>(team.parameters.size()), -1.0F);
    std::vector<Range> announced;
    team.step(0, [&](Range range) {
        announced.push_back(range);
        const auto g = team.parameters.slab<float>(slab::gradients);
        std::copy(g.begin() + range.first, g.begin() + range.end(), seen.begin() + range.first);
    });
    EXPECT_EQ(announced, team.executor.ranges());
    EXPECT_GT(announced.size(), 2u);
    EXPECT_EQ(seen, team.values(team.parameters, slab::gradients));
}

TEST_P(CudaTeam, leaves_a_batch_of_fewer_images_to_the_first) {
    TRAINER_NEEDS_GPUS(GetParam());
    Training one(small_network(), {}, SlabHome::device, GetParam() - 1);
    Training team(small_network(), {.gpus = GetParam()}, SlabHome::device, GetParam() - 1);
    expect_close(one, team, 1e-6);
}

TEST_P(CudaTeam, ends_all_when_one_fails) {
    TRAINER_NEEDS_GPUS(GetParam());
    const auto start = std::chrono::steady_clock::now();
    Training team(small_network(), {.gpus = GetParam()}, SlabHome::device, 8);
    team.step(0);
    golden::Batch batch = golden::make_batch(1, 8, image_size, classes);
    batch.labels.back() = 99;  // the last GPU's
    EXPECT_EQ(error_of([&] {
                  team.executor.train(
                      {.images = batch.images.data(), .labels = batch.labels.data(), .batch = 8});
              }),
              "GPU " + std::to_string(GetParam() - 1) + " of " + std::to_string(GetParam()) +
                  ": label 99 for a network of 10 classes");
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST_P(CudaTeam, parts_in_good_order) {
    TRAINER_NEEDS_GPUS(GetParam());
    const int before = aborts_so_far();
    for (const bool trains : {true, false}) {
        Training team(small_network(), {.gpus = GetParam()}, SlabHome::host, 8);
        if (trains)
            team.step(0);
    }
    EXPECT_EQ(aborts_so_far(), before);
}

// Here the others never come to their part of the batch.
TEST_P(CudaTeam, waits_no_longer_than_it_is_told_to) {
    TRAINER_NEEDS_GPUS(GetParam());
    const auto first =
        make_cuda_backend({.gpus = GetParam(), .timeout = std::chrono::milliseconds(300)});
    Backend& last = *first->followers().back();
    const Network network = small_network();
    const auto slabs = Training::slabs(last, SlabHome::device);
    const ParameterArena parameters(network.parameters(), DType::f32,
                                    {std::string(slab::weights), std::string(slab::gradients)},
                                    slabs);
    const ParameterArena statistics(network.statistics(), DType::f32, {std::string(slab::weights)},
                                    slabs);
    Executor executor(network, last, parameters, statistics,
                      {.batch = 8 / GetParam(), .team_batch = 8});
    const golden::Batch batch = golden::make_batch(0, 8 / GetParam(), image_size, classes);
    const std::string error = error_of([&] {
        executor.train(
            {.images = batch.images.data(), .labels = batch.labels.data(), .batch = 8 / GetParam()},
            8);
    });
    EXPECT_NE(error.find("has waited for the others for 0.3 s"), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudaTeam, testing::Values(2, 4),
                         [](const auto& gpus) { return std::to_string(gpus.param); });

// --- between workers

struct Member {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Collective> group;
};

/// Runs `work` on each member of a group, a thread and a GPU each; what each threw.
std::vector<std::string> run_group(int size, bool deterministic, std::chrono::milliseconds timeout,
                                   const std::function<void()>& look,
                                   const std::function<void(Member&)>& work) {
    std::vector<std::string> errors(static_cast<size_t>(size));
    const std::string id = make_cuda_backend({})->make_group_id();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] {
            try {
                Member member;
                member.backend =
                    make_cuda_backend({.device = rank, .deterministic = deterministic});
                member.group = member.backend->join({.id = id,
                                                     .rank = rank,
                                                     .size = size,
                                                     .elements = 1000,
                                                     .timeout = timeout,
                                                     .look = look});
                work(member);
            } catch (const Error& error) {
                errors[static_cast<size_t>(rank)] = error.what();
            }
        });
    for (std::thread& thread : threads)
        thread.join();
    return errors;
}

float value_of(int rank, int64_t i) {
    return std::ldexp(1.0F + 0.37F * static_cast<float>((i * 7 + rank * 13) % 101), rank % 5 - 2);
}

class CudaGroup : public testing::TestWithParam<int> {};

TEST_P(CudaGroup, sums_in_the_order_of_ranks_bit_for_bit) {
    TRAINER_NEEDS_GPUS(GetParam());
    const int64_t elements = 1000;
    std::vector<float> expected(static_cast<size_t>(elements));
    for (int64_t i = 0; i < elements; ++i) {
        float sum = value_of(0, i);
        for (int rank = 1; rank < GetParam(); ++rank)
            sum += value_of(rank, i);
        expected[static_cast<size_t>(i)] = sum;
    }
    for (const bool deterministic : {true, false}) {
        const auto work = [&](Member& member) {
            for (const SlabHome home : {SlabHome::device, SlabHome::host}) {
                const Memory memory =
                    member.backend->allocate_slabs(static_cast<size_t>(elements + 1) * 4, home);
                auto* const slab = reinterpret_cast<float*>(memory.data.get());
                const int rank = member.group->rank();
                for (int64_t i = 0; i < elements; ++i)
                    slab[i] = value_of(rank, i);
                slab[elements] = static_cast<float>(rank + 1);
                member.group->sum(slab, {600, 400});
                member.group->sum(slab, {1, 599});
                member.group->sum(slab, {0, 1});
                member.group->sum(slab, {elements, 1});
                member.group->wait();
                const std::vector<float> sums(slab, slab + elements);
                if (deterministic) {
                    EXPECT_EQ(std::memcmp(sums.data(), expected.data(), sums.size() * 4), 0);
                } else {
                    EXPECT_LT(difference(expected, sums), 1e-6);
                }
                EXPECT_EQ(slab[elements], static_cast<float>(GetParam() * (GetParam() + 1) / 2));
            }
            EXPECT_EQ(member.group->counters().sent_bytes, 2 * 1001 * 4);
            member.group->close();
        };
        const int before = aborts_so_far();
        for (const std::string& error :
             run_group(GetParam(), deterministic, std::chrono::seconds(20), {}, work))
            EXPECT_EQ(error, "");
        EXPECT_EQ(aborts_so_far(), before);
    }
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudaGroup, testing::Values(1, 2, 3, 4),
                         [](const auto& gpus) { return std::to_string(gpus.param); });

TEST(CudaGroup, a_member_that_goes_ends_the_others) {
    TRAINER_NEEDS_GPUS(3);
    std::atomic<bool> gone{false};
    const auto look = [&] {
        if (gone)
            throw Error("worker 1 is lost");
    };
    const auto start = std::chrono::steady_clock::now();
    const auto errors = run_group(3, true, std::chrono::seconds(60), look, [&](Member& member) {
        const Memory memory = member.backend->allocate_slabs(4000, SlabHome::host);
        auto* const slab = reinterpret_cast<float*>(memory.data.get());
        member.group->sum(slab, {0, 1000});
        member.group->wait();
        if (member.group->rank() == 1) {
            gone = true;
            throw Error("killed");
        }
        member.group->sum(slab, {0, 1000});
        member.group->wait();
    });
    EXPECT_EQ(errors, (std::vector<std::string>{"worker 1 is lost", "killed", "worker 1 is lost"}));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(CudaGroup, nobody_waits_longer_than_the_timeout) {
    TRAINER_NEEDS_GPUS(2);
    std::atomic<bool> over{false};
    const auto errors = run_group(2, true, std::chrono::milliseconds(300), {}, [&](Member& member) {
        const Memory memory = member.backend->allocate_slabs(400, SlabHome::host);
        if (member.group->rank() == 1) {
            while (!over)
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
            return;
        }
        const struct End {
            std::atomic<bool>& flag;
            ~End() { flag = true; }
        } end{over};
        member.group->sum(reinterpret_cast<float*>(memory.data.get()), {0, 100});
        member.group->wait();
    });
    EXPECT_NE(errors[0].find("has waited for the others for 0.3 s"), std::string::npos)
        << errors[0];
    EXPECT_EQ(errors[1], "");
}

}  // namespace
}  // namespace trainer
