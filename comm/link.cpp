#include "comm/link.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/address.h"
#include "engine/error.h"

namespace trainer {
namespace {

using std::chrono::milliseconds;

// How long wait() looks for itself before it sleeps: to be woken costs about as long as a small
// message takes.
constexpr std::chrono::microseconds spin_time{30};

// For servers to take the reason of a failure.
constexpr std::chrono::seconds last_words_time{2};

/// Time during which anything of a kind is under way.
class BusyTime {
  public:
    void begin() {
        if (open_++ == 0)
            since_ = Clock::now();
    }
    void end() {
        if (--open_ == 0)
            total_ += Clock::now() - since_;
    }
    double seconds() const {
        const auto running = open_ > 0 ? Clock::now() - since_ : Clock::duration(0);
        return std::chrono::duration<double>(total_ + running).count();
    }

  private:
    int open_ = 0;
    Clock::time_point since_{};
    Clock::duration total_{0};
};

}  // namespace

struct Ticket::State {
    int64_t step = 0;
    std::string what;              ///< "push", "pull", or a call's name
    std::atomic<bool> over{true};  ///< open is empty, without the mutex
    std::vector<int> open;  ///< servers that have not done their part; under the core's mutex
};

/// All that the transport's thread shares with the caller's, under one mutex.
struct Link::Core {
    struct Server;

    /// How the link has ended.
    enum class End {
        failed,  ///< for good
        lost,    ///< a server has gone without a word
        again,   ///< a server says that all begin again
        later,   ///< a server does not take this worker just yet
    };

    /// A pull or call that waits for its answer.
    struct Pending {
        std::shared_ptr<Ticket::State> ticket;
        int server = 0;
        MessageKind answer = MessageKind::pulled;
        Range range;
        std::span<std::byte> destination;  ///< of a pull
    };

    explicit Core(LinkOptions a_options) : options(std::move(a_options)) {}

    void finish_part(Ticket::State& ticket, int server) {
        std::erase(ticket.open, server);
        ticket.over = ticket.open.empty();
        changed.notify_all();
    }
    /// Under the mutex, before it is asked to.
    void add_part(Ticket::State& ticket, int server) {
        ticket.open.push_back(server);
        ticket.over = false;
    }
    void broken(const std::string& why, End how = End::failed) {
        if (failure.empty()) {
            failure = why;
            end = options.reconnect ? how : End::failed;
        }
        changed.notify_all();
    }
    /// Whether the others have to begin again as well.
    bool ends_all() const { return end == End::again || (end == End::lost && !options.alone); }

    const LinkOptions options;
    const std::shared_ptr<BufferPool> pool = BufferPool::make();
    int rank = -1;
    int workers = 1;

    mutable std::mutex mutex;  // over all that follows
    std::condition_variable changed;
    std::vector<std::shared_ptr<Server>> servers;
    std::map<uint32_t, Pending> pending;  // by request
    uint32_t last_request = 0;
    PooledBytes reply;
    int64_t newest_step = 0;
    std::deque<Note> notes;
    std::string failure;  // empty while all is well
    End end = End::failed;
    LinkCounters counters;
    BusyTime pushing;
    BusyTime pulling;
    BusyTime travelling;
};

/// What comes from one server.
struct Link::Core::Server final : Receiver {
    Server(Core& a_core, int an_index)
        : core(a_core),
          index(an_index),
          name(core.options.called + " " + std::to_string(index) + " at " +
               core.options.servers[static_cast<size_t>(index)]) {}

    std::span<std::byte> destination(const Header& header) override {
        if (header.kind != MessageKind::pulled) {
            payload = core.pool->take(header.payload);
            return payload.bytes();
        }
        const std::lock_guard lock(core.mutex);
        const Pending& asked = find(header);
        if (header.codec != 0 || header.range != asked.range ||
            header.payload != asked.destination.size())
            throw Error("it answered a pull with another range");
        return asked.destination;
    }

    void received(const Header& header, std::span<std::byte>) override {
        if (header.payload == 0)
            payload = {};
        const std::lock_guard lock(core.mutex);
        switch (header.kind) {
            case MessageKind::welcome:
                if (welcome)  // the caller reads the first one without the mutex
                    throw Error("it welcomed this worker twice");
                welcome = parse_welcome(payload.bytes());
                break;
            case MessageKind::challenge:
                if (payload.bytes().size() != std::tuple_size_v<Nonce> || challenge)
                    throw Error("it sent a challenge that is malformed");
                std::ranges::copy(payload.bytes(), challenge.emplace().begin());
                break;
            case MessageKind::refuse:
                return core.broken(name + " refused: " + printable(payload.bytes()),
                                   header.request == refused_for_now ? End::later : End::failed);
            case MessageKind::error:
                return core.broken(name + " has failed: " + printable(payload.bytes()));
            case MessageKind::again:
                return core.broken(name + " begins again: " + printable(payload.bytes()),
                                   End::again);
            case MessageKind::pulled:
            case MessageKind::reply: {
                const Pending asked = find(header);
                core.pending.erase(header.request);
                if (header.kind == MessageKind::pulled) {
                    core.newest_step = std::max(core.newest_step, header.step);
                    core.counters.pull_bytes += static_cast<int64_t>(header.payload);
                    core.pulling.end();
                    core.travelling.end();
                } else {
                    split_name(header);
                    core.reply = std::exchange(payload, {});
                }
                core.finish_part(*asked.ticket, index);
                break;
            }
            case MessageKind::note: {
                std::string note = split_name(header);
                core.notes.push_back(
                    {index, header.step, std::move(note), std::exchange(payload, {})});
                break;
            }
            case MessageKind::bye:
                said_bye = true;
                break;
            default:
                throw Error("it sent a " + std::string(name_of(header.kind)) +
                            ", which only workers send");
        }
        core.changed.notify_all();
    }

    void lost(const std::string& reason) override {
        const std::lock_guard lock(core.mutex);
        if (!said_bye) {
            // Who is not trusted will not be later either.
            const bool may_come_back = reason.find("TLS: ") == std::string::npos;
            core.broken(name + " is lost (" + reason + "): see its log",
                        may_come_back ? End::lost : End::failed);
        }
    }

    /// Under the mutex: what this answers.
    const Pending& find(const Header& header) const {
        const auto found = core.pending.find(header.request);
        if (found == core.pending.end() || found->second.server != index ||
            found->second.answer != header.kind)
            throw Error("it answered what nobody asked");
        return found->second;
    }

    /// The name behind the body, which is cut off.
    std::string split_name(const Header& header) {
        const auto count = static_cast<size_t>(header.range.count);
        const size_t body = payload.bytes().size() - count;
        std::string text(reinterpret_cast<const char*>(payload.bytes().data()) + body, count);
        payload.shorten(body);
        return text;
    }

    Core& core;
    const int index;
    const std::string name;
    std::shared_ptr<Connection> connection;  // the caller's thread only
    PooledBytes payload;                     // the transport's thread only
    std::optional<Welcome> welcome;
    std::optional<Nonce> challenge;
    bool said_bye = false;
};

// --- connecting and leaving ----------------------------------------------------------------------

Link::Link(std::unique_ptr<Transport> transport, LinkOptions options)
    : core_(std::make_unique<Core>(std::move(options))), transport_(std::move(transport)) {
    Core& core = *core_;
    check(core.options.cuts.size() == core.options.servers.size() + 1,
          "as many shards as servers are needed");
    const Clock::time_point deadline =
        core.options.deadline.value_or(Clock::now() + core.options.timeout);
    core.rank = core.options.wished_rank;
    for (size_t s = 0; s < core.options.servers.size(); ++s) {
        const auto server = std::make_shared<Core::Server>(core, static_cast<int>(s));
        core.servers.push_back(server);
        server->connection =
            transport_->connect(core.options.servers[s],
                                core.options.called + " " + std::to_string(s), server, deadline);
        Header header;
        header.kind = MessageKind::hello;
        header.worker = core.rank;
        Hello hello{.wished_rank = core.rank,
                    .server = server->index,
                    .servers = static_cast<int32_t>(core.options.servers.size()),
                    .host = host_name(),
                    .terms = core.options.terms};
        if (core.options.secret != nullptr)
            hello.nonce = Secret::draw();
        const std::vector<std::byte> introduction = encode(hello);
        server->connection->send_bytes(header, introduction);

        std::unique_lock lock(core.mutex);
        const auto wait_for = [&](const auto& what) {
            return core.changed.wait_until(lock, deadline, [&] {
                return what.has_value() || server->welcome || !core.failure.empty();
            });
        };
        if (hello.nonce && wait_for(server->challenge) && server->challenge) {
            header.kind = MessageKind::proof;
            const Proof proof = core.options.secret->of_worker(*server->challenge, introduction);
            lock.unlock();
            server->connection->send_bytes(header, {proof.begin(), proof.end()});
            lock.lock();
        }
        const bool answered = wait_for(server->welcome);
        if (!core.failure.empty()) {
            const std::string failure = core.failure;
            lock.unlock();
            give_up(failure);
        }
        if (!answered)
            throw Error(server->name + " has not answered for " + seconds_of(core.options.timeout) +
                        ": it hangs, or another program listens there");
        if (hello.nonce) {
            const Welcome& welcome = *server->welcome;
            if (!welcome.proof || !server->challenge ||
                !Secret::equal(*welcome.proof,
                               core.options.secret->of_server(*hello.nonce, *server->challenge,
                                                              welcome.rank, welcome.workers)))
                throw Error(server->name +
                            " does not know the run's secret: give both the same "
                            "comm.secret_file, and see who listens there");
        }
        server->connection->allow_payload(UINT64_MAX);  // it is trusted now
        server->connection->keep_alive();
        core.rank = server->welcome->rank;
        core.workers = server->welcome->workers;
    }
}

Link::~Link() {
    transport_.reset();
}

void Link::give_up(const std::string& why) {
    fail(why);
    if (core_->end != Core::End::failed)
        throw ServerLost(why);
    throw Error(why);
}

void Link::fail(const std::string& why) {
    std::string text;
    {
        const std::lock_guard lock(core_->mutex);
        core_->broken(why);
        text = core_->failure;
    }
    if (transport_ == nullptr)
        return;
    int unsaid = 0;  // under the mutex
    Header header;
    header.kind = core_->ends_all() ? MessageKind::again : MessageKind::error;
    header.worker = core_->rank;
    header.payload = text.size();
    for (const auto& server : core_->servers) {
        if (server->connection == nullptr)
            continue;
        {
            const std::lock_guard lock(core_->mutex);
            ++unsaid;
        }
        server->connection->send(header, {std::as_bytes(std::span(text))}, [&](bool) {
            const std::lock_guard lock(core_->mutex);
            --unsaid;
            core_->changed.notify_all();
        });
    }
    {
        // A push may be half sent, and the reason stands behind it.
        std::unique_lock lock(core_->mutex);
        core_->changed.wait_for(lock, last_words_time, [&] { return unsaid == 0; });
    }
    transport_.reset();  // what is still unsaid is called off here
}

void Link::close() {
    Core& core = *core_;
    if (transport_ == nullptr)
        throw Error(core.failure);
    for (const auto& server : core.servers) {
        Header header;
        header.kind = MessageKind::bye;
        header.worker = core.rank;
        server->connection->send(header, {}, [](bool) {});
    }
    std::unique_lock lock(core.mutex);
    const auto all_said = [&] {
        return std::all_of(core.servers.begin(), core.servers.end(),
                           [](const auto& server) { return server->said_bye; });
    };
    const bool said = core.changed.wait_for(lock, core.options.timeout,
                                            [&] { return all_said() || !core.failure.empty(); });
    const std::string failure = core.failure;
    lock.unlock();
    if (!failure.empty())
        give_up(failure);
    if (!said)
        give_up("worker " + std::to_string(core.rank) + " has said good-bye, but not all servers " +
                "have answered for " + seconds_of(core.options.timeout) + ": see their logs");
    transport_.reset();
    core.failure = "the link is closed";
}

// --- pushing and pulling
// ---------------------------------------------------------------------------

Ticket Link::start(int64_t step, std::string what) {
    std::unique_lock lock(core_->mutex);
    if (!core_->failure.empty()) {
        const std::string failure = core_->failure;
        lock.unlock();
        give_up(failure);
    }
    Ticket ticket;
    ticket.state_ = std::make_shared<Ticket::State>();
    ticket.state_->step = step;
    ticket.state_->what = std::move(what);
    return ticket;
}

void Link::send_push(const Ticket& ticket, const Piece& piece, uint8_t codec, Parts payload) {
    Header header{MessageKind::push, codec, rank(), 0, ticket.state_->step, piece.range, 0};
    for (const auto part : payload)
        header.payload += part.size();
    {
        const std::lock_guard lock(core_->mutex);
        core_->add_part(*ticket.state_, piece.server);
        core_->pushing.begin();
        core_->travelling.begin();
        core_->counters.push_bytes += static_cast<int64_t>(header.payload);
    }
    const auto handed_over = [core = core_.get(), state = ticket.state_, piece](bool sent) {
        const std::lock_guard lock(core->mutex);
        core->pushing.end();
        core->travelling.end();
        if (sent)  // otherwise the connection is lost, and that will be said
            core->finish_part(*state, piece.server);
    };
    core_->servers[static_cast<size_t>(piece.server)]->connection->send(header, std::move(payload),
                                                                        handed_over);
}

Ticket Link::push(int64_t step, Range range, uint8_t codec, Parts payload) {
    const std::vector<Piece> pieces = split(range);
    check(pieces.size() <= 1, "an encoded range that lies in more than one shard");
    const Ticket ticket = start(step, "push");
    if (!pieces.empty())
        send_push(ticket, pieces.front(), codec, std::move(payload));
    return ticket;
}

Ticket Link::push(int64_t step, Range range, const std::byte* slab) {
    const size_t size = options().element_bytes;
    const Ticket ticket = start(step, "push");
    for (const Piece& piece : split(range))
        send_push(ticket, piece, 0,
                  {{slab + static_cast<size_t>(piece.range.first) * size,
                    static_cast<size_t>(piece.range.count) * size}});
    return ticket;
}

Ticket Link::pull(int64_t step, Range range, std::byte* slab) {
    const size_t size = options().element_bytes;
    const Ticket ticket = start(step, "pull");
    for (const Piece& piece : split(range)) {
        uint32_t request = 0;
        {
            const std::lock_guard lock(core_->mutex);
            request = ++core_->last_request;
            core_->add_part(*ticket.state_, piece.server);
            core_->pending[request] = {ticket.state_,
                                       piece.server,
                                       MessageKind::pulled,
                                       piece.range,
                                       {slab + static_cast<size_t>(piece.range.first) * size,
                                        static_cast<size_t>(piece.range.count) * size}};
            core_->pulling.begin();
            core_->travelling.begin();
        }
        core_->servers[static_cast<size_t>(piece.server)]->connection->send(
            Header{MessageKind::pull, 0, rank(), request, step, piece.range, 0}, {}, [](bool) {});
    }
    return ticket;
}

bool Link::done(const Ticket& ticket) const {
    return ticket.state_ == nullptr || ticket.state_->over;
}

void Link::wait(const Ticket& ticket, std::optional<milliseconds> timeout) {
    if (ticket.state_ == nullptr)
        return;
    Core& core = *core_;
    const Ticket::State& state = *ticket.state_;
    const milliseconds patience = timeout.value_or(core.options.timeout);
    if (state.over)
        return;
    const auto begin = Clock::now();
    while (!state.over && Clock::now() - begin < spin_time)
        std::this_thread::yield();
    std::unique_lock lock(core.mutex);
    const auto over = [&] { return state.open.empty() || !core.failure.empty(); };
    core.changed.wait_until(lock, begin + patience, over);
    core.counters.wait_s += std::chrono::duration<double>(Clock::now() - begin).count();
    if (state.open.empty())
        return;
    if (!core.failure.empty()) {
        const std::string failure = core.failure;
        lock.unlock();
        give_up(failure);
    }
    std::string who;
    for (const int server : state.open)
        who += (who.empty() ? "" : ", ") + core.servers[static_cast<size_t>(server)]->name;
    lock.unlock();
    give_up("worker " + std::to_string(core.rank) + " has waited " + seconds_of(patience) +
            " for the " + state.what + " of step " + std::to_string(state.step) + " with " + who +
            ": it hangs, or waits for another worker; see the logs, or raise comm.timeout");
}

// --- calls and notes
// -------------------------------------------------------------------------------

PooledBytes Link::call(int server, int64_t step, const std::string& name, Parts body,
                       std::optional<milliseconds> timeout) {
    const Ticket ticket = start(step, "\"" + name + "\"");
    Header header{MessageKind::call, 0, rank(), 0, step, {0, static_cast<int64_t>(name.size())}, 0};
    {
        const std::lock_guard lock(core_->mutex);
        header.request = ++core_->last_request;
        core_->add_part(*ticket.state_, server);
        core_->pending[header.request] = {ticket.state_, server, MessageKind::reply, {}, {}};
    }
    body.push_back(std::as_bytes(std::span(name)));
    for (const auto part : body)
        header.payload += part.size();
    core_->servers[static_cast<size_t>(server)]->connection->send(header, std::move(body),
                                                                  [](bool) {});
    wait(ticket, timeout);
    const std::lock_guard lock(core_->mutex);
    return std::exchange(core_->reply, {});
}

void Link::note(int server, int64_t step, const std::string& name,
                std::span<const std::byte> body) {
    start(step, name);
    std::vector<std::byte> payload(body.begin(), body.end());
    const auto text = std::as_bytes(std::span(name));
    payload.insert(payload.end(), text.begin(), text.end());
    core_->servers[static_cast<size_t>(server)]->connection->send_bytes(
        Header{MessageKind::note, 0, rank(), 0, step, {0, static_cast<int64_t>(name.size())}, 0},
        std::move(payload));
}

std::optional<Note> Link::take_note() {
    const std::lock_guard lock(core_->mutex);
    if (core_->notes.empty())
        return std::nullopt;
    Note note = std::move(core_->notes.front());
    core_->notes.pop_front();
    return note;
}

void Link::check_alive() const {
    const std::lock_guard lock(core_->mutex);
    if (!core_->failure.empty())
        throw Error(core_->failure);
}

int Link::rank() const {
    return core_->rank;
}
int Link::workers() const {
    return core_->workers;
}
int Link::servers() const {
    return static_cast<int>(core_->options.servers.size());
}
const LinkOptions& Link::options() const {
    return core_->options;
}

int64_t Link::newest_step() const {
    const std::lock_guard lock(core_->mutex);
    return core_->newest_step;
}

LinkCounters Link::counters() const {
    const std::lock_guard lock(core_->mutex);
    LinkCounters counters = core_->counters;
    counters.push_s = core_->pushing.seconds();
    counters.pull_s = core_->pulling.seconds();
    counters.travel_s = core_->travelling.seconds();
    return counters;
}

}  // namespace trainer
