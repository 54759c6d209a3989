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
}  // namespace call

/// What a run's coordinator does with what is not a shard's business. On the endpoint's thread.
class Coordinator {
  public:
    virtual ~Coordinator() = default;
    virtual void call(const Request& request, const std::string& name, PooledBytes body) = 0;
    virtual void note(int worker, int64_t step, const std::string& name, PooledBytes body) = 0;
    virtual void left(int worker) = 0;
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

    /// Begins at that step with what the arena holds.
    void begin(int64_t step);

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

  private:
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
    int64_t newest_push_ = -1;
    std::vector<Request> pulls_;  // of which the shard has been told
    struct Waiting {
        Request request;
        std::string name;
    };
    std::vector<Waiting> calls_;  // for slabs of a step that is not complete yet
};

}  // namespace trainer
