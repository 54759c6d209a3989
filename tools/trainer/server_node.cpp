#include "tools/trainer/server_node.h"

#include <exception>
#include <future>
#include <utility>

#include "tools/trainer/setup.h"

namespace trainer {

namespace {

constexpr std::chrono::milliseconds signal_poll{100};

}  // namespace

ServerNode::ServerNode(const Config& config, const ClusterPlan& plan, const Dataset& training)
    : config_(config),
      plan_(plan),
      arena_(plan.network.parameters(), DType::f32, plan.server_slabs()),
      coordinator_(config, plan, training, arena_),
      server_(shard_options(), *plan.optimizer, arena_, &coordinator_) {
    server_.survives_losses = config.distributed.on_worker_loss == "continue";
    server_.on_members = [this](int64_t, std::span<const std::byte> rhythm) {
        coordinator_.adopt_rhythm(rhythm);
    };
}

ServerNode::~ServerNode() {
    close();
}

ShardOptions ServerNode::shard_options() const {
    ShardOptions options = plan_.variant.shard;
    options.lr = [this](int64_t step) { return learning_rate(plan_, coordinator_.rhythm(), step); };
    return options;
}

void ServerNode::listen(std::unique_ptr<Transport> transport, const std::string& address, int index,
                        std::function<void(const std::string&)> log) {
    ServerOptions options;
    options.listen = address;
    options.index = index;
    options.workers = config_.distributed.workers;
    options.cuts = plan_.cuts;
    options.terms = plan_.terms;
    options.timeout = comm_timeout(config_);
    options.rejoin = server_.survives_losses;
    options.secret = secret_of(config_);
    options.log = std::move(log);
    endpoint_ = std::make_unique<ServerEndpoint>(std::move(transport), std::move(options), server_);
    server_.attach(*endpoint_);
    coordinator_.attach(server_, *endpoint_);
}

/// Does `work` on the endpoint's loop and returns when it is done; throws what it throws.
void ServerNode::on_loop(const std::function<void()>& work) {
    // Shared: the loop may still be in it when this has what it waited for.
    const auto done = std::make_shared<std::promise<void>>();
    endpoint_->loop().post([&work, done] {
        try {
            work();
            done->set_value();
        } catch (...) {
            done->set_exception(std::current_exception());
        }
    });
    done->get_future().get();
}

void ServerNode::open() {
    on_loop([&] { coordinator_.open(); });
}

void ServerNode::serve(const StopSignals& signals, const std::function<void(int)>& stop,
                       Exposition* exposition) {
    bool told = false;
    do {
        if (signals.requested() && !std::exchange(told, true))
            stop(signals.number());
        expose(exposition);
    } while (!endpoint_->wait_finished(signal_poll));
}

/// Lets Prometheus know what this server sees: through the run's log where that is here, else
/// through `own`, which outlives close(). Returns at once.
void ServerNode::expose(Exposition* own) {
    // By its address: close() has emptied the pointer before the loop is through.
    endpoint_->loop().post([this, own, endpoint = endpoint_.get()] {
        Exposition* const to = coordinator_.exposition() ? coordinator_.exposition() : own;
        if (to == nullptr || !server_.has_begun())
            return;
        const Shard::Staleness staleness = server_.shard().staleness();
        const ServerCounters traffic = endpoint->counters();
        to->update([&](RunNumbers& numbers) {
            numbers.step = server_.shard().steps();
            numbers.members = server_.shard().members();
            numbers.received_bytes_total = static_cast<double>(traffic.push_bytes);
            numbers.sent_bytes_total = static_cast<double>(traffic.pull_bytes);
            if (staleness.pushes > 0)
                numbers.staleness =
                    static_cast<double>(staleness.sum) / static_cast<double>(staleness.pushes);
        });
    });
}

void ServerNode::close() {
    if (!endpoint_)
        return;
    on_loop([&] { coordinator_.join_saver(); });
    endpoint_.reset();
}

}  // namespace trainer
