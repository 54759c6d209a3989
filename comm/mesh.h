// Mesh: a Collective over links between all pairs of members, on the processor.
//
// Each member owns a part of the slab, as a server owns a shard: all send it theirs, it adds them
// up in the order of ranks, and sends the sum back. That is as many bytes a member as a ring moves,
// in two hops whatever their number. Everything that a Link has comes along: checksums, TLS, the
// secret, signs of life, emulation.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/link.h"
#include "comm/server_endpoint.h"
#include "engine/collective.h"

namespace trainer {

struct MeshOptions {
    int rank = 0;
    int size = 1;
    int64_t elements = 0;                                     ///< of the largest slab
    std::string listen = "127.0.0.1:0";                       ///< where the others can come
    Terms terms;                                              ///< what they must agree to
    std::chrono::milliseconds timeout{30000};                 ///< of connecting, and of every wait
    std::shared_ptr<const Secret> secret{};                   ///< that all share; nullptr: none
    std::function<std::unique_ptr<Transport>()> transport{};  ///< makes one
};

class Mesh final : public Collective {
  public:
    /// Listens. Throws as Transport::listen.
    explicit Mesh(const MeshOptions& options);
    ~Mesh() override;

    /// Where the others reach this one.
    const std::string& address() const;

    /// Connects to all, itself included, in the order of ranks. To be called, by every one, before
    /// the first sum. Throws Error where one cannot be reached within the timeout.
    void connect(const std::vector<std::string>& addresses);

    int rank() const override { return options_.rank; }
    int size() const override { return options_.size; }
    void sum(float* slab, Range range) override;
    void wait() override;
    void close() override;
    void abort(const std::string& why) override;
    CollectiveCounters counters() const override;

  private:
    class Adder;

    MeshOptions options_;
    Cuts cuts_;
    std::unique_ptr<Adder> adder_;
    std::unique_ptr<ServerEndpoint> endpoint_;  // before the adder: its thread uses it
    std::unique_ptr<Link> link_;
    std::vector<Ticket> under_way_;
    int64_t sums_ = 0;  // begun
};

}  // namespace trainer
