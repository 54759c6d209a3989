// A server that is taken down as soon as all workers have left used to take its last good-byes with
// it on a slow link, where they wait for their time to leave; workers then ended with "the server
// is lost" though the run was done.
#include <thread>

#include "comm/link.h"
#include "comm/server_endpoint.h"
#include "tests/comm_helpers.h"

namespace trainer {
namespace {

using namespace testing_comm;

class IdleServer : public ServerHandler {
  public:
    void joined(int) override {}
    void push(int, int64_t, Range, uint8_t, PooledBytes) override {}
    void pull(const Request&) override {}
    void call(const Request&, const std::string&, PooledBytes) override {}
    void note(int, int64_t, const std::string&, PooledBytes) override {}
    void left(int) override { ++leavers; }
    void lost(int, const std::string& who, const std::string& reason) override {
        throw Error(who + " is lost: " + reason);
    }

    int leavers = 0;
};

class GoodbyeTest : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, GoodbyeTest, ::testing::Values(Way::inproc, Way::tcp, Way::local),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(GoodbyeTest, ReachesEveryWorkerBeforeTheServersGo) {
    constexpr int workers = 3, servers = 2;
    TransportMaker maker(GetParam());
    TransportOptions slow{.timeout = 20s};
    slow.emulate.latency = 40ms;

    LinkOptions link;
    link.cuts = equal_cuts(100, servers);
    link.timeout = 20s;
    std::vector<IdleServer> handlers(servers);
    std::vector<std::unique_ptr<ServerEndpoint>> endpoints;
    for (int s = 0; s < servers; ++s) {
        ServerOptions options;
        options.workers = workers;
        options.cuts = link.cuts;
        options.timeout = 20s;
        endpoints.push_back(std::make_unique<ServerEndpoint>(maker.make(slow), options,
                                                             handlers[static_cast<size_t>(s)]));
        link.servers.push_back(endpoints.back()->listening().bound);
    }

    std::vector<std::thread> threads;
    for (auto& endpoint : endpoints)
        threads.emplace_back([&endpoint] {
            while (!endpoint->wait_finished(10ms)) {
            }
            endpoint.reset();
        });
    for (int w = 0; w < workers; ++w)
        threads.emplace_back([&] {
            EXPECT_EQ(error_of([&] { Link(maker.make({.timeout = 20s}), link).close(); }),
                      "no error");
        });
    for (std::thread& thread : threads)
        thread.join();
    for (const IdleServer& handler : handlers)
        EXPECT_EQ(handler.leavers, workers);
}

}  // namespace
}  // namespace trainer
