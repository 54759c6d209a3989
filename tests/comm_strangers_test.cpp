// Who does not belong to a run: what is done about it, and what it may cost.
#include <sys/stat.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <thread>

#include "tests/comm_cluster_helpers.h"

namespace trainer {
namespace {

using namespace testing_comm;

TEST(Strangers, DoNotDisturb) {
    Cluster cluster(Way::tcp, 1, 1, 10, 300ms);
    const auto link = cluster.link();
    const std::string& address = cluster.worker.servers[0];

    RawClient garbage(address);
    garbage.send(std::string(1000, 'x'));
    RawClient pushes(address);
    pushes.send(Header{MessageKind::push, 0, 0, 0, 0, {0, 1}, 0}, pattern(4, 1));
    EXPECT_NE(pushes.read_all().find("instead of a hello"), std::string::npos);

    std::deque<RawClient> silent;  // as many as may wait, and more
    for (int i = 0; i < 70; ++i)
        silent.emplace_back(address);
    int turned_away = 0;
    for (RawClient& client : silent) {  // all are closed, none is welcomed
        const std::string said = client.read_all();
        turned_away += said.find("too many connections") != std::string::npos;
        EXPECT_TRUE(said.empty() || said.find("too many connections") != std::string::npos) << said;
    }
    EXPECT_GE(turned_away, 5);
    const auto body = pattern(100, 1);
    EXPECT_EQ(link->call(0, 0, "echo", {std::span(body)}).bytes().size(), 100u);
    link->close();
    EXPECT_TRUE(cluster.servers[0].endpoint->wait_finished(10s));
}

TEST(Strangers, TheSameIsToldOnceForAWhile) {
    std::mutex mutex;
    std::vector<std::string> lines;
    TransportMaker maker(Way::tcp);
    ServerOptions options;
    options.cuts = equal_cuts(10, 1);
    options.log = [&](const std::string& line) {
        const std::lock_guard lock(mutex);
        lines.push_back(line);
    };
    Server server(maker.make({}), options);
    const auto send = [&](const std::string& text) {
        RawClient garbage(server.endpoint->listening().bound);
        garbage.send(text + std::string(100, 'x'));
        EXPECT_NE(garbage.read_all().find("not this program's protocol"), std::string::npos);
    };
    for (int i = 0; i < 5; ++i)
        send("one");
    send("two");
    const auto told = [&] {
        const std::lock_guard lock(mutex);
        return lines;
    };
    const auto begin = Clock::now();
    while (told().size() < 2 && Clock::now() < begin + 5s)
        std::this_thread::sleep_for(5ms);
    ASSERT_EQ(told().size(), 2u);
    EXPECT_NE(told()[0].find("came to nothing: what it sent"), std::string::npos) << told()[0];
    EXPECT_NE(told()[1].find("\"two"), std::string::npos) << told()[1];
    while (told().size() < 3 && Clock::now() < begin + 30s)
        std::this_thread::sleep_for(20ms);
    ASSERT_EQ(told().size(), 3u);
    EXPECT_TRUE(told()[2].starts_with("a connection from 127.0.0.1 came to nothing: "))
        << told()[2];
    EXPECT_TRUE(told()[2].ends_with(" (4 more like it)")) << told()[2];
}

// A byte now and then is progress for a connection, but no hello.
TEST(Strangers, WhoDripsIsTurnedAwayInTime) {
    Cluster cluster(Way::tcp, 1, 1, 10, 300ms);
    const auto link = cluster.link();
    RawClient drips(cluster.worker.servers[0]);
    const auto hello = encode(Header{MessageKind::hello, 0, -1, 0, 0, {}, 1000});
    const auto begin = Clock::now();
    std::atomic<bool> over{false};
    std::thread drip([&] {
        for (size_t i = 0; i < hello.size() && !over; ++i) {
            drips.try_send(std::span(hello).subspan(i, 1));
            std::this_thread::sleep_for(50ms);
        }
    });
    EXPECT_EQ(drips.read_all(), "");
    EXPECT_LT(Clock::now() - begin, 2s);  // all of it would take 2.6 s
    over = true;
    drip.join();
    link->close();
}

// A server that was taken down while somebody called ended with a segmentation fault.
TEST(Strangers, MayCallWhileTheServerGoes) {
    for (int i = 0; i < 20; ++i) {
        Cluster cluster(Way::tcp, 1, 1, 10);
        std::deque<RawClient> callers;
        for (int k = 0; k < 30; ++k)
            callers.emplace_back(cluster.worker.servers[0]);
        cluster.servers[0].endpoint.reset();
    }
}

/// Bytes of memory that this process has in use.
size_t resident_bytes() {
    std::ifstream status("/proc/self/statm");
    size_t all = 0, resident = 0;
    status >> all >> resident;
    return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(Strangers, TakeNoMoreMemoryThanThoseWhoMayWait) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "the sanitizer's own memory counts too";
#endif
    Cluster cluster(Way::tcp, 1, 1, 10, 5s);
    const auto link = cluster.link();
    const size_t before = resident_bytes();
    const std::vector<std::byte> almost(stranger_frame_cap - 1);
    const auto hello = encode(Header{MessageKind::hello, 0, -1, 0, 0, {}, stranger_frame_cap});
    std::deque<RawClient> half;  // each says all of the largest hello there may be but its end
    for (int i = 0; i < 300; ++i) {
        half.emplace_back(cluster.worker.servers[0]);
        half.back().try_send(hello);
        half.back().try_send(almost);
    }
    const auto body = pattern(100, 1);
    EXPECT_EQ(link->call(0, 0, "echo", {std::span(body)}).bytes().size(), 100u);
    const size_t bound = 64 * stranger_frame_cap;  // comm/SECURITY.md
    EXPECT_LT(resident_bytes() - std::min(before, resident_bytes()), bound + (24 << 20));
    link->close();
}

#ifdef TRAINER_HAVE_OPENSSL
TEST(Strangers, DoNotGuessTheSecret) {
    const std::string file = ::testing::TempDir() + "comm_cluster_secret";
    std::ofstream(file) << "sixteen bytes or more\n";
    ::chmod(file.c_str(), 0600);
    const auto secret = Secret::read(file);
    SumServer handler(1);
    ServerOptions options;
    options.cuts = equal_cuts(10, 1);
    options.secret = secret;
    const TransportMaker maker(Way::tcp);
    ServerEndpoint endpoint(maker.make(), options, handler);
    const std::string address = endpoint.listening().bound;
    Header header;
    header.kind = MessageKind::hello;
    const std::vector<std::byte> hello = encode(Hello{.nonce = Secret::draw()});

    RawClient none(address);
    none.send(header, encode(Hello{}));
    EXPECT_NE(none.read_all().find("wants the run's secret"), std::string::npos);
    RawClient hasty(address);  // does not wait for the challenge
    hasty.send(header, hello);
    hasty.send(Header{MessageKind::push, 0, 0, 0, 0, {0, 1}, 0}, pattern(4, 1));
    EXPECT_NE(hasty.read_all().find("instead of a proof"), std::string::npos);
    RawClient guess(address);
    guess.send(header, hello);
    header.kind = MessageKind::proof;
    guess.send(header, pattern(32, 7));
    EXPECT_NE(guess.read_all().find("its secret is not this server's"), std::string::npos);
    RawClient shorter(address);
    header.kind = MessageKind::hello;
    shorter.send(header, hello);
    header.kind = MessageKind::proof;
    shorter.send(header, {});
    EXPECT_NE(shorter.read_all().find("its secret is not this server's"), std::string::npos);

    // Proofs differ by number, by message and by role.
    const Nonce a = Secret::draw(), b = Secret::draw();
    EXPECT_NE(a, b);
    EXPECT_EQ(secret->of_worker(a, hello), secret->of_worker(a, hello));
    EXPECT_NE(secret->of_worker(a, hello), secret->of_worker(b, hello));
    EXPECT_NE(secret->of_server(a, b, 0, 1), secret->of_server(b, a, 0, 1));
    EXPECT_NE(secret->of_server(a, b, 0, 1), secret->of_server(a, b, 0, 2));

    LinkOptions link;
    link.servers = {address};
    link.cuts = options.cuts;
    link.secret = secret;
    Link(maker.make(), link).close();
    EXPECT_TRUE(endpoint.wait_finished(10s));
    std::remove(file.c_str());
}
#endif

TEST(Strangers, AMalformedHelloIsRefused) {
    Cluster cluster(Way::tcp, 1, 1, 10);
    RawClient client(cluster.worker.servers[0]);
    client.send(Header{MessageKind::hello, 0, -1, 0, 0, {}, 0}, pattern(50, 1));
    EXPECT_NE(client.read_all().find("authentication method"), std::string::npos);
    RawClient shorter(cluster.worker.servers[0]);
    shorter.send(Header{MessageKind::hello, 0, -1, 0, 0, {}, 0}, std::vector<std::byte>(7));
    EXPECT_NE(shorter.read_all().find("it sent a hello that is malformed"), std::string::npos);
    cluster.link()->close();
}

}  // namespace
}  // namespace trainer
