#include "tools/trainer/cluster_plan.h"

#include <algorithm>

#include "optim/collective_exchange.h"
#include "tools/trainer/allreduce.h"
#include "tools/trainer/setup.h"

namespace trainer {
namespace {

VariantOptions variant_options(const Config& config) {
    const auto& distributed = config.distributed;
    VariantOptions options;
    options.variant = distributed.variant;
    options.workers = distributed.workers;
    options.warmup_steps = distributed.warmup_steps;
    options.delay_steps = distributed.delay_steps;
    options.staleness = distributed.staleness;
    options.local_steps = distributed.local_steps;
    options.max_inflight = distributed.max_inflight;
    options.local.rule = distributed.local.rule;
    options.local.weight_decay = config.optim.weight_decay;
    options.local.decay_bn_bias = config.optim.decay_bn_bias;
    options.local.frozen = config.model.freeze;
    options.local.alpha = distributed.local.alpha;
    options.local.beta = distributed.local.beta;
    options.local.lambda_dc = distributed.local.lambda_dc;
    options.local.momentum = config.optim.momentum;
    options.local.seeded = distributed.local.seeded;
    options.local_lr = distributed.local.lr;
    options.dc_lambda = distributed.dc.lambda;
    options.dc_lambda0 = distributed.dc.lambda0;
    options.dc_m = distributed.dc.m;
    options.codec = distributed.codec.name;
    options.threshold = distributed.codec.threshold;
    options.exact_every = distributed.codec.exact_every;
    options.flush_on_exact = distributed.codec.flush_on_exact;
    return options;
}

std::vector<std::string> with_weights_and_gradients(const std::vector<std::string>& more) {
    std::vector<std::string> slabs{std::string(slab::weights), std::string(slab::gradients)};
    for (const std::string& name : more)
        if (std::ranges::find(slabs, name) == slabs.end())
            slabs.push_back(name);
    return slabs;
}

}  // namespace

ClusterPlan::ClusterPlan(const Config& config, const Dataset& training)
    : allreduce(is_allreduce(config)),
      network(make_network(config, training)),
      optimizer(make_optimizer(optimizer_options(config), network.parameters())),
      steps_per_epoch(trainer::steps_per_epoch(config, training.count)),
      total_steps(run_length(config, steps_per_epoch)),
      schedule(schedule_options(config, steps_per_epoch)),
      variant(make_variant(variant_options(config))),
      cuts(optimizer->whole_tensors()
               ? tensor_cuts(network.parameters(), config.distributed.servers)
               : equal_cuts(network.parameters().size(), config.distributed.servers)) {
    const int64_t batch = int64_t{config.data.batch_size} * config.distributed.workers;
    if (config.data.drop_last && training.count < batch)
        throw UsageError("a global batch of " + std::to_string(config.distributed.workers) + " x " +
                         std::to_string(config.data.batch_size) + " = " + std::to_string(batch) +
                         " images is more than the " + std::to_string(training.count) +
                         " training images; lower data.batch_size or distributed.workers");
    const int backup = config.distributed.backup_workers;
    const StepScheduleOptions& steps = variant.exchange.schedule.options();
    if (backup > 0 &&
        (!variant.synchronous || steps.kind != StepScheduleOptions::Kind::synchronous))
        throw UsageError("distributed.backup_workers: " + config.distributed.variant +
                         " does not wait for all workers at every step; take 0, or ssgd or bitsgd");
    variant.shard.backup = backup;
    variant.shard.lr = variant.exchange.lr = [this](int64_t step) { return schedule.at(step); };
    terms = flat_result(config);
    terms.emplace_back("training images", std::to_string(training.count));
    terms.emplace_back("model", model_term(config.model.name, network.parameters()));
}

std::vector<std::string> ClusterPlan::server_slabs() const {
    std::vector<std::string> more = optimizer->slabs();
    for (const std::string& name : Shard::slabs(variant.shard))
        more.push_back(name);
    return with_weights_and_gradients(more);
}

std::vector<std::string> ClusterPlan::saved_server_slabs() const {
    std::vector<std::string> slabs = server_slabs();
    std::erase_if(slabs, [](const std::string& name) {
        return name == slab::weights || name == slab::gradients || name.starts_with("snapshot_") ||
               name.starts_with("backup_");
    });
    return slabs;
}

std::vector<std::string> ClusterPlan::worker_slabs() const {
    if (allreduce)
        return with_weights_and_gradients(CollectiveExchange::slabs(variant.exchange, *optimizer));
    return with_weights_and_gradients(
        Exchange::slabs(variant.exchange, network.parameters(), *optimizer));
}

std::vector<std::string> ClusterPlan::saved_worker_slabs() const {
    std::vector<std::string> slabs = worker_slabs();
    const bool own_weights =
        variant.exchange.schedule.options().kind != StepScheduleOptions::Kind::synchronous;
    if (allreduce && !own_weights)
        return {};  // all that a worker has server 0 is given
    std::erase_if(slabs, [&](const std::string& name) {
        return name == slab::gradients || name == slab::incoming || name == slab::common ||
               (name == slab::weights && !own_weights);
    });
    return slabs;
}

bool needs_cluster(const Config& config) {
    const auto& distributed = config.distributed;
    const auto& emulate = config.comm.emulate;
    return distributed.workers > 1 || distributed.servers > 1 || distributed.variant != "ssgd" ||
           (distributed.codec.name != "auto" && distributed.codec.name != "raw") ||
           (distributed.local.rule != "auto" && distributed.local.rule != "adopt") ||
           config.comm.transport == "tcp" || emulate.bandwidth || emulate.latency ||
           emulate.step_time;
}

TransportOptions transport_options(const Config& config,
                                   std::function<void(const std::string&)> log) {
    TransportOptions options;
    options.timeout = comm_timeout(config);
    options.lease = config.comm.lease
                        ? std::chrono::duration_cast<std::chrono::milliseconds>(*config.comm.lease)
                        : std::clamp(options.timeout / 2, std::chrono::milliseconds(1),
                                     std::chrono::milliseconds(10'000));
    const auto& emulate = config.comm.emulate;
    options.emulate.bytes_per_second = static_cast<double>(emulate.bandwidth.value_or(0)) / 8;
    options.emulate.latency = emulate.latency.value_or(Duration(0));
    options.interface = config.comm.interface;
    const auto& tls = config.comm.tls;
    if (!tls.cert.empty())
        options.tls = make_tls_context({tls.cert, tls.key, tls.ca});
    options.local_sockets = config.comm.transport != "tcp";
    options.log = std::move(log);
    return options;
}

std::shared_ptr<const Secret> secret_of(const Config& config) {
    return config.comm.secret_file.empty() ? nullptr : Secret::read(config.comm.secret_file);
}

job::Rhythm rhythm_of(const Config& config, const Dataset& training) {
    return {.samples = training.count,
            .batch = config.data.batch_size,
            .drop_last = config.data.drop_last ? 1 : 0,
            .workers = config.distributed.workers,
            .epochs = config.train.epochs,
            .max_steps = config.train.max_steps,
            .eval_every_epochs = config.train.eval_every_epochs,
            .checkpoint_every_epochs = config.checkpoint.every_epochs,
            .checkpoint_every_steps = config.checkpoint.every_steps,
            .log_every_steps = config.log.every_steps,
            .scale_lr = config.distributed.scale_lr_on_loss ? 1 : 0,
            .members = job::Members::all(config.distributed.workers)};
}

double learning_rate(const ClusterPlan& plan, const job::Rhythm& rhythm, int64_t step) {
    return plan.schedule.at(rhythm.schedule_step(std::max(step, rhythm.first_step))) *
           rhythm.lr_factor();
}

std::chrono::milliseconds comm_timeout(const Config& config) {
    return std::max(std::chrono::milliseconds(1),
                    std::chrono::duration_cast<std::chrono::milliseconds>(config.comm.timeout));
}

}  // namespace trainer
