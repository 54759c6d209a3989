// What benchmarks of messages share: a worker's link to a server that only moves bytes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/link.h"
#include "comm/server_endpoint.h"
#include "engine/error.h"
#include "engine/memory.h"

namespace trainer {

inline constexpr size_t small_bytes = 1024;

/// One way of moving bytes, measured from the worker's side.
struct Peer {
    virtual ~Peer() = default;
    virtual void push() = 0;  ///< returns when the server has it all
    virtual void pull() = 0;
    virtual void push_pull() = 0;
    virtual void round_trip() = 0;  ///< 1 KB there, 1 KB back
};

/// Receives pushes, answers pulls from its own memory and calls with their body.
class BenchServer final : public ServerHandler {
  public:
    explicit BenchServer(size_t bytes) : model_(allocate_host(bytes)) {}

    void joined(int) override {}
    void push(int, int64_t, Range, uint8_t, PooledBytes) override {}
    void pull(const Request& request) override {
        endpoint->answer(request, {model_.data.get(), model_.bytes}, model_.data);
    }
    void call(const Request& request, const std::string&, PooledBytes body) override {
        endpoint->reply(request, body.bytes());
    }
    void note(int, int64_t, const std::string&, PooledBytes) override {}
    void left(int) override {}
    void lost(int, const std::string& who, const std::string& reason) override {
        throw Error(who + ": " + reason);
    }

    ServerEndpoint* endpoint = nullptr;

  private:
    Memory model_;
};

class LinkPeer final : public Peer {
  public:
    LinkPeer(size_t bytes, std::unique_ptr<Transport> server, std::unique_ptr<Transport> worker)
        : elements_(static_cast<int64_t>(bytes / 4)), slab_(allocate_host(bytes)), handler_(bytes) {
        ServerOptions options;
        options.cuts = {0, elements_};
        endpoint_.emplace(std::move(server), options, handler_);
        handler_.endpoint = &*endpoint_;
        LinkOptions mine;
        mine.servers = {endpoint_->listening().bound};
        mine.cuts = options.cuts;
        link_.emplace(std::move(worker), mine);
    }
    ~LinkPeer() override { link_->close(); }

    /// HOST:PORT of the server.
    const std::string& server_address() const { return endpoint_->listening().bound; }

    void push() override {
        link_->push(0, {0, elements_}, slab_.data.get());
        link_->call(0, 0, "done", {});
    }
    void pull() override { link_->wait(link_->pull(0, {0, elements_}, slab_.data.get())); }
    void push_pull() override {
        link_->push(0, {0, elements_}, slab_.data.get());
        pull();
    }
    void round_trip() override { link_->call(0, 0, "echo", {{slab_.data.get(), small_bytes}}); }

  private:
    int64_t elements_;
    Memory slab_;
    BenchServer handler_;
    std::optional<ServerEndpoint> endpoint_;
    std::optional<Link> link_;
};

}  // namespace trainer
