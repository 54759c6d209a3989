// A server by itself: what it tells its coordinator, and when.
#include <gtest/gtest.h>

#include <future>

#include "optim/server.h"
#include "optim/sgd.h"

namespace trainer {
namespace {

/// Looks at the arena when all begins again.
class Watcher final : public Coordinator {
  public:
    explicit Watcher(const ParameterArena& arena) : arena_(arena) {}

    void call(const Request&, const std::string&, PooledBytes) override {}
    void note(int, int64_t, const std::string&, PooledBytes) override {}
    void left(int) override {}
    void lost(int, const std::string&, const std::string&, int64_t) override {}
    bool is_over() const override { return false; }
    void restarted(const std::string& why) override {
        reason = why;
        seen = arena_.slab<float>(slab::weights)[0];
    }

    std::string reason;
    float seen = -1;

  private:
    const ParameterArena& arena_;
};

// A checkpoint that was being written when all began again held zeros, and its checksums held.
TEST(Server, TheArenaStandsUntilTheCoordinatorIsDoneWithIt) {
    TensorTable table;
    table.add("w", {4}, true, {});
    const auto optimizer = make_optimizer({}, table);
    ParameterArena arena(table, DType::f32,
                         {std::string(slab::weights), std::string(slab::gradients)});
    std::ranges::fill(arena.slab<float>(slab::weights), 7.0F);
    Watcher watcher(arena);
    ShardOptions shard;
    shard.lr = [](int64_t) { return 0.1; };
    Server server(shard, *optimizer, arena, &watcher);
    ServerOptions options;
    options.index = 0;
    options.cuts = {0, 4};
    ServerEndpoint endpoint(make_inproc_transport(make_inproc_network()), options, server);
    server.attach(endpoint);
    std::promise<void> begun_again;
    endpoint.loop().post([&] {
        server.begin_again("for a test");
        begun_again.set_value();
    });
    begun_again.get_future().wait();
    EXPECT_EQ(watcher.reason, "for a test");
    EXPECT_EQ(watcher.seen, 7.0F);
    EXPECT_EQ(arena.slab<float>(slab::weights)[0], 0.0F);
}

}  // namespace
}  // namespace trainer
