#include "comm/server_endpoint.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/error.h"

namespace trainer {
namespace {

constexpr size_t most_strangers = 64;
constexpr std::chrono::milliseconds hello_time{10000};  // for a stranger to become a member
constexpr std::chrono::seconds repeat_time{10};         // until the same is told again
constexpr size_t most_reasons = 64;                     // that are counted meanwhile
constexpr const char* too_many = "too many connections wait here that have said no hello";

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
        if (stage == Stage::stranger)
            check_opening(header);
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
        if (stage == Stage::stranger) {
            check_opening(header);
            if (challenge)
                endpoint_.prove(shared_from_this(), payload_.bytes());
            else
                endpoint_.introduce(shared_from_this(), payload_.bytes());
        } else if (stage == Stage::member)
            endpoint_.message(*this, header, std::exchange(payload_, {}));
    }

    void lost(const std::string& reason) override { endpoint_.lost(*this, reason); }

    const std::shared_ptr<Connection> connection;
    std::string who;  ///< for people
    int rank = -1;
    Stage stage = Stage::stranger;
    std::optional<Nonce> challenge;       // that it was sent
    std::vector<std::byte> introduction;  // the hello that it answers for

  private:
    void check_opening(const Header& header) const {
        const MessageKind due = challenge ? MessageKind::proof : MessageKind::hello;
        if (header.kind != due)
            throw Error("it opened with a " + std::string(name_of(header.kind)) + " instead of a " +
                        std::string(name_of(due)));
    }

    ServerEndpoint& endpoint_;
    PooledBytes payload_;
};

ServerEndpoint::ServerEndpoint(std::unique_ptr<Transport> transport, ServerOptions options,
                               ServerHandler& handler)
    : options_(std::move(options)),
      handler_(handler),
      index_(options_.index),
      expected_(options_.workers),
      transport_(std::move(transport)),
      loop_(transport_->loop()) {
    check(options_.cuts.size() >= 2, "a server without cuts");
    listening_ = transport_->listen(options_.listen, [this](std::shared_ptr<Connection> opened) {
        const auto session = std::make_shared<Session>(*this, std::move(opened));
        // A worker says its hello at once: of too many who say nothing the first one has had its
        // time.
        std::erase_if(strangers_, [](const auto& each) {
            const auto other = each.lock();
            return other == nullptr || other->stage != Session::Stage::stranger;
        });
        if (strangers_.size() >= most_strangers) {
            if (const auto oldest = strangers_.front().lock())
                send_away(oldest, MessageKind::refuse, too_many, too_many);
            strangers_.pop_front();
        }
        const std::weak_ptr<Session> weak = session;
        strangers_.push_back(weak);
        loop().post_at(Clock::now() + std::min(options_.timeout, hello_time), [this, weak] {
            const auto still = weak.lock();
            if (still != nullptr && still->stage == Session::Stage::stranger)
                still->connection->close("it said no hello for " +
                                         seconds_of(std::min(options_.timeout, hello_time)));
        });
        return session;
    });
}

ServerEndpoint::~ServerEndpoint() {
    here_.reset();
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

/// The same of the same host, who tries again, is told at first and then counted for a while.
void ServerEndpoint::tell_refusal(const std::string& who, const std::string& reason) {
    const std::string host = who.substr(0, who.rfind(':'));
    std::string kind = host + " came to nothing: " + reason;
    // The port is another each time.
    for (size_t at = 0; (at = kind.find(who, at)) != std::string::npos; at += host.size())
        kind.replace(at, who.size(), host);
    if (const auto told = more_refusals_.find(kind); told != more_refusals_.end()) {
        ++told->second;
        return;
    }
    log("a connection from " + who + " came to nothing: " + reason);
    if (more_refusals_.size() == most_reasons)  // of who finds a new one each time, none are kept
        return;
    more_refusals_.emplace(kind, 0);
    loop().post_at(Clock::now() + repeat_time, [this, kind, here = std::weak_ptr(here_)] {
        if (here.expired())
            return;
        const auto counted = more_refusals_.extract(kind);
        if (const int more = counted.mapped(); more > 0)
            log("a connection from " + kind + " (" + std::to_string(more) + " more like it)");
    });
}

// --- taking workers in -----------------------------------------------------------------------

void ServerEndpoint::introduce(const std::shared_ptr<Session>& session,
                               std::span<const std::byte> payload) {
    const Hello hello = parse_hello(payload);
    if (options_.secret == nullptr) {
        if (hello.nonce)
            return refuse(*session,
                          "the worker has a secret and this server none: set "
                          "comm.secret_file on both");
        return this->hello(session, hello);
    }
    if (!hello.nonce)
        return refuse(*session, "this server wants the run's secret: set comm.secret_file");
    session->introduction.assign(payload.begin(), payload.end());
    session->challenge = Secret::draw();
    Header header;
    header.kind = MessageKind::challenge;
    session->connection->send_bytes(header,
                                    {session->challenge->begin(), session->challenge->end()});
}

void ServerEndpoint::prove(const std::shared_ptr<Session>& session,
                           std::span<const std::byte> payload) {
    Proof proof;
    const bool fits = payload.size() == proof.size();
    if (fits)
        std::ranges::copy(payload, proof.begin());
    if (!fits || !Secret::equal(
                     proof, options_.secret->of_worker(*session->challenge, session->introduction)))
        return refuse(*session,
                      "its secret is not this server's: give both the same "
                      "comm.secret_file");
    hello(session, parse_hello(session->introduction));
}

void ServerEndpoint::hello(const std::shared_ptr<Session>& session, const Hello& hello) {
    const std::string who = hello.wished_rank < 0 ? "the worker at " + session->who
                                                  : "worker " + std::to_string(hello.wished_rank) +
                                                        " at " + session->who;
    if (const std::string why = objection(hello, who); !why.empty())
        // Whoever has the rank may be lost, which is seen only at the end of the lease.
        return refuse(*session, why, options_.rejoin && is_taken(hello.wished_rank));

    int rank = hello.wished_rank;
    {
        const std::lock_guard lock(mutex_);
        if (rank < 0)
            rank = free_rank();
        index_ = hello.server;
        session->rank = rank;
        session->who =
            "worker " + std::to_string(rank) +
            (hello.host.empty() ? "" : " on " + printable(std::as_bytes(std::span(hello.host)))) +
            " (" + session->who + ")";
        session->stage = Session::Stage::member;
        sessions_.emplace(rank, session);
        came_.insert(rank);
    }
    session->connection->allow_payload(payload_cap(options_));
    session->connection->keep_alive();
    Header header;
    header.kind = MessageKind::welcome;
    header.worker = rank;
    Welcome welcome{rank, options_.workers, {}};
    if (session->challenge)
        welcome.proof =
            options_.secret->of_server(*hello.nonce, *session->challenge, rank, options_.workers);
    session->connection->send_bytes(header, encode(welcome));
    log(session->who + " has joined");
    try {
        handler_.joined(rank);
    } catch (...) {
        fail(std::current_exception());
    }
    changed_.notify_all();
}

/// The lowest that nobody has had; where all have been, the lowest whose worker has gone.
int ServerEndpoint::free_rank() const {
    for (int rank = 0; rank < options_.workers; ++rank)
        if (!came_.contains(rank))
            return rank;
    int rank = 0;
    while (sessions_.contains(rank))
        ++rank;
    return rank;
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
    if (const auto holder = sessions_.find(hello.wished_rank); holder != sessions_.end())
        return "rank " + std::to_string(hello.wished_rank) + " is taken by " + holder->second->who +
               ": give each worker its own --rank, or none to any";
    if (!options_.rejoin && came_.contains(hello.wished_rank))
        return "the worker of rank " + std::to_string(hello.wished_rank) + " has left already";
    const size_t taken = options_.rejoin ? sessions_.size() : came_.size();
    if (static_cast<int>(taken) >= options_.workers)
        return "all " + std::to_string(options_.workers) +
               " workers have joined already: raise distributed.workers everywhere, or start fewer";
    return "";
}

bool ServerEndpoint::is_taken(int rank) const {
    const std::lock_guard lock(mutex_);
    return sessions_.contains(rank);
}

void ServerEndpoint::refuse(Session& session, const std::string& why, bool for_now) {
    Header header;
    header.kind = MessageKind::refuse;
    header.request = for_now ? refused_for_now : 0;
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
    if (header.kind == MessageKind::again)
        return gone(session, printable(payload.bytes()), Parting::again);
    if (header.kind == MessageKind::error)
        return gone(session, printable(payload.bytes()), Parting::failed);
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
        ++left_;
        forget(*kept);
    });
    session.connection->close("it is done");
}

void ServerEndpoint::lost(Session& session, const std::string& reason) {
    if (session.stage == Session::Stage::stranger) {
        session.stage = Session::Stage::gone;
        tell_refusal(session.who, reason);
    }
    if (session.stage == Session::Stage::member)
        gone(session, reason, Parting::lost);
}

void ServerEndpoint::gone(Session& session, const std::string& reason, Parting how) {
    const auto kept = session.shared_from_this();
    {
        const std::lock_guard lock(mutex_);
        session.stage = Session::Stage::gone;
        if (failure_ != nullptr)
            return;  // that is why
    }
    try {
        if (how == Parting::again)
            handler_.again(session.rank, session.who, reason);
        else if (how == Parting::failed)
            handler_.failed(session.rank, session.who, reason);
        else
            handler_.lost(session.rank, session.who, reason);
        log(session.who +
            (how == Parting::again    ? " asks to begin again: "
             : how == Parting::failed ? " has failed: "
                                      : " is lost: ") +
            reason);
    } catch (...) {
        fail(std::current_exception());
    }
    // Only now is it done with: whoever waits for the end must not miss the failure.
    const std::lock_guard lock(mutex_);
    forget(session);
}

/// Under the mutex.
void ServerEndpoint::forget(const Session& session) {
    const auto found = sessions_.find(session.rank);
    if (found != sessions_.end() && found->second.get() == &session)
        sessions_.erase(found);
    changed_.notify_all();
}

void ServerEndpoint::send_away(const std::shared_ptr<Session>& session, MessageKind kind,
                               const std::string& why, const std::string& reason) {
    Header header;
    header.kind = kind;
    header.worker = session->rank;
    session->connection->send_text(header, why);
    session->connection->close(reason);
}

void ServerEndpoint::restart(const std::string& why) {
    std::map<int, std::shared_ptr<Session>> sessions;
    {
        const std::lock_guard lock(mutex_);
        sessions.swap(sessions_);
        came_.clear();
        ++restarts_;
        expected_ = options_.workers;
        left_ = 0;
    }
    for (const auto& [rank, session] : sessions)
        if (std::exchange(session->stage, Session::Stage::gone) == Session::Stage::member)
            send_away(session, MessageKind::again, why, "the run begins again");
    loop().post_at(Clock::now() + options_.timeout, [this, restarts = restarts_, why,
                                                     here = std::weak_ptr(here_)] {
        if (!here.expired() && restarts == restarts_ && came_.empty())
            fail(std::make_exception_ptr(
                Error("no worker has come back within " + seconds_of(options_.timeout) + " (" +
                      why + "): start the run again, it goes on from its last checkpoint")));
    });
}

void ServerEndpoint::expect(int workers) {
    const std::lock_guard lock(mutex_);
    expected_ = workers;
    changed_.notify_all();
}

void ServerEndpoint::finish() {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
}

std::string ServerEndpoint::name_of_worker(int worker) const {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(worker);
    return found == sessions_.end() ? "worker " + std::to_string(worker) : found->second->who;
}

// --- waiting and ending --------------------------------------------------------------------------

void ServerEndpoint::rethrow_failure() const {
    if (failure_ != nullptr)
        std::rethrow_exception(failure_);
}

void ServerEndpoint::wait_for_workers(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const auto complete = [&] {
        return failure_ != nullptr || static_cast<int>(came_.size()) >= expected_;
    };
    if (changed_.wait_for(lock, timeout, complete))
        return rethrow_failure();

    std::string present;
    for (const auto& [rank, session] : sessions_)
        present += (present.empty() ? "" : ", ") + session->who;
    const size_t missing = static_cast<size_t>(expected_) - came_.size();
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
        return over_ ||
               (left_ > 0 && sessions_.empty() && static_cast<int>(came_.size()) >= expected_);
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
    for (const auto& session : members)
        send_away(session, MessageKind::error, text, "this server's run has failed");
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
