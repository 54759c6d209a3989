// Emulated links against a stopwatch: bandwidth and latency, both ways, over every transport.
#include <algorithm>
#include <atomic>
#include <ctime>
#include <future>
#include <thread>

#include "comm/emulate.h"
#include "tests/comm_helpers.h"

namespace trainer {
namespace {

using namespace testing_comm;

double ms(Clock::duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
}

TEST(LinkShaperTest, Arithmetic) {
    LinkShaper shaper({.bytes_per_second = 1e6, .latency = 5ms});
    const Clock::time_point t0{};
    const auto first = shaper.book(t0 + 10ms, 3000);  // 3 ms of link
    EXPECT_EQ(first, t0 + 10ms);
    EXPECT_EQ(shaper.arrival(first, 0), t0 + 15ms);
    EXPECT_EQ(shaper.arrival(first, 3000), t0 + 18ms);
    const auto second = shaper.book(t0 + 11ms, 1000);  // waits for the first
    EXPECT_EQ(second, t0 + 13ms + 1ns);
    EXPECT_EQ(shaper.arrival(second, 1000), t0 + 19ms + 1ns);
    EXPECT_EQ(shaper.book(t0 + 50ms, 1000), t0 + 50ms);  // nothing is saved up while idle

    LinkShaper only_latency({.bytes_per_second = 0, .latency = 2ms});
    EXPECT_EQ(only_latency.arrival(only_latency.book(t0, 1 << 30), 1 << 30), t0 + 2ms);
    EXPECT_FALSE(Emulation{}.active());
}

/// A client and a server that are connected, each with its own end of the link.
struct Pair {
    struct Arrivals : Recorder {
        void received(const Header& header, std::span<std::byte> payload) override {
            at = Clock::now();
            Recorder::received(header, payload);
        }
        std::atomic<Clock::time_point> at{};
    };

    Pair(Way way, Emulation emulation) {
        const TransportMaker maker(way);
        TransportOptions options;
        options.emulate = emulation;
        server = maker.make(options);
        client = maker.make(options);
        std::promise<std::shared_ptr<Connection>> opened;
        const auto listening = server->listen("127.0.0.1:0", [&](auto connection) {
            connection->allow_payload(1 << 30);
            opened.set_value(connection);
            return at_server;
        });
        to_server = client->connect(listening.bound, "server 0", at_client, Clock::now() + 10s);
        to_server->allow_payload(1 << 30);
        to_client = opened.get_future().get();
    }

    std::shared_ptr<Arrivals> at_server = std::make_shared<Arrivals>();
    std::shared_ptr<Arrivals> at_client = std::make_shared<Arrivals>();
    std::shared_ptr<Connection> to_server;
    std::shared_ptr<Connection> to_client;
    std::unique_ptr<Transport> server;
    std::unique_ptr<Transport> client;
};

/// Sends a payload and takes the time until it is there, which is to be `expected` ms up to
/// `tolerance`. It may never be early; as this machine may be busy, it has ten tries to be in time.
void expect_trip(double expected, double tolerance, Connection& from, Pair::Arrivals& to,
                 std::span<const std::byte> payload) {
    double best = 1e9;
    for (int i = 0; i < 10 && best > expected + tolerance; ++i) {
        Completions completions;
        Header header;
        header.kind = MessageKind::push;
        header.payload = payload.size();
        const auto begin = Clock::now();
        from.send(header, {payload}, completions.one());
        to.next();
        best = std::min(best, ms(to.at.load() - begin));
        EXPECT_GT(best, expected - tolerance);
        EXPECT_TRUE(completions.wait());
    }
    EXPECT_NEAR(best, expected, tolerance);
}

class EmulationTest : public ::testing::TestWithParam<Way> {
  protected:
    void SetUp() override {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
        GTEST_SKIP() << "a sanitizer's code is too slow for the stopwatch";
#endif
    }
};
INSTANTIATE_TEST_SUITE_P(Ways, EmulationTest, ::testing::Values(Way::inproc, Way::tcp, Way::local),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(EmulationTest, TenMegabytesAtOneGigabitTakeEightyMilliseconds) {
    Pair pair(GetParam(), {.bytes_per_second = 125e6});
    const auto payload = pattern(10'000'000, 1);
    expect_trip(80, 4, *pair.to_server, *pair.at_server, payload);
    expect_trip(80, 4, *pair.to_client, *pair.at_client, payload);
}

TEST_P(EmulationTest, LatencyIsThatOfTheLink) {
    Pair pair(GetParam(), {.latency = 5ms});
    const auto payload = pattern(100, 1);
    expect_trip(5, 1, *pair.to_server, *pair.at_server, payload);
    expect_trip(5, 1, *pair.to_client, *pair.at_client, payload);
}

TEST_P(EmulationTest, BothTogetherAndBothWaysAtOnce) {
    Pair pair(GetParam(), {.bytes_per_second = 50e6, .latency = 20ms});
    const auto payload = pattern(2'000'000, 1);  // 40 ms
    std::thread other([&] { expect_trip(60, 4, *pair.to_server, *pair.at_server, payload); });
    expect_trip(60, 4, *pair.to_client, *pair.at_client, payload);
    other.join();
}

TEST_P(EmulationTest, MessagesQueueBehindEachOtherInOrder) {
    Pair pair(GetParam(), {.bytes_per_second = 10e6, .latency = 10ms});
    const auto payload = pattern(50'000, 1);  // 5 ms each
    double sending = 1e9, all_there = 1e9;    // the best of five
    for (int attempt = 0; attempt < 5; ++attempt) {
        Completions completions;
        const auto begin = Clock::now();
        for (int i = 0; i < 10; ++i) {
            Header header;
            header.kind = MessageKind::push;
            header.step = i;
            header.payload = payload.size();
            pair.to_server->send(header, {std::span(payload)}, completions.one());
        }
        sending = std::min(sending, ms(Clock::now() - begin));
        for (int i = 0; i < 10; ++i) {
            const auto message = pair.at_server->next();
            EXPECT_EQ(message.header.step, i);
            EXPECT_EQ(message.payload, payload);
            EXPECT_GT(ms(Clock::now() - begin), 10 + 5 * (i + 1) - 0.1);  // never early
        }
        all_there = std::min(all_there, ms(pair.at_server->at.load() - begin));
        EXPECT_TRUE(completions.wait());
        EXPECT_EQ(completions.sent(), 10);
    }
    EXPECT_LT(sending, 10);  // send() itself does not wait
    EXPECT_NEAR(all_there, 60, 6);
}

TEST_P(EmulationTest, WaitingCostsNoProcessorTime) {
    Pair pair(GetParam(), {.bytes_per_second = 5e6});
    const auto payload = pattern(1'000'000, 1);  // 200 ms
    const std::clock_t before = std::clock();
    const auto begin = Clock::now();
    expect_trip(200, 20, *pair.to_server, *pair.at_server, payload);
    const double busy = 1e3 * static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    EXPECT_LT(busy, ms(Clock::now() - begin) / 3);
}

}  // namespace
}  // namespace trainer
