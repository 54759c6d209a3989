// What strangers cost a running job: a worker's steps with and without 200 connections that say
// nothing or garbage, and one that drips a byte a second, interleaved in one run.
//
//   strangers [rounds, default 15]
//
// Whoever is hung up on calls again a second later. Prints medians over rounds of the time of a
// step, and of each round's ratio of the two.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

#include "comm/address.h"
#include "tools/bench/link_peer.h"
#include "tools/bench/stopwatch.h"

namespace trainer {
namespace {

using std::chrono::milliseconds;

constexpr size_t model_bytes = size_t{1} << 20;  // about ResNet-20
constexpr int strangers = 200;
constexpr milliseconds round_time{1000};
constexpr milliseconds computing{10};

/// One caller: idle, or one that sends garbage, or one that drips.
class Stranger {
  public:
    enum class Kind { idle, garbage, drip };

    Stranger(Kind kind, const sockaddr_in& server) : kind_(kind), server_(server) {}
    ~Stranger() { hang_up(); }
    Stranger(Stranger&& other) noexcept
        : kind_(other.kind_), server_(other.server_), fd_(std::exchange(other.fd_, -1)) {}

    /// Once a second.
    void act() {
        char byte = 0;
        if (fd_ >= 0 && ::recv(fd_, &byte, 1, MSG_DONTWAIT) == 0)
            hang_up();
        if (fd_ < 0)
            call();
        else if (kind_ == Kind::drip)
            say("T");
    }
    void hang_up() {
        if (fd_ >= 0)
            ::close(fd_);
        fd_ = -1;
    }

  private:
    void call() {
        fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
        if (::connect(fd_, reinterpret_cast<const sockaddr*>(&server_), sizeof server_) != 0)
            return hang_up();
        if (kind_ == Kind::garbage)
            say(std::string(4000, 'x'));
    }
    void say(const std::string& text) const {
        // Whether it arrives is the server's business.
        [[maybe_unused]] const ssize_t sent =
            ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }

    Kind kind_;
    sockaddr_in server_;
    int fd_ = -1;
};

/// All of them, spread over each second, while they are let.
class Crowd {
  public:
    explicit Crowd(const Address& server) {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(static_cast<uint16_t>(server.port));
        ::inet_pton(AF_INET, server.host.c_str(), &to.sin_addr);
        for (int i = 0; i < strangers; ++i)
            all_.emplace_back(i % 2 == 0 ? Stranger::Kind::idle : Stranger::Kind::garbage, to);
        all_.emplace_back(Stranger::Kind::drip, to);
        thread_ = std::thread([this] { run(); });
    }
    ~Crowd() {
        over_ = true;
        thread_.join();
    }
    void let(bool come) { come_ = come; }

  private:
    void run() {
        const auto pause = std::chrono::microseconds(1'000'000 / std::ssize(all_));
        for (size_t next = 0; !over_; next = (next + 1) % all_.size()) {
            if (come_)
                all_[next].act();
            else
                for (Stranger& stranger : all_)
                    stranger.hang_up();
            std::this_thread::sleep_for(pause);
        }
    }

    std::vector<Stranger> all_;
    std::atomic<bool> over_{false}, come_{false};
    std::thread thread_;
};

/// Milliseconds of a step, over a round: so long computing, then a push and a pull.
double step_ms(LinkPeer& worker, milliseconds compute) {
    int steps = 0;
    const auto begin = Clock::now();
    while (Clock::now() - begin < round_time) {
        for (const auto until = Clock::now() + compute; Clock::now() < until;) {
        }
        worker.push_pull();
        ++steps;
    }
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / steps;
}

void measure(const char* name, milliseconds compute, int rounds) {
    TransportOptions options;
    options.local_sockets = false;
    LinkPeer worker(model_bytes, make_socket_transport(options), make_socket_transport(options));
    Crowd crowd(parse_address(worker.server_address()));
    std::vector<double> alone, among, ratios;
    for (int round = -1; round < rounds; ++round) {
        crowd.let(false);
        std::this_thread::sleep_for(milliseconds(100));
        const double without = step_ms(worker, compute);
        crowd.let(true);
        std::this_thread::sleep_for(milliseconds(1100));  // until all have called
        const double with = step_ms(worker, compute);
        if (round < 0)
            continue;  // it warms up
        alone.push_back(without);
        among.push_back(with);
        ratios.push_back(with / without);
    }
    std::printf("%-28s %8.3f ms alone, %8.3f ms among %d strangers: x %.3f (n %d)\n", name,
                median(alone), median(among), strangers + 1, median(ratios), rounds);
}

}  // namespace
}  // namespace trainer

int main(int count, char** arguments) {
    try {
        const int rounds = count > 1 ? std::atoi(arguments[1]) : 15;
        if (rounds < 1)
            throw trainer::UsageError("usage: strangers [rounds], at least 1");
        trainer::measure("10 ms, push, pull of 1 MiB", trainer::computing, rounds);
        trainer::measure("push, pull of 1 MiB", trainer::milliseconds(0), rounds);
    } catch (const trainer::UsageError& error) {
        std::cerr << error.what() << "\n";
        return 2;
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
