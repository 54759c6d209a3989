#include "comm/server_endpoint.h"

#include <utility>

#include "engine/error.h"

namespace trainer {
namespace {

constexpr int most_strangers = 64;

/// What a welcomed worker may send at once: enough for its whole state.
uint64_t payload_cap(const ServerOptions& options) {
    return (uint64_t{1} << 30) +
           64 * static_cast<uint64_t>(options.cuts.back()) * options.element_bytes;
}

/// What a codec may make of a range: raw values beside 64-bit indices, and a little more.
uint64_t push_cap(Range range, size_t element_bytes) {
    return static_cast<uint64_t>(range.count) * (element_bytes + 8) + (64 << 10);
}

std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string seconds_of(std::chrono::milliseconds time) {
    return std::to_string(static_cast<double>(time.count()) / 1000).substr(0, 4) + " s";
}

bool inside(Range inner, Range outer) {
    return inner.first >= outer.first && inner.end() <= outer.end();
}

}  // namespace

/// One worker's connection. All on the loop's thread but for what is const once it has a rank.
class ServerEndpoint::Session final : public Receiver,
                                      public std::enable_shared_from_this<Session> {
  public:
    enum class Stage { stranger, member, gone };

    Session(ServerEndpoint& endpoint, std::shared_ptr<Connection> a_connection)
        : connection(std::move(a_connection)), who(connection->peer()), endpoint_(endpoint) {}

    std::span<std::byte> destination(const Header& header) override {
        if (stage == Stage::stranger && header.kind != MessageKind::hello)
            throw Error("it opened with a " + std::string(name_of(header.kind)) +
                        " instead of a hello");
        if (stage == Stage::member && header.kind == MessageKind::push)
            if (header.payload > push_cap(header.range, endpoint_.options_.element_bytes))
                throw Error("it pushed " + std::to_string(header.payload) + " bytes for " +
                            std::to_string(header.range.count) + " elements");
        payload_ = endpoint_.pool_->take(header.payload);
        return payload_.bytes();
    }

    void received(const Header& header, std::span<std::byte>) override {
        if (header.payload == 0)
            payload_ = {};
        if (stage == Stage::stranger && header.kind == MessageKind::hello)
            endpoint_.hello(shared_from_this(), payload_.bytes());
        else if (stage == Stage::stranger)
            throw Error("it opened with a " + std::string(name_of(header.kind)) +
                        " instead of a hello");
        else if (stage == Stage::member)
            endpoint_.message(*this, header, std::exchange(payload_, {}));
    }

    void lost(const std::string& reason) override { endpoint_.lost(*this, reason); }

    const std::shared_ptr<Connection> connection;
    std::string who;  ///< for people
    int rank = -1;
    Stage stage = Stage::stranger;
    bool said_bye = false;  // nothing more is to be sent; under the mutex

  private:
    ServerEndpoint& endpoint_;
    PooledBytes payload_;
};

ServerEndpoint::ServerEndpoint(std::unique_ptr<Transport> transport, ServerOptions options,
                               ServerHandler& handler)
    : options_(std::move(options)),
      handler_(handler),
      index_(options_.index),
      transport_(std::move(transport)) {
    check(options_.cuts.size() >= 2, "a server without cuts");
    listening_ = transport_->listen(options_.listen, [this](std::shared_ptr<Connection> opened) {
        const auto session = std::make_shared<Session>(*this, std::move(opened));
        if (++strangers_ > most_strangers)
            refuse(*session, "too many connections wait here that have said no hello");
        const std::weak_ptr<Session> weak = session;
        loop().post_at(Clock::now() + options_.timeout, [this, weak] {
            const auto still = weak.lock();
            if (still != nullptr && still->stage == Session::Stage::stranger)
                still->connection->close("it said no hello for " + seconds_of(options_.timeout));
        });
        return session;
    });
}

ServerEndpoint::~ServerEndpoint() {
    transport_.reset();
}

int ServerEndpoint::index() const {
    const std::lock_guard lock(mutex_);
    return index_;
}

ServerCounters ServerEndpoint::counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
}

void ServerEndpoint::log(const std::string& line) const {
    if (options_.log)
        options_.log(line);
}

// --- taking workers in -----------------------------------------------------------------------

void ServerEndpoint::hello(const std::shared_ptr<Session>& session,
                           std::span<const std::byte> payload) {
    const Hello hello = parse_hello(payload);
    const std::string who = hello.wished_rank < 0 ? "the worker at " + session->who
                                                  : "worker " + std::to_string(hello.wished_rank) +
                                                        " at " + session->who;
    if (const std::string why = objection(hello, who); !why.empty())
        return refuse(*session, why);

    int rank = hello.wished_rank;
    {
        const std::lock_guard lock(mutex_);
        if (rank < 0)
            for (rank = 0; sessions_.contains(rank);)
                ++rank;
        index_ = hello.server;
        session->rank = rank;
        session->who = "worker " + std::to_string(rank) + " (" + session->who + ")";
        session->stage = Session::Stage::member;
        sessions_.emplace(rank, session);
    }
    --strangers_;
    session->connection->allow_payload(payload_cap(options_));
    Header header;
    header.kind = MessageKind::welcome;
    header.worker = rank;
    session->connection->send_bytes(header, encode(Welcome{rank, options_.workers}));
    log(session->who + " has joined");
    try {
        handler_.joined(rank);
    } catch (...) {
        fail(std::current_exception());
    }
    changed_.notify_all();
}

/// Why a worker may not take part; empty where it may.
std::string ServerEndpoint::objection(const Hello& hello, const std::string& who) const {
    const std::lock_guard lock(mutex_);
    const int servers = static_cast<int>(options_.cuts.size()) - 1;
    if (hello.servers != servers)
        return "the run has " + std::to_string(servers) + " servers here and " +
               std::to_string(hello.servers) + " on " + who +
               ": give all the same distributed.servers and list of servers";
    if (index_ >= 0 && hello.server != index_)
        return who + " takes this server for server " + std::to_string(hello.server) +
               ", but it is server " + std::to_string(index_) +
               ": list the servers in the same order on every worker";
    if (const auto differs = difference(options_.terms, "the server", hello.terms, who))
        return *differs + ": give every process the same config, build and model";
    if (failure_ != nullptr)
        return "this server's run has failed already; start it anew";
    if (hello.wished_rank >= options_.workers)
        return "there is no rank " + std::to_string(hello.wished_rank) + " among " +
               std::to_string(options_.workers) + " workers: ranks count from 0";
    if (const auto taken = sessions_.find(hello.wished_rank); taken != sessions_.end())
        return "rank " + std::to_string(hello.wished_rank) + " is taken by " + taken->second->who +
               ": give each worker its own --rank, or none to any";
    if (static_cast<int>(sessions_.size()) >= options_.workers)
        return "all " + std::to_string(options_.workers) +
               " workers have joined already: raise distributed.workers everywhere, or start fewer";
    return "";
}

void ServerEndpoint::refuse(Session& session, const std::string& why) {
    Header header;
    header.kind = MessageKind::refuse;
    session.connection->send_text(header, why);
    session.connection->close("it was refused: " + why);
    const std::lock_guard lock(mutex_);
    last_refusal_ = why;
}

// --- what members send -------------------------------------------------------------------------

void ServerEndpoint::message(Session& session, const Header& header, PooledBytes payload) {
    {
        const std::lock_guard lock(mutex_);
        if (failure_ != nullptr)
            return;
    }
    const Request request{session.rank, header.request, header.step, header.range};
    const auto check_range = [&] {
        if (!inside(header.range, shard()))
            throw Error("its " + std::string(name_of(header.kind)) + " of elements " +
                        std::to_string(header.range.first) + " to " +
                        std::to_string(header.range.end()) + " is not for this server");
    };
    // The name stands behind the body; parse_header has seen that it fits.
    const auto split_name = [&] {
        const size_t body = payload.bytes().size() - static_cast<size_t>(header.range.count);
        std::string name = text_of(payload.bytes().subspan(body));
        payload.shorten(body);
        return name;
    };
    if (header.kind == MessageKind::push || header.kind == MessageKind::pull)
        check_range();
    try {
        switch (header.kind) {
            case MessageKind::push: {
                {
                    const std::lock_guard lock(mutex_);
                    counters_.push_bytes += static_cast<int64_t>(header.payload);
                }
                return handler_.push(session.rank, header.step, header.range, header.codec,
                                     std::move(payload));
            }
            case MessageKind::pull:
                return handler_.pull(request);
            case MessageKind::call: {
                const std::string name = split_name();
                return handler_.call(request, name, std::move(payload));
            }
            case MessageKind::note: {
                const std::string name = split_name();
                return handler_.note(session.rank, header.step, name, std::move(payload));
            }
            case MessageKind::bye:
                return left(session);
            default:
                break;
        }
    } catch (...) {
        return fail(std::current_exception());
    }
    if (header.kind == MessageKind::error)
        throw Error("it has failed: " + printable(payload.bytes()));
    throw Error("it sent a " + std::string(name_of(header.kind)) + ", which only servers send");
}

void ServerEndpoint::left(Session& session) {
    {
        const std::lock_guard lock(mutex_);
        session.stage = Session::Stage::gone;
    }
    handler_.left(session.rank);
    Header header;
    header.kind = MessageKind::bye;
    header.worker = session.rank;
    // Once the last good-bye is out this endpoint may be taken down, and not before: on a shaped
    // link it takes its time.
    session.connection->send(header, {}, [this, kept = session.shared_from_this()](bool) {
        const std::lock_guard lock(mutex_);
        kept->said_bye = true;
        changed_.notify_all();
    });
    session.connection->close("it is done");
}

void ServerEndpoint::lost(Session& session, const std::string& reason) {
    const auto stage = session.stage;
    {
        const std::lock_guard lock(mutex_);
        session.stage = Session::Stage::gone;
    }
    if (stage == Session::Stage::stranger) {
        --strangers_;
        log("a connection from " + session.who + " came to nothing: " + reason);
    }
    if (stage != Session::Stage::member)
        return;
    {
        const std::lock_guard lock(mutex_);
        if (failure_ != nullptr)
            return;  // that is why
    }
    log(session.who + " is lost: " + reason);
    try {
        handler_.lost(session.rank, session.who, reason);
    } catch (...) {
        fail(std::current_exception());
    }
    // Only now is it done with: whoever waits for the end must not miss the failure.
    const std::lock_guard lock(mutex_);
    session.said_bye = true;
    changed_.notify_all();
}

// --- waiting and ending --------------------------------------------------------------------------

void ServerEndpoint::rethrow_failure() const {
    if (failure_ != nullptr)
        std::rethrow_exception(failure_);
}

void ServerEndpoint::wait_for_workers(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const auto complete = [&] {
        return failure_ != nullptr || static_cast<int>(sessions_.size()) == options_.workers;
    };
    if (changed_.wait_for(lock, timeout, complete))
        return rethrow_failure();

    std::string present;
    for (const auto& [rank, session] : sessions_)
        present += (present.empty() ? "" : ", ") + session->who;
    const size_t missing = static_cast<size_t>(options_.workers) - sessions_.size();
    const Error error(std::to_string(missing) + " of " + std::to_string(options_.workers) +
                      " workers have not come to the server at " + listening_.advertised +
                      " within " + seconds_of(timeout) +
                      (present.empty() ? "" : " (there are: " + present + ")") +
                      (last_refusal_.empty() ? "" : " (one was refused: " + last_refusal_ + ")") +
                      ": start them, see their logs, or raise comm.timeout");
    lock.unlock();
    fail(std::make_exception_ptr(error));
    throw error;
}

bool ServerEndpoint::wait_finished(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const auto all_left = [&] {
        if (static_cast<int>(sessions_.size()) != options_.workers)
            return false;
        for (const auto& [rank, session] : sessions_)
            if (session->stage != Session::Stage::gone || !session->said_bye)
                return false;
        return true;
    };
    changed_.wait_for(lock, timeout, [&] { return failure_ != nullptr || all_left(); });
    rethrow_failure();
    return all_left();
}

void ServerEndpoint::fail(std::exception_ptr error) {
    std::string text = "an unknown error";
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& known) {
        text = known.what();
    } catch (...) {
    }
    std::vector<std::shared_ptr<Session>> members;
    {
        const std::lock_guard lock(mutex_);
        if (failure_ != nullptr)
            return;
        failure_ = error;
        for (const auto& [rank, session] : sessions_)
            if (session->stage == Session::Stage::member)
                members.push_back(session);
    }
    changed_.notify_all();
    for (const auto& session : members) {
        Header header;
        header.kind = MessageKind::error;
        header.worker = session->rank;
        session->connection->send_text(header, text);
        session->connection->close("this server's run has failed");
    }
}

// --- answers
// ---------------------------------------------------------------------------------------

std::shared_ptr<Connection> ServerEndpoint::connection_of(int worker) const {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(worker);
    const bool there = found != sessions_.end() && found->second->stage == Session::Stage::member;
    return there ? found->second->connection : nullptr;
}

void ServerEndpoint::answer(const Request& request, std::span<const std::byte> values,
                            std::shared_ptr<const void> keep) {
    check(values.size() == static_cast<size_t>(request.range.count) * options_.element_bytes,
          "an answer of another length than was asked for");
    const auto connection = connection_of(request.worker);
    if (connection == nullptr)
        return;
    {
        const std::lock_guard lock(mutex_);
        counters_.pull_bytes += static_cast<int64_t>(values.size());
    }
    Header header{MessageKind::pulled, 0, request.worker, request.id, request.step, request.range,
                  values.size()};
    connection->send(header, {values}, [keep = std::move(keep)](bool) {});
}

void ServerEndpoint::reply(const Request& request, Parts body, std::shared_ptr<const void> keep) {
    const auto connection = connection_of(request.worker);
    if (connection == nullptr)
        return;
    Header header{MessageKind::reply, 0, request.worker, request.id, request.step, {}, 0};
    for (const auto part : body)
        header.payload += part.size();
    connection->send(header, std::move(body), [keep = std::move(keep)](bool) {});
}

void ServerEndpoint::reply(const Request& request, std::span<const std::byte> body) {
    const auto copy = std::make_shared<std::vector<std::byte>>(body.begin(), body.end());
    reply(request, {std::span<const std::byte>(*copy)}, copy);
}

void ServerEndpoint::note(int worker, int64_t step, const std::string& name,
                          std::span<const std::byte> body) {
    const auto connection = connection_of(worker);
    if (connection == nullptr)
        return;
    std::vector<std::byte> payload(body.begin(), body.end());
    const auto text = std::as_bytes(std::span(name));
    payload.insert(payload.end(), text.begin(), text.end());
    Header header;
    header.kind = MessageKind::note;
    header.worker = worker;
    header.step = step;
    header.range = {0, static_cast<int64_t>(name.size())};
    connection->send_bytes(header, std::move(payload));
}

}  // namespace trainer
