// Meshes of threads over every transport, against sums taken one after the other.
#include <cmath>
#include <cstring>
#include <future>
#include <thread>

#include "comm/mesh.h"
#include "tests/comm_helpers.h"

namespace trainer {
namespace {

using namespace testing_comm;

float value_of(int rank, int64_t i) {
    return std::ldexp(1.0F + 0.37F * static_cast<float>((i * 7 + rank * 13) % 101), rank % 5 - 2);
}

MeshOptions options_of(const TransportMaker& maker, int rank, int size, int64_t elements) {
    return {.rank = rank,
            .size = size,
            .elements = elements,
            .listen = "127.0.0.1:0",
            .terms = {{"model", "mlp"}},
            .timeout = 20s,
            .secret = nullptr,
            .transport = [&maker] { return maker.make(); }};
}

/// Runs `work` on each member of a mesh, a thread each; what each threw, and has told the others
/// where it `tells`.
std::vector<std::string> run(Way way, int size, int64_t elements,
                             const std::function<void(Mesh&)>& work, bool tells = false) {
    TransportMaker maker(way);
    std::vector<std::unique_ptr<Mesh>> members;
    std::vector<std::string> addresses;
    for (int rank = 0; rank < size; ++rank) {
        members.push_back(std::make_unique<Mesh>(options_of(maker, rank, size, elements)));
        addresses.push_back(members.back()->address());
    }
    std::vector<std::string> errors(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] {
            auto& member = members[static_cast<size_t>(rank)];
            errors[static_cast<size_t>(rank)] = error_of([&] {
                member->connect(addresses);
                work(*member);
            });
            if (errors[static_cast<size_t>(rank)] != "no error") {
                if (tells)
                    member->abort(errors[static_cast<size_t>(rank)]);
                member.reset();
            }
        });
    for (std::thread& thread : threads)
        thread.join();
    return errors;
}

class MeshTest : public testing::TestWithParam<Way> {};

TEST_P(MeshTest, SumsAreTakenInTheOrderOfRanksBitForBit) {
    for (const int size : {1, 2, 3, 5}) {
        const int64_t elements = 1000;
        std::vector<float> expected(static_cast<size_t>(elements));
        for (int64_t i = 0; i < elements; ++i) {
            float sum = value_of(0, i);
            for (int rank = 1; rank < size; ++rank)
                sum += value_of(rank, i);
            expected[static_cast<size_t>(i)] = sum;
        }
        const auto errors = run(GetParam(), size, elements, [&](Mesh& mesh) {
            for (int round = 0; round < 3; ++round) {
                std::vector<float> slab(static_cast<size_t>(elements));
                for (int64_t i = 0; i < elements; ++i)
                    slab[static_cast<size_t>(i)] = value_of(mesh.rank(), i);
                // From the end, as gradients come, in ranges that parts of the slab cut.
                mesh.sum(slab.data(), {600, 400});
                mesh.sum(slab.data(), {1, 599});
                float one = static_cast<float>(mesh.rank() + 1);
                mesh.sum(&one, {0, 1});
                mesh.sum(slab.data(), {0, 1});
                mesh.wait();
                EXPECT_EQ(std::memcmp(slab.data(), expected.data(), slab.size() * sizeof(float)), 0)
                    << size << " members, round " << round;
                EXPECT_EQ(one, static_cast<float>(size * (size + 1) / 2));
            }
            const CollectiveCounters counters = mesh.counters();
            EXPECT_EQ(counters.sent_bytes, 3 * 1001 * 4);
            EXPECT_EQ(counters.received_bytes, 3 * 1001 * 4);
            mesh.close();
        });
        for (const std::string& error : errors)
            EXPECT_EQ(error, "no error");
    }
}

TEST_P(MeshTest, AMemberThatGoesEndsTheSumsOfAll) {
    const auto begin = Clock::now();
    const auto errors = run(GetParam(), 3, 100, [&](Mesh& mesh) {
        std::vector<float> slab(100, 1.0F);
        mesh.sum(slab.data(), {0, 100});
        mesh.wait();
        if (mesh.rank() == 1)
            throw Error("its disk is full");
        mesh.sum(slab.data(), {0, 100});
        mesh.wait();
    });
    EXPECT_EQ(errors[1], "its disk is full");
    for (const size_t rank : {0U, 2U})
        EXPECT_NE(errors[rank].find("worker 1"), std::string::npos) << errors[rank];
    EXPECT_LT(Clock::now() - begin, 10s) << "well within the timeout";
}

TEST_P(MeshTest, AMemberTellsTheOthersWhyItStops) {
    const auto errors = run(
        GetParam(), 3, 100,
        [&](Mesh& mesh) {
            std::vector<float> slab(100, 1.0F);
            if (mesh.rank() == 2)
                throw Error("the loss is not a number");
            mesh.sum(slab.data(), {0, 100});
            mesh.wait();
        },
        true);
    for (const size_t rank : {0U, 1U})
        EXPECT_NE(errors[rank].find("the loss is not a number"), std::string::npos) << errors[rank];
}

TEST_P(MeshTest, OtherRangesThanTheOthersAreRefused) {
    const auto errors = run(GetParam(), 2, 100, [&](Mesh& mesh) {
        std::vector<float> slab(100, 1.0F);
        mesh.sum(slab.data(), {mesh.rank(), 50});
        mesh.wait();
    });
    for (const std::string& error : errors)
        EXPECT_NE(error.find("not of one job"), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(Transports, MeshTest, testing::Values(Way::inproc, Way::local, Way::tcp),
                         [](const auto& way) { return name_of(way.param); });

}  // namespace
}  // namespace trainer
