// Server: the loop of one parameter server: a shard of the model behind an endpoint.
//
// Everything runs on the endpoint's thread, one message at a time, so that a shard needs no lock.
// Calls and notes that are not about weights go to whoever leads the run (server 0's coordinator).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/server_endpoint.h"
#include "engine/arena.h"
#include "optim/shard.h"

namespace trainer {

/// Names of the calls that every server answers; bodies are little endian.
namespace call {
/// The shard's weights G(step), when the server has completed `step` steps: f32 each.
inline constexpr std::string_view weights = "weights";
/// All slabs of the shard but "gradients", one after the other, as for weights.
inline constexpr std::string_view slabs = "slabs";
/// The same from worker 0 to a server: it begins at step `step` with them. Answered empty.
inline constexpr std::string_view load = "load";
/// From each of the workers that take part from step `step` on, once it has pushed all before.
/// Body: a u8 for each rank that the run may have, 1: takes part; then what the server's owner
/// understands (Server::on_members). Answered empty once all of them have called; all say the same.
inline constexpr std::string_view members = "members";
}  // namespace call

/// What a run's coordinator does with what is not a shard's business. On the endpoint's thread.
class Coordinator {
  public:
    virtual ~Coordinator() = default;
    virtual void call(const Request& request, const std::string& name, PooledBytes body) = 0;
    virtual void note(int worker, int64_t step, const std::string& name, PooledBytes body) = 0;
    virtual void left(int worker) = 0;
    /// A worker is lost, and the run goes on; `pushed`: all of its pushes of the steps before have
    /// come to this server.
    virtual void lost(int worker, const std::string& who, const std::string& reason,
                      int64_t pushed) = 0;
    /// Whether the run is over, but for good-byes.
    virtual bool is_over() const = 0;
    /// All begins again, as if no worker had come. The arena is as it was until this returns.
    virtual void restarted(const std::string& why) = 0;
};

class Server final : public ServerHandler {
  public:
    /// `coordinator` is nullptr for all servers but server 0. `loaded`: the arena holds the state
    /// of step `step` already (server 0); else nothing is answered before a `load`. All outlive
    /// the server.
    Server(const ShardOptions& options, const Optimizer& optimizer, const ParameterArena& arena,
           Coordinator* coordinator);

    /// To be called once the endpoint that this handles is there, before its first worker; with
    /// the index of the server known.
    void attach(ServerEndpoint& endpoint);

    /// What is to be done with the rest of a `members` call's body, before anyone is answered.
    std::function<void(int64_t step, std::span<const std::byte> more)> on_members;
    /// Whether the run goes on without a worker that is lost; else that ends it.
    bool survives_losses = false;

    /// Begins at that step with what the arena holds.
    void begin(int64_t step);

    /// Forgets all, and sends all workers away to come anew; the coordinator begins with the last
    /// checkpoint. Not within a call of the coordinator's.
    void begin_again(const std::string& why);

    /// Those who take part from step `step` on; what `members` calls do on the other servers.
    void set_members(int64_t step, const std::vector<bool>& members);

    /// Whether it has begun; before that it may have no shard. On the endpoint's thread.
    bool has_begun() const { return begun_; }
    const Shard& shard() const { return *shard_; }
    /// The latest step that anyone has pushed; -1: none. On the endpoint's thread.
    int64_t newest_push() const { return newest_push_; }

    void joined(int worker) override;
    void push(int worker, int64_t step, Range range, uint8_t codec, PooledBytes payload) override;
    void pull(const Request& request) override;
    void call(const Request& request, const std::string& name, PooledBytes body) override;
    void note(int worker, int64_t step, const std::string& name, PooledBytes body) override;
    void left(int worker) override;
    void lost(int worker, const std::string& who, const std::string& reason) override;
    void failed(int worker, const std::string& who, const std::string& reason) override;
    void again(int worker, const std::string& who, const std::string& reason) override;

  private:
    /// How far a worker's pushes have come.
    struct Pushed {
        int64_t step = -1;     ///< that its last push was of
        int64_t elements = 0;  ///< of it
    };
    void forget(int worker);
    int64_t pushed_by(int worker) const;
    void gather(const Request& request, std::span<const std::byte> body);
    void try_members();
    void make_shard();
    void answer_ready();
    void answer_slabs(const Request& request, const std::string& name);
    void load(const Request& request, std::span<const std::byte> body);

    ShardOptions options_;
    const Optimizer& optimizer_;
    const ParameterArena& arena_;
    Coordinator* coordinator_;
    ServerEndpoint* endpoint_ = nullptr;
    std::unique_ptr<Shard> shard_;
    bool begun_ = false;
    bool running_ = false;  // it has been told who takes part
    int64_t newest_push_ = -1;
    std::vector<Request> pulls_;  // of which the shard has been told
    struct Waiting {
        Request request;
        std::string name;
    };
    std::vector<Waiting> calls_;  // for slabs of a step that is not complete yet
    std::vector<Pushed> pushed_;  // by worker
    std::vector<bool> there_;     // by worker: connected
    // The members call under way.
    std::vector<Request> gathered_;
    std::vector<std::byte> gathering_;  // its body
};

}  // namespace trainer
