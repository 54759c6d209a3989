// What the tests of comm share: a receiver that keeps what it gets, and a plain socket to misbehave
// with.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "tests/error_of.h"

namespace trainer::testing_comm {

using namespace std::chrono_literals;

inline std::vector<std::byte> pattern(size_t size, uint32_t seed) {
    std::vector<std::byte> bytes(size);
    uint32_t state = seed * 2654435761u + 1;
    for (std::byte& byte : bytes) {
        state = state * 1664525u + 1013904223u;
        byte = static_cast<std::byte>(state >> 24);
    }
    return bytes;
}

/// Keeps every message and the reason of the end; waits for them with a timeout.
class Recorder : public Receiver {
  public:
    struct Message {
        Header header;
        std::vector<std::byte> payload;
    };

    std::span<std::byte> destination(const Header& header) override {
        buffer_.resize(header.payload);
        return buffer_;
    }
    void received(const Header& header, std::span<std::byte> payload) override {
        if (on_message)
            on_message(header, payload);
        const std::lock_guard lock(mutex_);
        messages_.push_back({header, {payload.begin(), payload.end()}});
        changed_.notify_all();
    }
    void lost(const std::string& reason) override {
        const std::lock_guard lock(mutex_);
        EXPECT_TRUE(lost_.empty()) << "lost twice";
        lost_ = reason;
        changed_.notify_all();
    }

    /// The next message; fails the test, and returns an empty one, where none comes.
    Message next(Clock::duration timeout = 10s) {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, timeout, [&] { return !messages_.empty(); })) {
            ADD_FAILURE() << "no message came; lost: " << lost_;
            return {};
        }
        Message message = std::move(messages_.front());
        messages_.pop_front();
        return message;
    }
    std::string wait_lost(Clock::duration timeout = 10s) {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, timeout, [&] { return !lost_.empty(); }))
            return "still connected";
        return lost_;
    }
    bool is_lost() { return wait_lost(0s) != "still connected"; }

    std::function<void(const Header&, std::span<std::byte>)> on_message;

  private:
    std::vector<std::byte> buffer_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Message> messages_;
    std::string lost_;
};

/// Counts completions.
class Completions {
  public:
    Completion one() {
        const std::lock_guard lock(mutex_);
        ++open_;
        return [this](bool sent) {
            const std::lock_guard inner(mutex_);
            --open_;
            ++(sent ? sent_ : failed_);
            changed_.notify_all();
        };
    }
    /// True once every completion has been called.
    bool wait(Clock::duration timeout = 10s) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, timeout, [&] { return open_ == 0; });
    }
    int sent() {
        const std::lock_guard lock(mutex_);
        return sent_;
    }
    int failed() {
        const std::lock_guard lock(mutex_);
        return failed_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    int open_ = 0;
    int sent_ = 0;
    int failed_ = 0;
};

/// A plain TCP client to 127.0.0.1 that speaks whatever it likes.
class RawClient {
  public:
    explicit RawClient(const std::string& address) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        to.sin_port =
            htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
        EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
        const timeval limit{10, 0};
        ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    }
    ~RawClient() { ::close(fd_); }
    RawClient(const RawClient&) = delete;
    RawClient& operator=(const RawClient&) = delete;

    void send(std::span<const std::byte> bytes) {
        EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(bytes.size()));
    }
    /// The same to an end that may have hung up.
    void try_send(std::span<const std::byte> bytes) {
        [[maybe_unused]] const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    void send(std::string_view text) { send(std::as_bytes(std::span(text))); }

    /// A whole message with its checksum.
    void send(Header header, std::span<const std::byte> payload) {
        header.payload = payload.size();
        const auto bytes = encode(header);
        Crc32c crc = checksum_of_header(bytes);
        crc.add(payload);
        std::array<std::byte, checksum_bytes> trailer;
        put<uint32_t>(trailer.data(), crc.value());
        send(bytes);
        send(payload);
        send(trailer);
    }

    /// Everything until the other end closes.
    std::string read_all() {
        std::string all;
        char buffer[4096];
        for (ssize_t count; (count = ::recv(fd_, buffer, sizeof buffer, 0)) > 0;)
            all.append(buffer, static_cast<size_t>(count));
        return all;
    }

  private:
    int fd_;
};

/// The ways of moving messages that every test of the semantics runs over.
enum class Way { inproc, tcp, local };

inline std::string name_of(Way way) {
    return way == Way::inproc ? "inproc" : way == Way::tcp ? "tcp" : "local";
}

/// Makes transports of one kind that can reach each other.
class TransportMaker {
  public:
    explicit TransportMaker(Way way) : way_(way) {}

    std::unique_ptr<Transport> make(TransportOptions options = {}) const {
        if (way_ == Way::inproc)
            return make_inproc_transport(network_, std::move(options));
        options.local_sockets = way_ == Way::local;
        return make_socket_transport(std::move(options));
    }

  private:
    Way way_;
    std::shared_ptr<InprocNetwork> network_ = make_inproc_network();
};

}  // namespace trainer::testing_comm
