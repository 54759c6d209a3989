// ServerEndpoint: a server's side of the wire. Takes workers in, hands their messages to one
// handler on one thread, sends what the handler answers.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/buffer_pool.h"
#include "comm/hello.h"
#include "comm/secret.h"
#include "comm/shards.h"
#include "comm/transport.h"

namespace trainer {

struct ServerOptions {
    std::string listen = "127.0.0.1:0";
    int index = -1;   ///< which of the servers this is; -1: as the first worker says
    int workers = 1;  ///< that the run has
    Cuts cuts;        ///< between the servers, in elements
    size_t element_bytes = 4;
    Terms terms;                               ///< what workers must agree to
    std::chrono::milliseconds timeout{30000};  ///< for a hello to come
    std::shared_ptr<const Secret> secret{};    ///< that workers must prove; nullptr: none
    bool rejoin = false;                       ///< a rank whose worker has gone may be taken again
    std::function<void(const std::string&)> log{};  ///< one line for people; any thread
};

/// Whom an answer goes to.
struct Request {
    int worker = 0;
    uint32_t id = 0;
    int64_t step = 0;
    Range range;  ///< of a pull
};

/// What a server does with what arrives. All of it is called on the endpoint's thread, for each
/// worker in the order in which it sent. An exception ends the run: it is told to all workers and
/// thrown again by ServerEndpoint::wait_*. Answers may be given at once or later.
class ServerHandler {
  public:
    virtual ~ServerHandler() = default;

    /// A worker has been welcomed.
    virtual void joined(int worker) = 0;
    /// `range` lies in this server's shard; the payload holds it as `codec` encodes.
    virtual void push(int worker, int64_t step, Range range, uint8_t codec,
                      PooledBytes payload) = 0;
    /// Wants request.range as it is after request.step global updates: ServerEndpoint::answer.
    virtual void pull(const Request& request) = 0;
    /// Anything else that wants an answer: ServerEndpoint::reply.
    virtual void call(const Request& request, const std::string& name, PooledBytes body) = 0;
    /// Anything that wants none.
    virtual void note(int worker, int64_t step, const std::string& name, PooledBytes body) = 0;
    /// The worker is done and has said so.
    virtual void left(int worker) = 0;
    /// The worker has gone without saying so; `who` is e.g. "worker 2 on node3 (10.0.0.3:41412)".
    /// Throw Error to end the run.
    virtual void lost(int worker, const std::string& who, const std::string& reason) = 0;
    /// The worker has gone because it cannot go on, for `reason`. As for lost().
    virtual void failed(int worker, const std::string& who, const std::string& reason) {
        lost(worker, who, "it has failed: " + reason);
    }
    /// The worker has gone because it lost another server, and asks for the run to begin again from
    /// its last checkpoint: ServerEndpoint::restart.
    virtual void again(int worker, const std::string& who, const std::string& reason) {
        lost(worker, who, reason);
    }
};

/// Payload bytes that have gone over the wire.
struct ServerCounters {
    int64_t push_bytes = 0;
    int64_t pull_bytes = 0;
};

class ServerEndpoint {
  public:
    /// Listens. Throws as Transport::listen. `handler` outlives the endpoint.
    ServerEndpoint(std::unique_ptr<Transport> transport, ServerOptions options,
                   ServerHandler& handler);
    ~ServerEndpoint();

    const Listening& listening() const { return listening_; }

    /// Which server this is; -1 until options or a worker have said it.
    int index() const;
    /// Its part of the slab; index() must be known.
    Range shard() const { return shard_of(options_.cuts, index()); }

    /// Returns when all workers have been welcomed; throws Error, naming those missing, after
    /// `timeout`, or what has ended the run.
    void wait_for_workers(std::chrono::milliseconds timeout);

    /// Whether all workers have left, within `timeout`; throws what has ended the run.
    bool wait_finished(std::chrono::milliseconds timeout);

    // --- from any thread; to a worker that has gone they do nothing ---

    /// Answers a pull: `values` is request.range, raw; it must stay as it is while `keep` is held.
    void answer(const Request& request, std::span<const std::byte> values,
                std::shared_ptr<const void> keep);

    /// Answers a call; the parts must stay as they are while `keep` is held.
    void reply(const Request& request, Parts body, std::shared_ptr<const void> keep);
    /// The same with a body that is copied.
    void reply(const Request& request, std::span<const std::byte> body);

    /// Sends a note to a worker; the body is copied.
    void note(int worker, int64_t step, const std::string& name, std::span<const std::byte> body);

    /// Ends the run: every worker is told, wait_* throw `error`. Only the first one counts.
    void fail(std::exception_ptr error);

    // --- on the endpoint's thread ---

    /// Sends all workers away to connect anew, as if none had come yet.
    void restart(const std::string& why);

    /// The run goes on with so many workers, and is finished when they have left.
    void expect(int workers);

    /// The run is over, whoever has not said good-bye.
    void finish();

    /// What messages call a worker that is there, e.g. "worker 2 on node3 (10.0.0.3:41412)".
    std::string name_of_worker(int worker) const;

    ServerCounters counters() const;

    /// The thread that calls the handler, for timers.
    EventLoop& loop() { return loop_; }

  private:
    class Session;
    friend class Session;

    // On the loop's thread:
    void introduce(const std::shared_ptr<Session>& session, std::span<const std::byte> payload);
    void prove(const std::shared_ptr<Session>& session, std::span<const std::byte> payload);
    void hello(const std::shared_ptr<Session>& session, const Hello& hello);
    std::string objection(const Hello& hello, const std::string& who) const;
    bool is_taken(int rank) const;
    void refuse(Session& session, const std::string& why, bool for_now = false);
    void message(Session& session, const Header& header, PooledBytes payload);
    void left(Session& session);
    void lost(Session& session, const std::string& reason);
    enum class Parting { lost, failed, again };
    void gone(Session& session, const std::string& reason, Parting how);
    void forget(const Session& session);
    int free_rank() const;
    static void send_away(const std::shared_ptr<Session>& session, MessageKind kind,
                          const std::string& why, const std::string& reason);
    void log(const std::string& line) const;
    void tell_refusal(const std::string& who, const std::string& reason);

    std::shared_ptr<Connection> connection_of(int worker) const;
    void rethrow_failure() const;  // under the mutex

    const ServerOptions options_;
    ServerHandler& handler_;
    const std::shared_ptr<BufferPool> pool_ = BufferPool::make();
    std::deque<std::weak_ptr<Session>> strangers_;  // those that have said no hello; loop's thread
    /// Timers look at it: a loop may outlive this.
    std::shared_ptr<const bool> here_ = std::make_shared<const bool>(true);
    std::map<std::string, int> more_refusals_;  // by their text, since it was told; loop's thread

    mutable std::mutex mutex_;  // over all down to the next blank line
    std::condition_variable changed_;
    int index_;
    std::map<int, std::shared_ptr<Session>> sessions_;  // by rank, until done with
    std::set<int> came_;                                // ranks that have ever come
    int expected_;                                      // of them
    int left_ = 0;                                      // have said good-bye
    bool over_ = false;
    int restarts_ = 0;
    std::string last_refusal_;
    std::exception_ptr failure_;
    ServerCounters counters_;

    Listening listening_;
    std::unique_ptr<Transport> transport_;  // goes first: its thread uses all of this
    EventLoop& loop_;  // the transport's, which may still accept while the pointer to it is gone
};

}  // namespace trainer
