// How fast messages move: a worker's link and a server's endpoint over each transport, against
// plain TCP sockets with 64 KiB calls, interleaved in one run on this machine's loopback.
//
//   transport [MiB of a push or pull, default 100] [rounds, default 9]
//
// With OpenSSL in the build, and its program here to make a certificate, TLS is measured too.
//
// Prints a table (medians of all rounds, and of each round's ratio to plain TCP) and one JSON line.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "tools/bench/link_peer.h"
#include "tools/bench/stopwatch.h"

namespace trainer {
namespace {

constexpr size_t call_bytes = 64 << 10;
constexpr int small_trips = 2000;

// --- plain sockets -------------------------------------------------------------------------------

void send_all(int fd, const std::byte* data, size_t size) {
    for (size_t at = 0; at < size;) {
        const ssize_t count = ::send(fd, data + at, std::min(call_bytes, size - at), MSG_NOSIGNAL);
        if (count <= 0)
            throw Error("the plain socket does not send");
        at += static_cast<size_t>(count);
    }
}

void receive_all(int fd, std::byte* data, size_t size) {
    for (size_t at = 0; at < size;) {
        const ssize_t count = ::recv(fd, data + at, std::min(call_bytes, size - at), 0);
        if (count <= 0)
            throw Error("the plain socket does not receive");
        at += static_cast<size_t>(count);
    }
}

/// A server thread that does what one byte tells it to.
class PlainTcp final : public Peer {
  public:
    explicit PlainTcp(size_t bytes) : mine_(allocate_host(bytes)), theirs_(allocate_host(bytes)) {
        const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
        if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
            ::listen(listener, 1) != 0 ||
            ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
            ::connect(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0)
            throw Error("no plain TCP connection on this machine");
        const int served = ::accept(listener, nullptr, nullptr);
        ::close(listener);
        const int one = 1;
        for (const int fd : {fd_, served})
            ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        server_ = std::thread([this, served] { serve(served); });
    }
    ~PlainTcp() override {
        ::shutdown(fd_, SHUT_RDWR);
        server_.join();
        ::close(fd_);
    }

    void push() override {
        order('>');
        send_all(fd_, mine_.data.get(), mine_.bytes);
        receive_all(fd_, mine_.data.get(), 1);
    }
    void pull() override {
        order('<');
        receive_all(fd_, mine_.data.get(), mine_.bytes);
    }
    void push_pull() override {
        order('x');
        send_all(fd_, mine_.data.get(), mine_.bytes);
        receive_all(fd_, mine_.data.get(), mine_.bytes);
    }
    void round_trip() override {
        send_all(fd_, mine_.data.get(), small_bytes);
        receive_all(fd_, mine_.data.get(), small_bytes);
    }

    /// The server serves so many round trips next.
    void expect_trips() { order('o'); }

  private:
    void order(char what) {
        const std::byte byte{static_cast<unsigned char>(what)};
        send_all(fd_, &byte, 1);
    }
    void serve(int fd) {
        std::byte* data = theirs_.data.get();
        std::byte what;
        while (::recv(fd, &what, 1, 0) == 1) {
            const char order = static_cast<char>(what);
            if (order == 'o')
                for (int i = 0; i < small_trips; ++i) {
                    receive_all(fd, data, small_bytes);
                    send_all(fd, data, small_bytes);
                }
            if (order == '>' || order == 'x')
                receive_all(fd, data, theirs_.bytes);
            if (order == '>')
                send_all(fd, data, 1);
            if (order == '<' || order == 'x')
                send_all(fd, data, theirs_.bytes);
        }
        ::close(fd);
    }

    Memory mine_;
    Memory theirs_;
    int fd_ = -1;
    std::thread server_;
};

// --- this program's transports -------------------------------------------------------------------

/// Sends 1 KB back and forth between two transports' threads, without a link's waiting thread.
class Bouncer final : public Receiver {
  public:
    std::span<std::byte> destination(const Header&) override { return buffer_; }
    void received(const Header& header, std::span<std::byte> payload) override {
        if (--left == 0)
            return over.set_value();
        connection->send(header, {payload}, [](bool) {});
    }
    void lost(const std::string&) override {}

    std::shared_ptr<Connection> connection;
    int left = -1;  // messages until it is over; negative: never
    std::promise<void> over;

  private:
    std::array<std::byte, small_bytes> buffer_{};
};

/// Microseconds of one round trip between two transports.
double bare_trip_us(std::unique_ptr<Transport> server, std::unique_ptr<Transport> worker) {
    const auto there = std::make_shared<Bouncer>();
    const auto here = std::make_shared<Bouncer>();
    const auto listening = server->listen("127.0.0.1:0", [&](auto connection) {
        there->connection = std::move(connection);
        return there;
    });
    here->left = small_trips;
    here->connection =
        worker->connect(listening.bound, "server", here, Clock::now() + std::chrono::seconds(10));
    Header header;
    header.kind = MessageKind::push;
    const double passed = seconds([&] {
        here->connection->send_bytes(header, std::vector<std::byte>(small_bytes));
        here->over.get_future().wait();
    });
    return passed / small_trips * 1e6;
}

// --- the table -----------------------------------------------------------------------------------

struct Row {
    std::string name;
    std::function<std::unique_ptr<Peer>()> make;
    std::function<std::unique_ptr<Transport>()> transport;  // for the bare trip
    std::unique_ptr<Peer> peer;
    std::vector<double> push, pull, both, trip, bare;  // a value a round
};

void measure(Row& row, size_t bytes) {
    const double gigabytes = static_cast<double>(bytes) / 1e9;
    row.push.push_back(gigabytes / seconds([&] { row.peer->push(); }));
    row.pull.push_back(gigabytes / seconds([&] { row.peer->pull(); }));
    row.both.push_back(2 * gigabytes / seconds([&] { row.peer->push_pull(); }));
    if (auto* plain = dynamic_cast<PlainTcp*>(row.peer.get()))
        plain->expect_trips();
    row.trip.push_back(1e6 / small_trips * seconds([&] {
                           for (int i = 0; i < small_trips; ++i)
                               row.peer->round_trip();
                       }));
    row.bare.push_back(row.transport ? bare_trip_us(row.transport(), row.transport())
                                     : row.trip.back());
}

/// The median over rounds of this row's value by plain TCP's.
double ratio(const std::vector<double>& ours, const std::vector<double>& plain) {
    std::vector<double> ratios;
    for (size_t i = 0; i < ours.size(); ++i)
        ratios.push_back(ours[i] / plain[i]);
    return median(ratios);
}

/// A certificate of its own authority, made for this run; nullptr where that cannot be done.
std::shared_ptr<TlsContext> make_tls() {
    std::string folder = (std::filesystem::temp_directory_path() / "bench.XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr)
        return nullptr;
    const std::string key = folder + "/key.pem", cert = folder + "/cert.pem";
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=b "
        "-keyout " +
        key + " -out " + cert + " >/dev/null 2>&1";
    std::shared_ptr<TlsContext> context;
    if (std::system(command.c_str()) == 0)
        try {
            context = make_tls_context({.cert = cert, .key = key, .ca = cert});
        } catch (const UsageError& error) {
            std::cerr << "without TLS: " << error.what() << "\n";
        }
    std::filesystem::remove_all(folder);
    return context;
}

void run(size_t bytes, int rounds) {
    const auto network = make_inproc_network();
    const auto sockets = [](bool local) {
        TransportOptions options;
        options.local_sockets = local;
        return make_socket_transport(options);
    };
    const std::function<std::unique_ptr<Transport>()> tcp = [&] { return sockets(false); };
    const std::function<std::unique_ptr<Transport>()> local = [&] { return sockets(true); };
    const std::function<std::unique_ptr<Transport>()> inproc = [&] {
        return make_inproc_transport(network);
    };
    const std::shared_ptr<TlsContext> context = make_tls();
    const std::function<std::unique_ptr<Transport>()> tls = [&] {
        TransportOptions options;
        options.tls = context;
        return make_socket_transport(options);
    };
    std::vector<Row> rows(context == nullptr ? 4 : 5);
    rows[0].name = "plain TCP, 64 KiB calls";
    rows[0].peer = std::make_unique<PlainTcp>(bytes);
    const std::array<std::pair<const char*, const std::function<std::unique_ptr<Transport>()>*>, 4>
        ours = {{{"link over TCP", &tcp},
                 {"link over a Unix socket", &local},
                 {"link within the process", &inproc},
                 {"link over TCP with TLS", &tls}}};
    for (size_t i = 0; i + 1 < rows.size(); ++i) {
        rows[i + 1].name = ours[i].first;
        rows[i + 1].transport = *ours[i].second;
        rows[i + 1].peer =
            std::make_unique<LinkPeer>(bytes, (*ours[i].second)(), (*ours[i].second)());
    }

    for (int round = -1; round < rounds; ++round)  // the first one warms up
        for (Row& row : rows) {
            measure(row, bytes);
            if (round < 0)
                for (auto* values : {&row.push, &row.pull, &row.both, &row.trip, &row.bare})
                    values->clear();
        }

    std::printf("%-26s %8s %8s %10s %16s %16s\n", "GB/s, us (x plain TCP)", "push", "pull",
                "push+pull", "1 KB trip", "1 KB, bare");
    nlohmann::json json = {{"bench", "transport"}, {"bytes", bytes}, {"rounds", rounds}};
    for (const Row& row : rows) {
        const Row& plain = rows[0];
        std::printf("%-26s %8.2f %8.2f %5.2f %4.2f %9.1f %6.2f %9.1f %6.2f\n", row.name.c_str(),
                    median(row.push), median(row.pull), median(row.both),
                    ratio(row.both, plain.both), median(row.trip), ratio(row.trip, plain.trip),
                    median(row.bare), ratio(row.bare, plain.bare));
        json["rows"].push_back({{"name", row.name},
                                {"push_GBps", median(row.push)},
                                {"pull_GBps", median(row.pull)},
                                {"push_pull_GBps", median(row.both)},
                                {"push_pull_ratio", ratio(row.both, plain.both)},
                                {"trip_us", median(row.trip)},
                                {"trip_ratio", ratio(row.trip, plain.trip)},
                                {"bare_trip_us", median(row.bare)},
                                {"bare_trip_ratio", ratio(row.bare, plain.bare)}});
    }
    if (context != nullptr)
        json["tls_by_tcp"] = ratio(rows[4].both, rows[1].both);
    json["unix_by_tcp"] = ratio(rows[2].both, rows[1].both);
    std::printf("Unix socket by TCP: %.2f\n", json["unix_by_tcp"].get<double>());
    std::cout << json.dump() << "\n";
}

}  // namespace
}  // namespace trainer

int main(int count, char** arguments) {
    try {
        const long mebibytes = count > 1 ? std::atol(arguments[1]) : 100;
        const int rounds = count > 2 ? std::atoi(arguments[2]) : 9;
        if (mebibytes < 1 || rounds < 1)
            throw trainer::UsageError("usage: transport [MiB] [rounds], both at least 1");
        trainer::run(static_cast<size_t>(mebibytes) << 20, rounds);
    } catch (const trainer::UsageError& error) {
        std::cerr << error.what() << "\n";
        return 2;
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
