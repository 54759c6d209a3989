#include "comm/metrics_http.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <thread>

#include "engine/error.h"

namespace trainer {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t longest_request = 8192;
constexpr std::chrono::seconds patience{5};  // with one request and its answer
constexpr int most_connections = 32;

std::string answer(const std::string& status, const std::string& body, bool with_body = true) {
    return "HTTP/1.1 " + status +
           "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + (with_body ? body : "");
}

/// What the first line of a request asks for.
std::string answer_to(const std::string& request, const std::function<std::string()>& text) {
    const std::string line = request.substr(0, request.find("\r\n"));
    const size_t method_end = line.find(' ');
    const size_t path_end = line.find_first_of(" ?", method_end + 1);
    if (method_end == std::string::npos || path_end == std::string::npos)
        return answer("400 Bad Request", "not an HTTP request\n");
    const std::string method = line.substr(0, method_end);
    const std::string path = line.substr(method_end + 1, path_end - method_end - 1);
    if (method != "GET" && method != "HEAD")
        return answer("405 Method Not Allowed", "GET only\n");
    if (path != "/metrics")
        return answer("404 Not Found", "the metrics are at /metrics\n", method == "GET");
    return answer("200 OK", text(), method == "GET");
}

/// One connection: reads a request, answers, closes. Kept alive by its handlers.
class Session : public std::enable_shared_from_this<Session> {
  public:
    Session(tcp::socket socket, const std::function<std::string()>& text, int& open)
        : socket_(std::move(socket)), timer_(socket_.get_executor()), text_(text), open_(open) {
        ++open_;
    }
    ~Session() { --open_; }

    void start() {
        timer_.expires_after(patience);
        timer_.async_wait([self = shared_from_this()](error_code error) {
            if (!error)
                self->close();
        });
        asio::async_read_until(
            socket_, asio::dynamic_buffer(request_, longest_request), "\r\n\r\n",
            [self = shared_from_this()](error_code error, size_t) { self->respond(error); });
    }

  private:
    void respond(error_code error) {
        if (error && error != asio::error::not_found)
            return close();
        answer_ =
            error ? answer("431 Request Header Fields Too Large", "") : answer_to(request_, text_);
        asio::async_write(socket_, asio::buffer(answer_),
                          [self = shared_from_this()](error_code, size_t) {
                              error_code ignored;
                              self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
                              self->close();
                          });
    }

    void close() {
        error_code ignored;
        timer_.cancel();
        socket_.close(ignored);
    }

    tcp::socket socket_;
    asio::steady_timer timer_;
    const std::function<std::string()>& text_;
    int& open_;
    std::string request_, answer_;
};

}  // namespace

struct MetricsHttp::State {
    State(int port, std::function<std::string()> make_text)
        : text(std::move(make_text)), acceptor(io), retry(io) {
        // Both families where the system has both.
        try {
            listen(tcp::v6(), port);
        } catch (const boost::system::system_error&) {
            error_code ignored;
            acceptor.close(ignored);
            listen(tcp::v4(), port);
        }
        accept();
        thread = std::thread([this] { io.run(); });
    }

    ~State() {
        io.stop();
        thread.join();
    }

    void listen(const tcp& family, int port) {
        acceptor.open(family);
        if (family == tcp::v6())
            acceptor.set_option(asio::ip::v6_only(false));
        acceptor.set_option(tcp::acceptor::reuse_address(true));
        acceptor.bind({family, static_cast<uint16_t>(port)});
        acceptor.listen();
    }

    void accept() {
        acceptor.async_accept([this](error_code error, tcp::socket socket) {
            if (!error && open < most_connections)
                std::make_shared<Session>(std::move(socket), text, open)->start();
            if (!error)
                return accept();
            // Out of descriptors, most likely: try again, but not at once.
            retry.expires_after(std::chrono::milliseconds(200));
            retry.async_wait([this](error_code) { accept(); });
        });
    }

    std::function<std::string()> text;
    int open = 0;  // connections; before io, whose handlers hold them
    asio::io_context io{1};
    tcp::acceptor acceptor;
    asio::steady_timer retry;
    std::thread thread;
};

MetricsHttp::MetricsHttp(int port, std::function<std::string()> text) {
    try {
        state_ = std::make_unique<State>(port, std::move(text));
    } catch (const boost::system::system_error& error) {
        throw Error("--metrics-port " + std::to_string(port) + ": " + error.code().message() +
                    "; choose another port, or 0 for any free one");
    }
}

MetricsHttp::~MetricsHttp() = default;

int MetricsHttp::port() const {
    return state_->acceptor.local_endpoint().port();
}

}  // namespace trainer
