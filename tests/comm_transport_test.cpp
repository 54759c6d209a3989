// The semantics of a transport, over all that there are; and what only sockets can get wrong.
#include <sys/mman.h>

#include <atomic>
#include <future>
#include <thread>

#include "comm/address.h"
#include "comm/transport.h"
#include "tests/comm_helpers.h"

namespace trainer {
namespace {

using namespace testing_comm;

Header push_header(int worker, int64_t step, uint64_t payload) {
    Header header;
    header.kind = MessageKind::push;
    header.worker = worker;
    header.step = step;
    header.range = {0, static_cast<int64_t>(payload)};
    header.payload = payload;
    return header;
}

/// A listening transport that keeps its connections and their recorders.
struct Host {
    struct Guest {
        std::shared_ptr<Connection> connection;
        std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
    };

    explicit Host(std::unique_ptr<Transport> a_transport,
                  std::function<void(Guest&)> on_guest = nullptr)
        : transport(std::move(a_transport)) {
        listening = transport->listen("127.0.0.1:0", [this, on_guest](auto connection) {
            connection->allow_payload(uint64_t{1} << 40);
            const std::lock_guard lock(mutex);
            Guest& guest = guests.emplace_back();
            guest.connection = std::move(connection);
            if (on_guest)
                on_guest(guest);
            changed.notify_all();
            return guest.recorder;
        });
    }

    Guest& guest(size_t index) {
        std::unique_lock lock(mutex);
        EXPECT_TRUE(changed.wait_for(lock, 10s, [&] { return guests.size() > index; }));
        return guests.at(index);
    }

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Guest> guests;
    Listening listening;
    std::unique_ptr<Transport> transport;  // ends first
};

/// Sends every push back, as the answer to a pull.
void echo(Host::Guest& guest) {
    guest.recorder->on_message = [connection = guest.connection](const Header& header,
                                                                 std::span<std::byte> payload) {
        Header answer = header;
        answer.kind = MessageKind::pulled;
        connection->send_bytes(answer, {payload.begin(), payload.end()});
    };
}

class TransportTest : public ::testing::TestWithParam<Way> {
  protected:
    std::shared_ptr<Connection> connect(Transport& transport, const Host& host,
                                        std::shared_ptr<Receiver> receiver) {
        auto connection = transport.connect(host.listening.bound, "server 0", std::move(receiver),
                                            Clock::now() + 10s);
        connection->allow_payload(uint64_t{1} << 40);
        return connection;
    }

    TransportMaker maker_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Ways, TransportTest, ::testing::Values(Way::inproc, Way::tcp, Way::local),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(TransportTest, EveryWorkerAndServerExchangeAllSizes) {
    const std::vector<size_t> sizes = {0, 1, 3, 1023, 16 << 10, (300 << 10) + 7, (3 << 20) + 1};
    for (int workers = 1; workers <= 4; ++workers)
        for (int servers = 1; servers <= 3; ++servers) {
            std::deque<Host> hosts;
            for (int s = 0; s < servers; ++s)
                hosts.emplace_back(maker_.make(), echo);

            std::vector<std::thread> threads;
            for (int w = 0; w < workers; ++w)
                threads.emplace_back([&, w] {
                    Completions completions;
                    std::vector<std::vector<std::byte>> payloads;
                    for (const size_t size : sizes)
                        payloads.push_back(pattern(size, static_cast<uint32_t>(w)));
                    std::vector<std::shared_ptr<Recorder>> recorders;
                    const auto transport = maker_.make();
                    for (Host& host : hosts) {
                        recorders.push_back(std::make_shared<Recorder>());
                        const auto connection = connect(*transport, host, recorders.back());
                        for (size_t i = 0; i < sizes.size(); ++i) {
                            // In three parts, of which some are empty.
                            const std::span<const std::byte> all(payloads[i]);
                            const size_t third = sizes[i] / 3;
                            connection->send(push_header(w, static_cast<int64_t>(i), sizes[i]),
                                             {all.first(third), all.subspan(third, third),
                                              all.subspan(2 * third)},
                                             completions.one());
                        }
                    }
                    for (const auto& recorder : recorders)
                        for (size_t i = 0; i < sizes.size(); ++i) {
                            const auto message = recorder->next();
                            EXPECT_EQ(message.header.kind, MessageKind::pulled);
                            EXPECT_EQ(message.header.step, static_cast<int64_t>(i));
                            EXPECT_EQ(message.header.worker, w);
                            EXPECT_EQ(message.payload, payloads[i]);
                        }
                    EXPECT_TRUE(completions.wait());
                    EXPECT_EQ(completions.failed(), 0);
                });
            for (std::thread& thread : threads)
                thread.join();
        }
}

TEST_P(TransportTest, ManyThreadsSendOnOneConnection) {
    Host host(maker_.make());
    const auto transport = maker_.make();
    const auto connection = connect(*transport, host, std::make_shared<Recorder>());
    constexpr int each = 200;
    Completions completions;
    std::vector<std::vector<std::byte>> payloads;
    for (const size_t size : {10, 40'000, 100'000})
        payloads.push_back(pattern(size, 1));
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < each; ++i) {
                const auto& payload = payloads[static_cast<size_t>(i + t) % payloads.size()];
                connection->send(push_header(t, i, payload.size()), {std::span(payload)},
                                 completions.one());
            }
        });
    std::array<int, 3> expected{};
    for (int i = 0; i < 3 * each; ++i) {
        const auto message = host.guest(0).recorder->next();
        const auto thread = static_cast<size_t>(message.header.worker);
        ASSERT_LT(thread, 3u);
        EXPECT_EQ(message.header.step, expected[thread]++);  // in each thread's order
        EXPECT_EQ(message.payload,
                  payloads[(static_cast<size_t>(message.header.step) + thread) % payloads.size()]);
    }
    for (std::thread& thread : threads)
        thread.join();
    EXPECT_TRUE(completions.wait());
}

TEST_P(TransportTest, QueuedMessagesArriveBeforeTheEnd) {
    Host host(maker_.make());
    const auto transport = maker_.make();
    const auto mine = std::make_shared<Recorder>();
    const auto connection = connect(*transport, host, mine);
    const auto payload = pattern(20 << 20, 1);
    Completions completions;
    for (int i = 0; i < 3; ++i)
        connection->send(push_header(0, i, payload.size()), {std::span(payload)},
                         completions.one());
    connection->close("done here");
    EXPECT_EQ(mine->wait_lost(), "done here");
    for (int i = 0; i < 3; ++i)
        EXPECT_EQ(host.guest(0).recorder->next().payload, payload);
    EXPECT_EQ(host.guest(0).recorder->wait_lost(), "it closed the connection");
    EXPECT_TRUE(completions.wait());
    EXPECT_EQ(completions.sent(), 3);

    connection->send(push_header(0, 3, payload.size()), {std::span(payload)}, completions.one());
    EXPECT_TRUE(completions.wait());
    EXPECT_EQ(completions.failed(), 1);
}

TEST_P(TransportTest, ATransportThatGoesAwayTellsEverybody) {
    Host host(maker_.make());
    auto transport = maker_.make();
    const auto mine = std::make_shared<Recorder>();
    const auto connection = connect(*transport, host, mine);
    host.guest(0);
    transport.reset();
    EXPECT_EQ(mine->wait_lost(), "this end has shut down");
    EXPECT_NE(host.guest(0).recorder->wait_lost(), "still connected");
    Completions completions;
    connection->send(push_header(0, 0, 0), {}, completions.one());
    host.guest(0).connection->send(push_header(0, 0, 0), {}, completions.one());
    EXPECT_TRUE(completions.wait());
    EXPECT_EQ(completions.failed(), 2);
}

TEST_P(TransportTest, APayloadAboveTheCapEndsTheConnectionOnly) {
    Host host(maker_.make(), [](Host::Guest& guest) { guest.connection->allow_payload(1000); });
    const auto transport = maker_.make();
    const auto payload = pattern(1001, 1);
    const auto good = connect(*transport, host, std::make_shared<Recorder>());
    host.guest(0);
    const auto bad = connect(*transport, host, std::make_shared<Recorder>());
    bad->send_bytes(push_header(0, 0, 0), payload);
    EXPECT_EQ(host.guest(1).recorder->wait_lost(),
              "it announced a push of 1001 bytes, more than the 1000 allowed here");
    good->send_bytes(push_header(0, 7, 0), pattern(1000, 2));
    EXPECT_EQ(host.guest(0).recorder->next().payload, pattern(1000, 2));
}

TEST_P(TransportTest, AReceiverThatThrowsEndsTheConnectionOnly) {
    Host host(maker_.make(), [](Host::Guest& guest) {
        guest.recorder->on_message = [](const Header& header, std::span<std::byte>) {
            if (header.step == 1)
                throw Error("step 1 is not liked");
        };
    });
    const auto transport = maker_.make();
    const auto mine = std::make_shared<Recorder>();
    const auto connection = connect(*transport, host, mine);
    for (int step = 0; step < 3; ++step)
        connection->send_bytes(push_header(0, step, 0), pattern(10, 1));
    EXPECT_EQ(host.guest(0).recorder->wait_lost(), "step 1 is not liked");
    EXPECT_NE(mine->wait_lost(), "still connected");
    EXPECT_EQ(host.guest(0).recorder->next().header.step, 0);
}

TEST_P(TransportTest, ConnectWaitsForWhoComesLaterAndGivesUpInTime) {
    const auto transport = maker_.make();
    std::string address;
    {
        Host gone(maker_.make());
        address = gone.listening.bound;
    }
    const auto begin = Clock::now();
    const std::string error = error_of([&] {
        transport->connect(address, "server 0", std::make_shared<Recorder>(), begin + 300ms);
    });
    EXPECT_TRUE(error.starts_with("cannot reach server 0 at " + address)) << error;
    EXPECT_LT(Clock::now() - begin, 2s);

    auto later = maker_.make();
    std::thread comes([&] {
        std::this_thread::sleep_for(200ms);
        later->listen(address, [](auto) { return std::make_shared<Recorder>(); });
    });
    EXPECT_NE(
        transport->connect(address, "server 0", std::make_shared<Recorder>(), Clock::now() + 10s),
        nullptr);
    comes.join();
}

TEST_P(TransportTest, AddressInUseIsSaid) {
    Host host(maker_.make());
    const auto second = maker_.make();
    const std::string error =
        error_of([&] { second->listen(host.listening.bound, [](auto) { return nullptr; }); });
    EXPECT_TRUE(error.starts_with("cannot listen on " + host.listening.bound)) << error;
    EXPECT_NE(error.find("in use"), std::string::npos) << error;
}

/// More than 4 GiB of addresses over 4 MiB of memory, the same again and again, and a tail of its
/// own.
struct LongMemory {
    static constexpr size_t piece = 4 << 20;
    static constexpr size_t tail = 4096;
    static constexpr size_t bytes = (size_t{4} << 30) + tail;
    std::byte* data;

    LongMemory() {
        const int file = ::memfd_create("sparse", 0);
        EXPECT_EQ(::ftruncate(file, piece + tail), 0);
        void* room = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        data = static_cast<std::byte*>(room);
        const auto map = [&](size_t at, size_t size, size_t offset) {
            EXPECT_NE(
                ::mmap(data + at, size, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, static_cast<off_t>(offset)),
                MAP_FAILED);
        };
        for (size_t at = 0; at + tail < bytes; at += piece)
            map(at, piece, 0);
        map(bytes - tail, tail, piece);
        ::close(file);
    }
    ~LongMemory() { ::munmap(data, bytes); }
};

TEST_P(TransportTest, AFrameOverFourGigabytes) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "the sanitizer's shadow of so many addresses fits no machine";
#endif
    constexpr size_t bytes = LongMemory::bytes;
    static const LongMemory source;  // for all ways: to map it takes longer than to send it
    static const LongMemory sink;
    const auto mark = pattern(LongMemory::tail, static_cast<uint32_t>(GetParam()));
    std::copy(mark.begin(), mark.end(), source.data + bytes - mark.size());

    struct Sink : Recorder {
        std::span<std::byte> memory;
        std::promise<Header> complete;
        std::span<std::byte> destination(const Header& header) override {
            return memory.first(header.payload);
        }
        void received(const Header& header, std::span<std::byte>) override {
            complete.set_value(header);
        }
    };
    const auto receiver = std::make_shared<Sink>();
    receiver->memory = {sink.data, bytes};
    const auto listener = maker_.make();
    const auto listening = listener->listen("127.0.0.1:0", [&](auto connection) {
        connection->allow_payload(uint64_t{1} << 40);
        return receiver;
    });
    const auto transport = maker_.make();
    const auto connection = transport->connect(listening.bound, "server 0",
                                               std::make_shared<Recorder>(), Clock::now() + 10s);
    Completions completions;
    connection->send(push_header(0, 1, bytes), {std::span(source.data, bytes)}, completions.one());
    auto complete = receiver->complete.get_future();
    ASSERT_EQ(complete.wait_for(60s), std::future_status::ready);
    EXPECT_EQ(complete.get(), push_header(0, 1, bytes));
    EXPECT_TRUE(completions.wait());
    EXPECT_TRUE(std::equal(mark.begin(), mark.end(), sink.data + bytes - mark.size()));
}

// --- sockets only ------------------------------------------------------------------------------

TransportOptions tcp_options(std::chrono::milliseconds timeout = 300ms) {
    TransportOptions options;
    options.local_sockets = false;
    options.timeout = timeout;
    return options;
}

/// What the host says of the one client that `misbehave` plays, while another works on.
std::string reason_of(const std::function<void(RawClient&)>& misbehave,
                      uint64_t cap = stranger_frame_cap) {
    Host host(make_socket_transport(tcp_options()),
              [&](Host::Guest& guest) { guest.connection->allow_payload(cap); });
    RawClient bad(host.listening.bound);
    host.guest(0);
    const auto transport = make_socket_transport(tcp_options());
    const auto good = transport->connect(host.listening.bound, "server 0",
                                         std::make_shared<Recorder>(), Clock::now() + 10s);
    misbehave(bad);
    const std::string reason = host.guest(0).recorder->wait_lost(3s);
    good->send_bytes(push_header(0, 1, 0), pattern(100, 1));
    EXPECT_EQ(host.guest(1).recorder->next().payload, pattern(100, 1));
    return reason;
}

TEST(Sockets, GarbageIsTurnedAway) {
    std::string answer;
    const std::string reason = reason_of([&](RawClient& client) {
        client.send("GET /index.html HTTP/1.1\r\nHost: node1:9000\r\nUser-Agent: x\r\n\r\n");
        answer = client.read_all();
    });
    EXPECT_EQ(reason,
              "what it sent is not this program's protocol (it begins with \"GET /index.html \")");
    EXPECT_NE(answer.find(reason), std::string::npos);  // it is told as well
}

TEST(Sockets, AFrameOfTwoToThe63IsRefusedUnread) {
    EXPECT_EQ(
        reason_of([](RawClient& client) {
            Header header = push_header(0, 0, 0);
            header.payload = uint64_t{1} << 63;
            client.send(encode(header));
        }),
        "it announced a push of 9223372036854775808 bytes, more than the 262144 allowed here");
}

TEST(Sockets, AnotherVersionIsRefusedByName) {
    EXPECT_EQ(reason_of([](RawClient& client) {
                  auto bytes = encode(push_header(0, 0, 0));
                  bytes[4] = std::byte{7};
                  client.send(bytes);
              }),
              "it speaks protocol version 7, this program 2: run the same build on every machine");
}

TEST(Sockets, DamageIsNoticed) {
    for (const size_t at : {size_t{0}, size_t{50'000}, size_t{99'999}, size_t{100'001}})
        EXPECT_EQ(reason_of([&](RawClient& client) {
                      const auto header = encode(push_header(0, 0, 100'000));
                      auto payload = pattern(100'000, 1);
                      Crc32c crc = checksum_of_header(header);
                      crc.add(payload);
                      payload.resize(payload.size() + 4);
                      put<uint32_t>(&payload[100'000], crc.value());
                      payload[at] ^= std::byte{16};
                      client.send(header);
                      client.send(payload);
                  }),
                  "a push arrived damaged (its checksum does not hold)")
            << at;
}

TEST(Sockets, APeerThatStopsInAMessageIsGivenUp) {
    for (const size_t sent : {size_t{1}, header_bytes - 1, header_bytes, header_bytes + 10})
        EXPECT_EQ(reason_of([&](RawClient& client) {
                      std::vector<std::byte> bytes(header_bytes + 1000);
                      const auto header = encode(push_header(0, 0, 1000));
                      std::copy(header.begin(), header.end(), bytes.begin());
                      client.send(std::span(bytes).first(sent));
                  }),
                  "it stopped in the middle of a message for 0.30 s")
            << sent;
}

TEST(Sockets, APeerThatEndsInAMessageIsLost) {
    Host host(make_socket_transport(tcp_options()));
    {
        RawClient client(host.listening.bound);
        client.send(encode(push_header(0, 0, 1000)));
    }
    EXPECT_EQ(host.guest(0).recorder->wait_lost(),
              "it closed the connection in the middle of a message");
}

TEST(Sockets, APeerThatStopsReadingIsGivenUp) {
    Host host(make_socket_transport(tcp_options()));
    const RawClient client(host.listening.bound);
    const auto payload = pattern(64 << 20, 1);
    Completions completions;
    const auto connection = host.guest(0).connection;
    connection->send(push_header(0, 0, payload.size()), {std::span(payload)}, completions.one());
    connection->send(push_header(0, 1, 1), {std::span(payload).first(1)}, completions.one());
    EXPECT_EQ(host.guest(0).recorder->wait_lost(5s),
              "it has taken no data for 0.30 s although it has to");
    EXPECT_TRUE(completions.wait());
    EXPECT_EQ(completions.failed(), 2);
}

TEST(Sockets, AMessageByteByByteIsUnderstood) {
    Host host(make_socket_transport(tcp_options(10s)));
    RawClient client(host.listening.bound);
    const auto payload = pattern(40, 3);
    const auto header = encode(push_header(0, 5, payload.size()));
    Crc32c crc = checksum_of_header(header);
    crc.add(payload);
    std::vector<std::byte> bytes(header.begin(), header.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    bytes.resize(bytes.size() + 4);
    put<uint32_t>(&bytes[bytes.size() - 4], crc.value());
    for (const std::byte& byte : bytes) {
        client.send(std::span(&byte, 1));
        std::this_thread::sleep_for(100us);
    }
    EXPECT_EQ(host.guest(0).recorder->next().payload, payload);
    EXPECT_FALSE(host.guest(0).recorder->is_lost());
}

TEST(Sockets, PortZeroIsReportedAndReachable) {
    const auto transport = make_socket_transport();
    const Listening any = transport->listen("0.0.0.0:0", [](auto) { return nullptr; });
    const Address bound = parse_address(any.bound);
    EXPECT_EQ(bound.host, "0.0.0.0");
    EXPECT_GT(bound.port, 0);
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    EXPECT_EQ(any.advertised, std::string(name) + ":" + std::to_string(bound.port));
}

TEST(Sockets, IPv6) {
    if (!is_local_address("::1"))
        GTEST_SKIP() << "this machine has no IPv6 loopback";
    for (const bool local : {false, true}) {
        TransportOptions options;
        options.local_sockets = local;
        const auto listener = make_socket_transport(options);
        const auto recorder = std::make_shared<Recorder>();
        const auto listening = listener->listen("[::1]:0", [&](auto) { return recorder; });
        EXPECT_TRUE(listening.bound.starts_with("[::1]:")) << listening.bound;
        const auto transport = make_socket_transport(options);
        const auto connection = transport->connect(
            listening.bound, "server 0", std::make_shared<Recorder>(), Clock::now() + 10s);
        connection->send_bytes(push_header(0, 1, 0), pattern(9, 1));
        EXPECT_EQ(recorder->next().payload, pattern(9, 1));
    }
}

TEST(Sockets, OneMachinesProcessesTakeUnixSocketsByThemselves) {
    Host host(make_socket_transport());
    const auto transport = make_socket_transport();
    const auto connection = transport->connect(host.listening.bound, "server 0",
                                               std::make_shared<Recorder>(), Clock::now() + 10s);
    EXPECT_EQ(host.guest(0).connection->peer(),
              "process " + std::to_string(::getpid()) + " of this machine");
    const auto plain = make_socket_transport(tcp_options());
    const auto tcp = plain->connect(host.listening.bound, "server 0", std::make_shared<Recorder>(),
                                    Clock::now() + 10s);
    EXPECT_TRUE(host.guest(1).connection->peer().starts_with("127.0.0.1:"));
}

TEST(Sockets, InterfaceByName) {
    TransportOptions options = tcp_options();
    options.interface = "lo";
    const auto transport = make_socket_transport(options);
    EXPECT_TRUE(transport->listen("0.0.0.0:0", [](auto) { return nullptr; })
                    .bound.starts_with("127.0.0.1:"));
    options.interface = "nosuch0";
    const auto other = make_socket_transport(options);
    const std::string error =
        error_of([&] { other->listen("0.0.0.0:0", [](auto) { return nullptr; }); });
    EXPECT_TRUE(error.starts_with("this machine has no network interface \"nosuch0\""));
    EXPECT_NE(error.find("lo"), std::string::npos);
}

TEST(Sockets, AnUnknownNameIsSaid) {
    const auto transport = make_socket_transport(tcp_options());
    const std::string error = error_of([&] {
        transport->connect("no-such-host.invalid:9000", "server 2", std::make_shared<Recorder>(),
                           Clock::now() + 100ms);
    });
    EXPECT_TRUE(
        error.starts_with("cannot reach server 2 at no-such-host.invalid:9000 within "
                          "comm.timeout (the name "))
        << error;
    EXPECT_TRUE(error.ends_with("): check that it runs and listens there, or raise the timeout"))
        << error;
    EXPECT_NE(error.find("cannot be resolved"), std::string::npos) << error;
}

// The end that nobody took is not the receiver's: it would hear of two ends of one connection.
TEST(Inproc, AListenerThatIsJustGoingIsNotHeardOf) {
    TransportMaker maker(Way::inproc);
    const std::string address = "127.0.0.1:1";
    std::atomic<bool> over{false};
    std::thread comes_and_goes([&] {
        while (!over)
            maker.make()->listen(address, [](auto) { return std::make_shared<Recorder>(); });
    });
    for (int i = 0; i < 500; ++i)
        try {
            maker.make()->connect(address, "server 0", std::make_shared<Recorder>(),
                                  Clock::now() + 1s);
        } catch (const Error&) {  // a slow one misses each of the moments when somebody listens
        }
    over = true;
    comes_and_goes.join();
}

// Asio runs what its own thread posts after what others have posted meanwhile: a timer set in that
// moment was waited for.
TEST(EventLoopTest, StopsAtOnceThoughATimerIsJustBeingSet) {
    const auto begin = Clock::now();
    EventLoop loop("test");
    std::promise<void> set;
    bool ran = false;
    loop.post([&] {
        loop.post_at(Clock::now() + 20s, [&] { ran = true; });
        set.set_value();
        std::this_thread::sleep_for(200ms);  // until the stop below is posted
    });
    set.get_future().wait();
    loop.stop();
    EXPECT_LT(Clock::now() - begin, 10s);
    EXPECT_FALSE(ran);
}

TEST(AddressTest, Forms) {
    EXPECT_EQ(parse_address("node1:9000"), (Address{"node1", 9000}));
    EXPECT_EQ(parse_address("[::1]:0"), (Address{"::1", 0}));
    EXPECT_EQ(parse_address("[::1]:9000").text(), "[::1]:9000");
    EXPECT_EQ(parse_address("10.0.0.1:65535").text(), "10.0.0.1:65535");
    for (const char* bad : {"", "node1", "node1:", ":9000", "::1:9000", "node1:65536", "node1:-1",
                            "node1:90x", "node1: 9"})
        EXPECT_THROW(parse_address(bad), UsageError) << bad;
}

}  // namespace
}  // namespace trainer
