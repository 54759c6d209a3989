#include "tools/trainer/cluster.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/address.h"
#include "comm/link.h"
#include "comm/metrics_http.h"
#include "engine/cuda/cuda_engine.h"
#include "tools/trainer/allreduce.h"
#include "tools/trainer/cluster_plan.h"
#include "tools/trainer/cluster_worker.h"
#include "tools/trainer/exposition.h"
#include "tools/trainer/process_log.h"
#include "tools/trainer/server_node.h"
#include "tools/trainer/setup.h"
#include "tools/trainer/signals.h"

namespace trainer {
namespace {

using Log = std::function<void(const std::string&)>;

constexpr std::chrono::milliseconds longest_pause{1000};

/// The workers of one process, a thread each.
class WorkerThreads {
  public:
    ~WorkerThreads() {
        for (std::thread& thread : threads_)
            if (thread.joinable())
                thread.join();
    }

    void start(const std::function<void()>& work) {
        threads_.emplace_back([this, work] {
            try {
                work();
            } catch (...) {
                const std::lock_guard lock(mutex_);
                if (!failure_)
                    failure_ = std::current_exception();
            }
        });
    }

    /// Waits for all; what the first of those that failed threw, or nullptr.
    std::exception_ptr join() {
        for (std::thread& thread : threads_)
            thread.join();
        return failure_;
    }

  private:
    std::mutex mutex_;
    std::exception_ptr failure_;
    std::vector<std::thread> threads_;
};

LinkOptions link_options(const Config& config, const ClusterPlan& plan,
                         const std::vector<std::string>& servers, int rank) {
    LinkOptions options;
    options.servers = servers;
    options.wished_rank = rank;
    options.cuts = plan.cuts;
    options.terms = plan.terms;
    options.timeout = comm_timeout(config);
    options.secret = secret_of(config);
    return options;
}

/// Throws where anyone on the network could take part.
void check_listening(const Config& config) {
    const auto& comm = config.comm;
    const std::string host = parse_address(comm.listen).host;
    if (is_loopback(host) || config.insecure || !comm.tls.cert.empty() || !comm.secret_file.empty())
        return;
    throw UsageError("comm.listen: " + comm.listen +
                     " is open to other machines, and nothing says who may take part: set "
                     "comm.secret_file or comm.tls, listen on 127.0.0.1, or add --insecure where "
                     "the network is yours alone");
}

std::string text_of(const std::exception_ptr& error) {
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& known) {
        return known.what();
    }
}

void check_rank(const std::optional<int>& rank, int count, const std::string& what) {
    if (rank && (*rank < 0 || *rank >= count))
        throw UsageError("--rank " + std::to_string(*rank) + ": the run has " +
                         std::to_string(count) + " " + what + ", ranks count from 0");
}

void check_role(const Config& config) {
    if (config.comm.transport == "inproc")
        throw UsageError(
            "comm.transport: inproc is within one process; with --role take auto or "
            "tcp");
}

/// A worker's link to all servers, within comm.timeout. `again`: after a server was lost, which may
/// take a while to come back. Waits too where the servers have still to see that the worker of this
/// rank before this one has gone.
std::unique_ptr<Link> connect(const Config& config, const ClusterPlan& plan, int rank, bool again,
                              const Log& say) {
    LinkOptions options = link_options(config, plan, config.comm.servers, rank);
    options.reconnect = !plan.allreduce;
    options.alone = config.distributed.on_worker_loss == "continue";
    const auto deadline = std::chrono::steady_clock::now() + comm_timeout(config);
    options.deadline = deadline;
    bool said = false;
    for (std::chrono::milliseconds pause(50);; pause = std::min(2 * pause, longest_pause)) {
        try {
            return std::make_unique<Link>(make_socket_transport(transport_options(config, say)),
                                          options);
        } catch (const UsageError&) {
            throw;
        } catch (const Error& error) {
            const bool lost = dynamic_cast<const ServerLost*>(&error) != nullptr;
            if (!(lost || again) || std::chrono::steady_clock::now() + pause >= deadline)
                throw;
            if (!again && !std::exchange(said, true))
                say("waits        " + std::string(error.what()));
        }
        std::this_thread::sleep_for(pause);
    }
}

/// What a process other than server 0 tells Prometheus, where it is asked to.
class OwnMetrics {
  public:
    void open(const Config& config, const std::string& role, int rank, const Log& log) {
        if (!config.metrics_port)
            return;
        exposition_.emplace(std::map<std::string, std::string>{
            {"run", config.name}, {"role", role}, {"rank", std::to_string(rank)}});
        http_.emplace(*config.metrics_port, [this] { return exposition_->text(); });
        log("metrics      at port " + std::to_string(http_->port()) + ", for Prometheus");
    }
    Exposition* exposition() { return exposition_ ? &*exposition_ : nullptr; }

  private:
    std::optional<Exposition> exposition_;
    std::optional<MetricsHttp> http_;  // first to go
};

/// Which part of a cluster this process is.
struct Part {
    std::vector<int> workers;  ///< ranks
    bool sockets = false;
    int threads = 1;  ///< of one worker
    bool own_processors = false;
    Log log{};
};

/// Joins a worker with the others, where they have no servers.
std::function<std::unique_ptr<Collective>(Link&, Backend&)> join_of(
    const Config& config, const ClusterPlan& plan,
    std::function<std::unique_ptr<Transport>()> transport) {
    if (!plan.allreduce)
        return {};
    const Address here{parse_address(config.comm.listen).host, 0};
    return [group = WorkerGroup{config, plan, std::move(transport), here.text()}](
               Link& link, Backend& backend) { return join_group(group, link, backend); };
}

/// NCCL has a GPU for each member: where it is used, the workers of one process take one after the
/// other. Throws UsageError where there are too few.
std::optional<int> gpu_of(const Config& config, const Part& part, int rank) {
    const int gpus = config.worker.gpus;
    if (part.workers.size() == 1 || !(is_allreduce(config) || gpus > 1))
        return std::nullopt;
    const std::optional<int> first = cuda_device(config);
    if (!first)
        return std::nullopt;
    const int gpu = *first + rank * gpus;
    if (const auto why = why_no_cuda(gpu + gpus - 1))
        throw UsageError(std::to_string(part.workers.size()) + " workers of " +
                         std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs") + " each: " + *why);
    return gpu;
}

/// All servers as threads of this process, and those workers.
ExitCode run_with_servers(const Config& config, const Part& part) {
    const Dataset training = make_dataset(config, Split::train);
    const Dataset test = make_dataset(config, Split::test);
    const ClusterPlan plan(config, training);
    gpu_of(config, part, part.workers.back());  // throws before anything starts
    if (part.sockets)
        check_listening(config);
    const auto network = make_inproc_network();
    const auto transport = [&]() -> std::unique_ptr<Transport> {
        TransportOptions options = transport_options(config, nullptr);
        return part.sockets ? make_socket_transport(options)
                            : make_inproc_transport(network, options);
    };

    std::vector<std::unique_ptr<ServerNode>> nodes;
    std::vector<std::string> addresses;
    for (int s = 0; s < config.distributed.servers; ++s) {
        nodes.push_back(std::make_unique<ServerNode>(config, plan, training));
        const std::string address = !part.sockets ? "server" + std::to_string(s) + ":0"
                                    : s == 0      ? config.comm.listen
                                                  : "127.0.0.1:0";
        nodes.back()->listen(transport(), address, s, part.log);
        addresses.push_back(nodes.back()->endpoint().listening().advertised);
    }
    if (part.log) {
        const Listening& listening = nodes[0]->endpoint().listening();
        part.log("worker       listens at " + listening.bound + ", others call it " +
                 listening.advertised);
    }
    JobCoordinator& coordinator = nodes[0]->coordinator();
    nodes[0]->open();

    const StopSignals signals;
    std::exception_ptr failure;
    std::vector<std::string> profile;  // of worker 0
    {
        WorkerThreads team;
        for (const int rank : part.workers)
            team.start([&, rank] {
                Link link(transport(), link_options(config, plan, addresses, rank));
                ClusterWorker worker(
                    config, plan, training, [&]() -> const Dataset& { return test; }, link,
                    {.threads = part.threads,
                     .first_processor = part.own_processors ? rank * part.threads : -1,
                     .beside = static_cast<int>(part.workers.size()),
                     .gpu = gpu_of(config, part, rank),
                     .signal = {},
                     .log = [](const std::string&) {},
                     .exposition = nullptr,
                     .join = join_of(config, plan, transport)});
                worker.run();
                if (rank == 0 && config.profile)
                    profile = worker.profile();
            });
        try {
            if (static_cast<int>(part.workers.size()) < config.distributed.workers)
                nodes[0]->endpoint().wait_for_workers(comm_timeout(config));
            for (const auto& node : nodes)
                node->serve(
                    signals, [&](int signal) { coordinator.request_stop(signal); }, nullptr);
        } catch (...) {
            failure = std::current_exception();
            nodes[0]->endpoint().fail(failure);
        }
        if (const std::exception_ptr first = team.join())
            failure = first;
    }
    for (const auto& node : nodes)
        node->close();
    if (failure) {
        coordinator.failed(text_of(failure));
        std::rethrow_exception(failure);
    }
    const ExitCode code = coordinator.finish();
    for (const std::string& line : profile)
        std::cout << line << "\n";
    return code;
}

/// Worker 0 of those without servers: the others come to it.
ExitCode run_leader(const Config& config) {
    ProcessLog log;
    return run_with_servers(config, {.workers = {0},
                                     .sockets = true,
                                     .threads = computing_threads(config),
                                     .own_processors = !config.threads,
                                     .log = [&](const std::string& line) { log.say(line); }});
}

}  // namespace

ExitCode run_cluster_in_process(const Config& config) {
    const int workers = config.distributed.workers;
    Part all;
    all.sockets = config.comm.transport == "tcp";
    all.threads = config.threads.value_or(std::max(1, processors() / workers));
    all.own_processors = all.threads * workers <= processors();
    for (int rank = 0; rank < workers; ++rank)
        all.workers.push_back(rank);
    return run_with_servers(config, all);
}

ExitCode run_server(const Config& config, std::optional<int> rank) {
    check_role(config);
    if (is_allreduce(config))
        throw UsageError(
            "--role=server: distributed.topology allreduce has no servers; start worker 0 with "
            "--role=worker --rank=0 --listen=HOST:PORT");
    const int servers = config.distributed.servers;
    check_rank(rank, servers, "servers");
    check_listening(config);
    made_log_directory(config);  // where it cannot be, nobody has been joined yet
    ProcessLog log;
    const Log say = [&](const std::string& line) { log.say(line); };
    const Dataset training = make_dataset(config, Split::train);
    const ClusterPlan plan(config, training);
    OwnMetrics metrics;
    ServerNode node(config, plan, training);
    node.listen(make_socket_transport(transport_options(config, say)), config.comm.listen,
                servers == 1 ? 0 : rank.value_or(-1), say);
    const Listening& listening = node.endpoint().listening();
    log.say("server       listens at " + listening.bound + ", others call it " +
            listening.advertised);
    try {
        // A run that survives losses begins, a while later, with those who have come.
        if (config.distributed.on_worker_loss == "continue")
            node.endpoint().expect(1);
        node.endpoint().wait_for_workers(comm_timeout(config));
        const int index = node.endpoint().index();
        log.open(config, "server" + std::to_string(index));
        log.say("server       is number " + std::to_string(index) + " of " +
                std::to_string(servers) + ", workers are there");
        if (index != 0)
            metrics.open(config, "server", index, say);
        const StopSignals signals;
        const auto stop = [&](int signal) {
            log.say("a signal (" + std::to_string(signal) + ") asks for the run to stop");
            if (index == 0)
                return node.coordinator().request_stop(signal);
            for (int worker = 0; worker < config.distributed.workers; ++worker)
                node.endpoint().note(worker, 0, std::string(job::stop), {});
        };
        node.serve(signals, stop, metrics.exposition());
    } catch (const std::exception& error) {
        node.close();
        log.note("failed       " + std::string(error.what()));
        node.coordinator().failed(error.what());
        throw;
    }
    node.close();
    const ExitCode code = node.coordinator().finish();
    log.say("server       all workers have left");
    return code;
}

ExitCode run_worker(const Config& config, std::optional<int> rank) {
    check_role(config);
    check_rank(rank, config.distributed.workers, "workers");
    const auto& addresses = config.comm.servers;
    const bool allreduce = is_allreduce(config);
    if (allreduce && rank == 0)
        return run_leader(config);
    if (addresses.empty())
        throw UsageError(allreduce ? "a worker needs the address of worker 0: "
                                     "--servers=HOST:PORT or comm.servers"
                                   : "a worker needs the addresses of its servers: "
                                     "--servers=HOST:PORT,… or comm.servers");
    if (allreduce)
        check_listening(config);
    if (static_cast<int>(addresses.size()) != config.distributed.servers)
        throw UsageError("comm.servers: " + std::to_string(addresses.size()) +
                         " addresses where distributed.servers is " +
                         std::to_string(config.distributed.servers) + "; give one for each server");
    for (const std::string& address : addresses)
        if (parse_address(address).port == 0)
            throw UsageError("comm.servers: " + address +
                             ": port 0 is for a server that takes any; give the port that it says "
                             "others call it by");
    made_log_directory(config);  // where it cannot be, nobody has been joined yet
    ProcessLog log;
    const Log say = [&](const std::string& line) { log.say(line); };
    const Dataset training = make_dataset(config, Split::train);
    const ClusterPlan plan(config, training);
    std::optional<Dataset> test;
    const auto test_images = [&]() -> const Dataset& {
        return test ? *test : test.emplace(make_dataset(config, Split::test));
    };
    const auto transport = [&] { return make_socket_transport(transport_options(config, say)); };
    // Once: with other threads the worker would go on with other bits when it begins again.
    const int threads = computing_threads(config);
    try {
        OwnMetrics metrics;
        std::optional<StopSignals> signals;
        for (bool first = true;; first = false) {
            const auto link = connect(config, plan, rank.value_or(-1), !first, say);
            rank = link->rank();
            if (first) {
                log.open(config, "worker" + std::to_string(*rank));
                log.say("worker       is number " + std::to_string(*rank) + " of " +
                        std::to_string(link->workers()));
                metrics.open(config, "worker", *rank, say);
                signals.emplace();
            }
            try {
                ClusterWorker worker(config, plan, training, test_images, *link,
                                     {.threads = threads,
                                      .first_processor = config.threads ? -1 : 0,
                                      .gpu = {},
                                      .signal = [&] { return signals->number(); },
                                      .log = say,
                                      .exposition = metrics.exposition(),
                                      .join = join_of(config, plan, transport)});
                const ExitCode code = worker.run();
                if (config.profile)
                    for (const std::string& line : worker.profile())
                        log.say(line);
                log.say(code == ExitCode::done ? "worker       is done"
                                               : "worker       has stopped, as it was asked to");
                return code;
            } catch (const ServerLost& error) {
                log.say("again        " + std::string(error.what()));
                if (signals->requested())
                    return ExitCode::interrupted;  // with the run's last checkpoint
            }
        }
    } catch (const std::exception& error) {
        log.note("failed       " + std::string(error.what()));
        throw;
    }
}

}  // namespace trainer
