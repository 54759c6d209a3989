// Whole clusters of threads for the tests of comm: servers that add up, and links to them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/link.h"
#include "comm/server_endpoint.h"
#include "tests/comm_helpers.h"

namespace trainer::testing_comm {

/// Adds up what all workers push for a step, element by element, and answers pulls of a step once
/// it is complete. Calls: "barrier" answers when all have called; "echo" gives the body back.
class SumServer : public ServerHandler {
  public:
    explicit SumServer(int workers) : workers_(workers) {}

    void joined(int worker) override { events.push_back("joined " + std::to_string(worker)); }
    void push(int, int64_t step, Range range, uint8_t codec, PooledBytes payload) override {
        EXPECT_EQ(codec, 0);
        const auto values = payload.as<float>();
        ASSERT_EQ(static_cast<int64_t>(values.size()), range.count);
        if (values_.empty())
            values_.assign(static_cast<size_t>(endpoint->shard().count), 0.0f);
        for (size_t i = 0; i < values.size(); ++i)
            values_[static_cast<size_t>(range.first - endpoint->shard().first) + i] += values[i];
        pushed_[step + 1] += range.count;
        answer_what_is_ready();
    }
    void pull(const Request& request) override {
        waiting_.push_back(request);
        answer_what_is_ready();
    }
    void call(const Request& request, const std::string& name, PooledBytes body) override {
        if (name == "echo")
            return endpoint->reply(request, body.bytes());
        if (name == "fail")
            throw Error("the disk of the server is full");
        EXPECT_EQ(name, "barrier");
        callers_.push_back(request);
        if (static_cast<int>(callers_.size()) == workers_)
            for (const Request& caller : std::exchange(callers_, {}))
                endpoint->reply(caller, {});
    }
    void note(int worker, int64_t step, const std::string& name, PooledBytes body) override {
        events.push_back("note " + std::to_string(worker) + " " + std::to_string(step) + " " +
                         name + " " + std::to_string(body.bytes().size()));
        endpoint->note(worker, step, "seen", body.bytes());
    }
    void left(int worker) override { events.push_back("left " + std::to_string(worker)); }
    void lost(int, const std::string& who, const std::string& reason) override {
        throw Error(who + " is lost: " + reason);
    }

    ServerEndpoint* endpoint = nullptr;
    std::vector<std::string> events;  // read once all is over

  private:
    void answer_what_is_ready() {
        const auto ready = [&](const Request& request) {
            if (request.step > 0 && pushed_[request.step] < workers_ * endpoint->shard().count)
                return false;
            if (values_.empty())
                values_.assign(static_cast<size_t>(endpoint->shard().count), 0.0f);
            const auto copy = std::make_shared<std::vector<float>>(values_);
            const auto first = static_cast<size_t>(request.range.first - endpoint->shard().first);
            endpoint->answer(request,
                             std::as_bytes(std::span(*copy).subspan(
                                 first, static_cast<size_t>(request.range.count))),
                             copy);
            return true;
        };
        std::erase_if(waiting_, ready);
    }

    const int workers_;
    std::vector<float> values_;
    std::map<int64_t, int64_t> pushed_;  // elements, by the step that they complete
    std::vector<Request> waiting_;
    std::vector<Request> callers_;
};

struct Server {
    SumServer handler;
    std::unique_ptr<ServerEndpoint> endpoint;

    Server(std::unique_ptr<Transport> transport, ServerOptions options) : handler(options.workers) {
        endpoint =
            std::make_unique<ServerEndpoint>(std::move(transport), std::move(options), handler);
        handler.endpoint = endpoint.get();
    }
};

inline const Terms terms = {{"model", "mlp, 100 parameters"}, {"optim.lr", "0.1"}};

/// Servers of one run, and the options of a worker of theirs.
struct Cluster {
    TransportMaker maker;
    std::deque<Server> servers;
    LinkOptions worker;

    Cluster(Way way, int workers, int server_count, int64_t size,
            std::chrono::milliseconds timeout = 20s)
        : maker(way) {
        worker.cuts = equal_cuts(size, server_count);
        worker.terms = terms;
        worker.timeout = timeout;
        for (int s = 0; s < server_count; ++s) {
            ServerOptions options;
            options.workers = workers;
            options.cuts = worker.cuts;
            options.terms = terms;
            options.timeout = timeout;
            servers.emplace_back(maker.make({.timeout = timeout}), options);
            worker.servers.push_back(servers.back().endpoint->listening().bound);
        }
    }

    std::unique_ptr<Link> link(int wished_rank = -1) { return link(worker, wished_rank); }
    std::unique_ptr<Link> link(LinkOptions options, int wished_rank = -1) {
        options.wished_rank = wished_rank;
        const auto timeout = options.timeout;
        return std::make_unique<Link>(maker.make({.timeout = timeout}), std::move(options));
    }
};

}  // namespace trainer::testing_comm
