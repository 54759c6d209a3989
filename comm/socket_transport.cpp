// Transport over TCP and Unix-domain sockets, on Boost.Asio: listening and calling.
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>

#include "comm/event_loop_impl.h"
// (its first line matters to Asio's headers)
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include "comm/address.h"
#include "comm/socket_connection.h"
#include "engine/error.h"

namespace trainer {
namespace {

namespace asio = boost::asio;
using Protocol = asio::generic::stream_protocol;
using Endpoint = Protocol::endpoint;
using Acceptor = asio::basic_socket_acceptor<Protocol>;
using boost::system::error_code;

// --- addresses of sockets ----------------------------------------------------------------------

void set_option(int fd, int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof value);
}

/// A TCP connection that sends at once and notices a dead network by itself.
void tune(int fd, std::chrono::milliseconds timeout) {
    const int seconds = static_cast<int>(std::max<int64_t>(1, timeout.count() / 3000));
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout.count()));
}

ucred credentials_of(int fd) {
    ucred credentials{};
    socklen_t size = sizeof credentials;
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
        credentials.uid = static_cast<uid_t>(-1);
    return credentials;
}

/// The abstract Unix-domain address that stands for a TCP address on this machine.
Endpoint local_endpoint(const Address& tcp) {
    return asio::local::stream_protocol::endpoint(std::string(1, '\0') + "trainer/" + tcp.text());
}

Address address_of(const asio::ip::tcp::endpoint& endpoint) {
    return {endpoint.address().to_string(), endpoint.port()};
}

/// The TCP address of a generic endpoint of the internet families.
Address address_of(const Endpoint& endpoint) {
    asio::ip::tcp::endpoint tcp;
    tcp.resize(endpoint.size());
    std::memcpy(tcp.data(), endpoint.data(), endpoint.size());
    return address_of(tcp);
}

std::vector<asio::ip::tcp::endpoint> resolve(const Address& address, std::string& why_not) {
    asio::io_context context;
    asio::ip::tcp::resolver resolver(context);
    error_code error;
    const auto results = resolver.resolve(address.host, std::to_string(address.port), error);
    if (error)
        why_not = "the name " + address.host + " cannot be resolved (" + error.message() + ")";
    return {results.begin(), results.end()};
}

class SocketTransport final : public Transport {
  public:
    explicit SocketTransport(TransportOptions options) : options_(std::move(options)) {
        loop_->post([this] { watch(); });
    }

    ~SocketTransport() override {
        loop_->stop([this] {
            closing_ = true;
            acceptors_.clear();
            for (const auto& connection : connections_)
                connection->end("this end has shut down");
            connections_.clear();
        });
    }

    Listening listen(const std::string& text, Accept accept) override {
        Address address = parse_address(text);
        const bool any = address.host == "0.0.0.0" || address.host == "::";
        if (!options_.interface.empty() && any)
            address.host = addresses_of_interface(options_.interface).front();
        std::string why;
        const auto endpoints = resolve(address, why);
        if (endpoints.empty())
            throw UsageError("cannot listen on " + text + ": " + why);
        accept_ = std::move(accept);

        error_code error;
        const auto acceptors = std::make_shared<std::vector<Acceptor>>();
        acceptors->push_back(open(endpoints.front(), error));
        if (error == asio::error::address_in_use)
            throw Error("cannot listen on " + text +
                        ": the port is in use by another process; stop that one, choose another "
                        "port, or port 0 for any free one");
        if (error)
            throw Error("cannot listen on " + text + ": " + error.message());
        const Address bound = address_of(acceptors->front().local_endpoint());
        if (local_sockets()) {
            acceptors->push_back(open(local_endpoint(bound), error));
            if (error)  // then they take TCP
                acceptors->pop_back();
        }
        loop_->post([this, acceptors] {
            for (Acceptor& acceptor : *acceptors)
                accept_on(acceptors_.emplace_back(std::move(acceptor)));
        });

        Address advertised = bound;
        if (bound.host == "0.0.0.0" || bound.host == "::")
            advertised.host = host_name();
        return {bound.text(), advertised.text()};
    }

    std::shared_ptr<Connection> connect(const std::string& text, const std::string& name,
                                        std::shared_ptr<Receiver> receiver,
                                        Clock::time_point deadline) override {
        const Address address = parse_address(text);
        std::string why = "no time to try";
        for (std::chrono::milliseconds pause(20);; pause = std::min(2 * pause, longest_pause)) {
            if (auto socket = try_connect(address, deadline, why)) {
                auto connection =
                    make_socket_connection(loop_, std::move(*socket), text, options_, false);
                loop_->post([this, connection, receiver] { adopt(connection, receiver); });
                return connection;
            }
            if (Clock::now() + pause >= deadline)
                break;
            std::this_thread::sleep_for(pause);
        }
        throw Error("cannot reach " + name + " at " + text + " within comm.timeout (" + why +
                    "): check that it runs and listens there, or raise the timeout");
    }

    EventLoop& loop() override { return *loop_; }

  private:
    static constexpr std::chrono::milliseconds longest_pause{1000};

    bool local_sockets() const { return options_.local_sockets && options_.tls == nullptr; }

    Acceptor open(const Endpoint& endpoint, error_code& error) {
        Acceptor acceptor(loop_->impl().context);
        acceptor.open(endpoint.protocol(), error);
        if (!error)
            acceptor.set_option(asio::socket_base::reuse_address(true), error);
        if (!error)
            acceptor.bind(endpoint, error);
        if (!error)
            acceptor.listen(asio::socket_base::max_listen_connections, error);
        return acceptor;
    }

    void accept_on(Acceptor& acceptor) {
        acceptor.async_accept([this, &acceptor](error_code error, Socket socket) {
            if (closing_)
                return;
            if (error) {  // out of descriptors, or the peer is gone already
                if (options_.log)
                    options_.log("a connection could not be accepted: " + error.message());
                loop_->post_at(Clock::now() + std::chrono::milliseconds(100),
                               [this, &acceptor] { accept_on(acceptor); });
                return;
            }
            welcome(std::move(socket));
            accept_on(acceptor);
        });
    }

    void welcome(Socket socket) {
        error_code error;
        const Endpoint remote = socket.remote_endpoint(error);
        std::string peer = "a peer that has gone";
        const bool local = !error && remote.protocol().family() == AF_UNIX;
        // Addresses of this kind are open to every user of the machine.
        if (local && credentials_of(socket.native_handle()).uid != ::geteuid())
            return;
        if (local)
            peer = "process " + std::to_string(credentials_of(socket.native_handle()).pid) +
                   " of this machine";
        else if (!error) {
            peer = address_of(remote).text();
            tune(socket.native_handle(), options_.timeout);
        }
        const auto connection =
            make_socket_connection(loop_, std::move(socket), peer, options_, true);
        adopt(connection, accept_(connection));
    }

    void adopt(const std::shared_ptr<SocketConnection>& connection,
               std::shared_ptr<Receiver> receiver) {
        connections_.push_back(connection);
        connection->start(std::move(receiver));
    }

    void watch() {
        const auto tick = std::clamp<std::chrono::milliseconds>(
            std::min(options_.timeout, options_.lease) / 8, std::chrono::milliseconds(5),
            std::chrono::milliseconds(250));
        std::erase_if(connections_, [](const auto& connection) { return connection->ended(); });
        for (size_t i = 0; i < connections_.size(); ++i)
            connections_[i]->watch(tick);
        loop_->post_at(Clock::now() + tick, [this] { watch(); });
    }

    std::optional<Socket> try_connect(const Address& address, Clock::time_point deadline,
                                      std::string& why) {
        for (const auto& tcp : resolve(address, why)) {
            const std::string ip = tcp.address().to_string();
            if (local_sockets() && is_local_address(ip))
                for (const std::string& host : {ip, std::string("0.0.0.0"), std::string("::")}) {
                    std::string unused;
                    auto socket =
                        try_endpoint(local_endpoint({host, address.port}), deadline, unused);
                    if (socket && credentials_of(socket->native_handle()).uid == ::geteuid())
                        return socket;
                }
            if (auto socket = try_endpoint(tcp, deadline, why))
                return socket;
        }
        return std::nullopt;
    }

    std::optional<Socket> try_endpoint(const Endpoint& endpoint, Clock::time_point deadline,
                                       std::string& why) {
        Socket socket(loop_->impl().context);
        error_code error;
        socket.open(endpoint.protocol(), error);
        if (!error)
            socket.native_non_blocking(true, error);
        const bool tcp = endpoint.protocol().family() != AF_UNIX;
        if (!error && tcp && !options_.interface.empty())
            bind_to_interface(socket, endpoint.protocol().family());
        if (error) {
            why = error.message();
            return std::nullopt;
        }
        const int fd = socket.native_handle();
        int result = ::connect(fd, endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0
                         ? 0
                         : errno;
        if (result == EINPROGRESS) {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
            pollfd wait{fd, POLLOUT, 0};
            socklen_t size = sizeof result;
            if (left.count() <= 0 || ::poll(&wait, 1, static_cast<int>(left.count())) <= 0)
                result = ETIMEDOUT;
            else
                ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &result, &size);
        }
        // A port of the ephemeral range with no listener can end up connected to itself.
        if (result == 0 && tcp && socket.local_endpoint(error) == socket.remote_endpoint(error))
            result = ECONNREFUSED;
        if (result != 0) {
            why = std::strerror(result);
            return std::nullopt;
        }
        if (tcp)
            tune(fd, options_.timeout);
        return socket;
    }

    void bind_to_interface(Socket& socket, int family) {
        for (const std::string& ip : addresses_of_interface(options_.interface)) {
            const auto address = asio::ip::make_address(ip);
            if (address.is_v4() == (family == AF_INET)) {
                error_code error;
                socket.bind(asio::ip::tcp::endpoint(address, 0), error);
                if (!error)
                    return;
            }
        }
    }

    const TransportOptions options_;
    Accept accept_;
    std::shared_ptr<EventLoop> loop_ = std::make_shared<EventLoop>("comm");
    // The loop's thread only. Acceptors and sockets are gone before the loop's context is.
    bool closing_ = false;
    std::deque<Acceptor> acceptors_;
    std::vector<std::shared_ptr<SocketConnection>> connections_;
};

}  // namespace

std::unique_ptr<Transport> make_socket_transport(TransportOptions options) {
    return std::make_unique<SocketTransport>(std::move(options));
}

}  // namespace trainer
