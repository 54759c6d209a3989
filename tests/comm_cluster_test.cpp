// Links and server endpoints together: whole clusters of threads over every transport.
#include <thread>

#include "tests/comm_cluster_helpers.h"

namespace trainer {
namespace {

using namespace testing_comm;

class ClusterTest : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, ClusterTest, ::testing::Values(Way::inproc, Way::tcp, Way::local),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(ClusterTest, SumsInClosedForm) {
    constexpr int steps = 3;
    for (int workers = 1; workers <= 4; ++workers)
        for (int servers = 1; servers <= 3; ++servers)
            for (const int64_t size : {0, 1, 2, 1001, 200'003}) {
                Cluster cluster(GetParam(), workers, servers, size);
                std::vector<std::thread> threads;
                for (int w = 0; w < workers; ++w)
                    threads.emplace_back([&, w] {
                        const auto link = cluster.link(w);
                        EXPECT_EQ(link->rank(), w);
                        EXPECT_EQ(link->workers(), workers);
                        std::vector<float> mine(static_cast<size_t>(size));
                        std::vector<float> pulled(mine.size(), -1.0f);
                        for (int step = 0; step < steps; ++step) {
                            for (size_t i = 0; i < mine.size(); ++i)
                                mine[i] = static_cast<float>((w + 1) * (step + 1)) +
                                          static_cast<float>(i % 7);
                            // In three ranges, as backward finishes them: from the end.
                            std::vector<Ticket> tickets;
                            for (int part = 2; part >= 0; --part)
                                tickets.push_back(
                                    link->push(step, part_of(size, part, 3),
                                               reinterpret_cast<const std::byte*>(mine.data())));
                            const Ticket pull = link->pull(
                                step + 1, {0, size}, reinterpret_cast<std::byte*>(pulled.data()));
                            for (const Ticket& ticket : tickets)
                                link->wait(ticket);
                            link->wait(pull);
                            EXPECT_TRUE(link->done(pull));
                            const int done = (step + 1) * (step + 2) / 2;
                            const int ranks = workers * (workers + 1) / 2;
                            for (size_t i = 0; i < pulled.size(); ++i)
                                ASSERT_EQ(pulled[i], static_cast<float>(done * ranks) +
                                                         static_cast<float>((step + 1) * workers) *
                                                             static_cast<float>(i % 7))
                                    << i;
                            for (int s = 0; s < servers; ++s)  // or the next step overtakes
                                link->call(s, step, "barrier", {});
                        }
                        const LinkCounters counters = link->counters();
                        EXPECT_EQ(counters.push_bytes, steps * size * 4);
                        EXPECT_EQ(counters.pull_bytes, steps * size * 4);
                        link->close();
                    });
                for (int s = 0; s < servers; ++s) {
                    ServerEndpoint& endpoint = *cluster.servers[static_cast<size_t>(s)].endpoint;
                    endpoint.wait_for_workers(20s);
                    EXPECT_EQ(endpoint.index(), s);
                    EXPECT_TRUE(endpoint.wait_finished(20s));
                    EXPECT_EQ(endpoint.counters().push_bytes,
                              4 * steps * workers * endpoint.shard().count);
                    EXPECT_EQ(endpoint.counters().pull_bytes,
                              4 * steps * workers * endpoint.shard().count);
                }
                for (std::thread& thread : threads)
                    thread.join();
            }
}

TEST_P(ClusterTest, CallsAndNotesOfAllSizes) {
    Cluster cluster(GetParam(), 1, 2, 100);
    {
        const auto link = cluster.link();
        for (const size_t size : {0, 1, 1001, 5'000'000})
            for (const int server : {0, 1}) {
                const auto body = pattern(size, 5);
                const std::span<const std::byte> all(body);
                const PooledBytes reply =
                    link->call(server, 3, "echo", {all.first(size / 2), all.subspan(size / 2)});
                EXPECT_TRUE(std::equal(body.begin(), body.end(), reply.bytes().begin(),
                                       reply.bytes().end()));
                link->note(server, 9, "metrics", body);
            }
        std::optional<Note> note;
        for (int i = 0; i < 8; ++i) {
            for (int tries = 0; !(note = link->take_note()) && tries < 5000; ++tries)
                std::this_thread::sleep_for(1ms);
            ASSERT_TRUE(note.has_value());
            EXPECT_EQ(note->name, "seen");
            EXPECT_EQ(note->step, 9);
        }
        link->close();
    }
    EXPECT_TRUE(cluster.servers[0].endpoint->wait_finished(10s));
    EXPECT_TRUE(cluster.servers[1].endpoint->wait_finished(10s));
    cluster.servers[0].endpoint.reset();
    EXPECT_EQ(
        cluster.servers[0].handler.events,
        (std::vector<std::string>{"joined 0", "note 0 9 metrics 0", "note 0 9 metrics 1",
                                  "note 0 9 metrics 1001", "note 0 9 metrics 5000000", "left 0"}));
}

TEST_P(ClusterTest, RanksByArrivalOrAsWished) {
    Cluster cluster(GetParam(), 4, 2, 10);
    const auto two = cluster.link(2);
    const auto first = cluster.link();
    const auto second = cluster.link();
    const auto third = cluster.link();
    EXPECT_EQ(two->rank(), 2);
    EXPECT_EQ(first->rank(), 0);
    EXPECT_EQ(second->rank(), 1);
    EXPECT_EQ(third->rank(), 3);
    cluster.servers[1].endpoint->wait_for_workers(10s);
}

TEST_P(ClusterTest, RefusalsSayWhatDiffersAtBothEnds) {
    Cluster cluster(GetParam(), 2, 2, 100);
    const std::string server0 = "server 0 at " + cluster.worker.servers[0] + " refused: ";
    const auto refusal = [&](const std::function<void(LinkOptions&)>& change, int rank = -1) {
        LinkOptions options = cluster.worker;
        change(options);
        const std::string error = error_of([&] { cluster.link(options, rank); });
        EXPECT_TRUE(error.starts_with(server0)) << error;
        return error.starts_with(server0) ? error.substr(server0.size()) : "";
    };
    EXPECT_TRUE(refusal([](LinkOptions& o) { o.terms[1].second = "0.2"; }, 1)
                    .starts_with("optim.lr is 0.1 on the server and 0.2 on worker 1 at "));
    EXPECT_TRUE(refusal([](LinkOptions& o) { o.terms[0].second = "vgg11, 9 parameters"; })
                    .starts_with("model is mlp, 100 parameters on the server and vgg11, 9 "
                                 "parameters on the worker at "));
    EXPECT_TRUE(refusal([](LinkOptions& o) { o.terms.clear(); }).find("not set on the worker") !=
                std::string::npos);
    EXPECT_TRUE(refusal([](LinkOptions& o) {
                    o.servers.pop_back();
                    o.cuts = equal_cuts(100, 1);
                }).starts_with("the run has 2 servers here and 1 on the worker at "));
    EXPECT_EQ(refusal([](LinkOptions&) {}, 2),
              "there is no rank 2 among 2 workers: ranks count from 0");

    const auto one = cluster.link(1);
    EXPECT_TRUE(refusal([](LinkOptions&) {}, 1).starts_with("rank 1 is taken by worker 1 on "));

    // The servers go on: the run is still complete with a worker that fits.
    const std::string missing = error_of([&] { cluster.servers[0].endpoint->wait_finished(1ms); });
    EXPECT_EQ(missing, "no error");
    const auto zero = cluster.link();
    EXPECT_EQ(zero->rank(), 0);
    EXPECT_EQ(refusal([](LinkOptions&) {}),
              "all 2 workers have joined already: raise distributed.workers everywhere, or start "
              "fewer");
}

TEST_P(ClusterTest, ServersInAnotherOrderAreNoticed) {
    Cluster cluster(GetParam(), 2, 2, 100);
    const auto zero = cluster.link();
    LinkOptions swapped = cluster.worker;
    std::swap(swapped.servers[0], swapped.servers[1]);
    EXPECT_NE(error_of([&] { cluster.link(swapped); })
                  .find("takes this server for server 0, but it is server 1: list the servers in "
                        "the same order on every worker"),
              std::string::npos);
}

TEST_P(ClusterTest, AWorkerThatNeverComesIsNamed) {
    Cluster cluster(GetParam(), 2, 1, 10);
    const auto zero = cluster.link();
    LinkOptions wrong = cluster.worker;
    wrong.terms[1].second = "0.2";
    EXPECT_NE(error_of([&] { cluster.link(wrong); }), "no error");
    const std::string error =
        error_of([&] { cluster.servers[0].endpoint->wait_for_workers(200ms); });
    EXPECT_TRUE(error.starts_with("1 of 2 workers have not come to the server at " +
                                  cluster.worker.servers[0] +
                                  " within 0.20 s (there are: worker 0 on "))
        << error;
    EXPECT_NE(error.find("(one was refused: optim.lr is 0.1"), std::string::npos) << error;
    // And the worker that waits is told.
    const std::string told = error_of([&] { zero->call(0, 0, "barrier", {}); });
    EXPECT_NE(told.find("has failed: 1 of 2 workers have not come"), std::string::npos) << told;
}

TEST_P(ClusterTest, AServerThatIsNotThere) {
    Cluster cluster(GetParam(), 1, 2, 10, 300ms);
    cluster.servers.pop_back();
    const auto begin = Clock::now();
    const std::string error = error_of([&] { cluster.link(); });
    EXPECT_TRUE(error.starts_with("cannot reach server 1 at " + cluster.worker.servers[1]))
        << error;
    EXPECT_LT(Clock::now() - begin, 3s);
    // Server 0 had welcomed it, and says that it is gone.
    const std::string lost = error_of([&] { cluster.servers[0].endpoint->wait_finished(5s); });
    EXPECT_TRUE(lost.starts_with("worker 0 on ")) << lost;
    EXPECT_NE(lost.find(") is lost: it closed the connection"), std::string::npos) << lost;
}

TEST_P(ClusterTest, WaitsEndInTimeAndNameTheServer) {
    Cluster cluster(GetParam(), 2, 2, 10, 300ms);
    const auto zero = cluster.link();
    const auto one = cluster.link();
    std::vector<float> model(10);
    const auto begin = Clock::now();
    const Ticket ticket = zero->pull(1, {0, 10}, reinterpret_cast<std::byte*>(model.data()));
    EXPECT_FALSE(zero->done(ticket));
    const std::string error = error_of([&] { zero->wait(ticket); });  // worker 1 pushes nothing
    EXPECT_EQ(error, "worker 0 has waited 0.30 s for the pull of step 1 with server 0 at " +
                         cluster.worker.servers[0] + ", server 1 at " + cluster.worker.servers[1] +
                         ": it hangs, or waits for another worker; see the logs, or raise "
                         "comm.timeout");
    EXPECT_LT(Clock::now() - begin, 3s);
    EXPECT_EQ(error_of([&] { zero->push(0, {0, 10}, nullptr); }), error);  // it stays that way
    // Everybody else ends too, and knows why.
    const std::string at_server =
        error_of([&] { cluster.servers[1].endpoint->wait_finished(10s); });
    EXPECT_NE(at_server.find("it has failed: worker 0 has waited"), std::string::npos) << at_server;
    const std::string at_other = error_of([&] { one->call(1, 0, "barrier", {}, 10s); });
    EXPECT_NE(at_other.find("worker 0 has waited"), std::string::npos) << at_other;
}

TEST_P(ClusterTest, AHandlersErrorReachesEverybody) {
    Cluster cluster(GetParam(), 2, 1, 10);
    const auto zero = cluster.link();
    const auto one = cluster.link();
    const std::string expected =
        "server 0 at " + cluster.worker.servers[0] + " has failed: the disk of the server is full";
    EXPECT_EQ(error_of([&] { zero->call(0, 0, "fail", {}); }), expected);
    EXPECT_EQ(error_of([&] { one->call(0, 0, "barrier", {}); }), expected);
    EXPECT_EQ(error_of([&] { cluster.servers[0].endpoint->wait_finished(10s); }),
              "the disk of the server is full");
}

TEST_P(ClusterTest, AServerThatGoesAwayIsNamed) {
    Cluster cluster(GetParam(), 1, 2, 10);
    const auto link = cluster.link();
    cluster.servers.pop_back();
    const std::string error = error_of([&] { link->call(1, 0, "barrier", {}); });
    EXPECT_TRUE(error.starts_with("server 1 at " + cluster.worker.servers[1] + " is lost ("))
        << error;
}

TEST_P(ClusterTest, AFailedWorkerSaysWhy) {
    Cluster cluster(GetParam(), 2, 1, 10);
    const auto zero = cluster.link();
    zero->fail("its images cannot be read");
    const std::string error = error_of([&] { cluster.servers[0].endpoint->wait_finished(10s); });
    EXPECT_TRUE(error.starts_with("worker 0 on ")) << error;
    EXPECT_TRUE(error.ends_with(") is lost: it has failed: its images cannot be read")) << error;
}

TEST_P(ClusterTest, MessagesOutOfPlaceEndTheRunWithAReason) {
    Cluster cluster(GetParam(), 1, 2, 10);
    LinkOptions other_cuts = cluster.worker;
    other_cuts.cuts = {0, 7, 10};  // the servers' are 0, 5, 10
    std::vector<float> slab(10);  // outlives the link: what goes to server 1 may still be under way
    const auto link = cluster.link(other_cuts);
    const Ticket push = link->push(0, {0, 10}, reinterpret_cast<const std::byte*>(slab.data()));
    const std::string error = error_of([&] { cluster.servers[0].endpoint->wait_finished(10s); });
    EXPECT_TRUE(error.ends_with("its push of elements 0 to 7 is not for this server")) << error;
}

// Each end on its own: two transports, of which one or both give signs of life.
TEST(Lease, WhoGivesNoSignOfLifeIsLost) {
    const TransportMaker maker(Way::tcp);
    for (const bool both : {true, false}) {
        const auto here = maker.make({.timeout = 10s, .lease = 400ms});
        const auto there = maker.make({.timeout = 10s, .lease = 400ms});
        const auto watching = std::make_shared<Recorder>(), watched = std::make_shared<Recorder>();
        const Listening listening =
            here->listen("127.0.0.1:0", [&](const std::shared_ptr<Connection>& connection) {
                connection->keep_alive();
                return watching;
            });
        const auto connection = there->connect(listening.bound, "it", watched, Clock::now() + 5s);
        if (both)
            connection->keep_alive();
        const std::string lost = watching->wait_lost(both ? 1500ms : 10s);
        if (both)
            EXPECT_EQ(lost, "still connected");
        else
            EXPECT_TRUE(lost.starts_with("it has given no sign of life for 0.40 s, the last at "))
                << lost;
    }
}

TEST(Shards, CutsAndPieces) {
    EXPECT_EQ(equal_cuts(10, 3), (Cuts{0, 4, 7, 10}));
    EXPECT_EQ(equal_cuts(1, 3), (Cuts{0, 1, 1, 1}));
    EXPECT_EQ(equal_cuts(0, 2), (Cuts{0, 0, 0}));
    EXPECT_EQ(split({0, 4, 7, 10}, {2, 6}),
              (std::vector<Piece>{{0, {2, 2}}, {1, {4, 3}}, {2, {7, 1}}}));
    EXPECT_EQ(split({0, 1, 1, 1}, {0, 1}), (std::vector<Piece>{{0, {0, 1}}}));
    EXPECT_EQ(split({0, 4, 7, 10}, {4, 0}), std::vector<Piece>{});

    TensorTable table;
    table.add("a", {90}, true, {});
    table.add("b", {5}, true, {});
    table.add("c", {5}, true, {});
    EXPECT_EQ(tensor_cuts(table, 2), (Cuts{0, 90, 100}));
    EXPECT_EQ(tensor_cuts(table, 4), (Cuts{0, 0, 90, 90, 100}));
}

TEST(BufferPoolTest, UsesMemoryAgain) {
    const auto pool = BufferPool::make();
    std::byte* first = nullptr;
    {
        const PooledBytes buffer = pool->take(100'000);
        EXPECT_EQ(buffer.bytes().size(), 100'000u);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.bytes().data()) % 64, 0u);
        first = buffer.bytes().data();
    }
    PooledBytes again = pool->take(90'000);
    EXPECT_EQ(again.bytes().data(), first);
    EXPECT_EQ(again.as<float>().size(), 22'500u);
    const PooledBytes other = pool->take(90'000);
    EXPECT_NE(other.bytes().data(), first);
    again = PooledBytes();
    EXPECT_NE(pool->take(100).bytes().data(), first);  // too large a one is kept for later
    EXPECT_EQ(pool->take(0).bytes().size(), 0u);
}

}  // namespace
}  // namespace trainer
