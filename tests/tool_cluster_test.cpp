// Clusters of the program itself, on tiny data: within one process and as real processes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "data/dataset.h"
#include "data/loader.h"
#include "data/normalization.h"
#include "engine/executor.h"
#include "models/models.h"
#include "optim/sgd.h"
#include "tests/cluster_runs.h"

namespace trainer {
namespace {

using namespace testing_cluster;

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i)
        largest =
            std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    return a.size() == b.size() && !a.empty() ? largest : 1e9;
}

TEST_F(ClusterTest, FourWorkersAreOneOfFourTimesTheBatch) {
    for (const char* name : {"linear", "lenet5"}) {
        write_config(name);
        const std::string run = name;
        expect_done(start_inprocess(run + "1", 1, {}));
        expect_done(start_inprocess(run + "4", 4, {}));
        // Nothing but the order in which floats are added differs.
        const double moved = largest_difference(weights(run + "1", 0), weights(run + "1", 12));
        EXPECT_GT(moved, 1e-3) << run;
        EXPECT_LT(largest_difference(weights(run + "1", 12), weights(run + "4", 12)), 1e-3 * moved)
            << run;
        const auto one = records(run + "1", "eval"), four = records(run + "4", "eval");
        ASSERT_EQ(one.size(), 1u);
        ASSERT_EQ(four.size(), 1u);
        EXPECT_NEAR(one[0]["loss"].get<double>(), four[0]["loss"].get<double>(), 1e-3);
        EXPECT_EQ(four[0]["samples"], 1024);
    }
}

// 8192 = 11 x 700 + 492 and 11 x 699 + 503: of 4 workers the last has nothing to do in the last
// step; of 3, each would divide by 503 / 3.
TEST_F(ClusterTest, EveryImageOfASmallerLastStepCountsAlike) {
    for (const int workers : {4, 3}) {
        const int batch = workers == 4 ? 175 : 233;
        const std::string run = std::to_string(workers);
        const std::string key = "data.batch_size=";
        expect_done(start_inprocess(
            "one" + run, 1, {"data.drop_last=false", key + std::to_string(workers * batch)}));
        expect_done(
            start_inprocess(run, workers, {"data.drop_last=false", key + std::to_string(batch)}));
        EXPECT_LT(largest_difference(weights("one" + run, 12), weights(run, 12)), 2e-5);
        const auto epoch = records(run, "epoch");
        ASSERT_EQ(epoch.size(), 1u);
        EXPECT_EQ(epoch[0]["samples"], 8192);
    }
}

TEST_F(ClusterTest, ClippingTakesTheWholeGradient) {
    const Arguments more{"train.clip_grad_norm=0.05"};
    expect_done(start_inprocess("alone", 1, more));
    Arguments served = more;
    served.push_back("distributed.variant=asgd");
    expect_done(start_inprocess("served", 1, served));
    expect_same("alone", "served", false);
    expect_done(start_inprocess("free", 1, {}));
    EXPECT_GT(largest_difference(weights("alone", 12), weights("free", 12)), 1e-3);
}

// One worker with a server is one worker without, bit for bit.
TEST_F(ClusterTest, OneWorkerIsPlainSgd) {
    write_config("lenet5");
    expect_done(start_inprocess("alone", 1, {}));
    for (const std::string variant : {"asgd", "ssp", "dcasgd", "dcasgd_a", "ssgd"}) {
        expect_done(
            start_inprocess(variant, 1, {"distributed.variant=" + variant, "comm.transport=tcp"}));
        expect_same("alone", variant, false);
    }
}

TEST_F(ClusterTest, ServersTransportsAndProcessesChangeNothing) {
    write_config("lenet5");
    for (const std::string optimizer : {"sgd", "lars"}) {
        const std::string name = "optim.name=" + optimizer;
        const std::string first = optimizer + "1";
        expect_done(start_inprocess(first, 2, {name}));
        expect_done(start_inprocess(optimizer + "again", 2, {name}));
        expect_same(first, optimizer + "again");
        expect_done(start_inprocess(optimizer + "2", 2, {name, "distributed.servers=2"}));
        expect_same(first, optimizer + "2");
        expect_done(start_inprocess(optimizer + "3", 2,
                                    {name, "distributed.servers=3", "comm.transport=tcp"}));
        expect_same(first, optimizer + "3");
        expect_done(start_processes(optimizer + "p", 2, 2, {name}));
        expect_same(first, optimizer + "p");
    }
}

TEST_F(ClusterTest, FourProcessesTwiceTheSameBits) {
    expect_done(start_processes("a", 1, 4, {}));
    expect_done(start_processes("b", 1, 4, {}));
    expect_same("a", "b");
    for (const char* log : {"trainer.log", "trainer-server0.log", "trainer-worker3.log"})
        EXPECT_GT(contents(dir("a") / log).size(), 50u) << log;
}

// What the servers hold after each step, against the same arithmetic without a cluster: ssgd, and
// ssdsgd with the rule "sgd" after 2 steps of warm-up, each worker with weights of its own.
class Simulation {
  public:
    static constexpr int workers = 2;
    static constexpr int64_t batch = 256, warm_up = 2, delay = 3;
    static constexpr float rate = 0.02F, decay = 0.01F;

    explicit Simulation(const Dataset& dataset)
        : network_(build_model("linear", {})),
          backend_(make_reference_backend(DType::f32)),
          statistics_(network_.statistics(), DType::f32, {"weights"}),
          servers_(network_.parameters(), DType::f32, {"weights", "gradients", "momentum"}),
          optimizer_(
              make_optimizer({.momentum = 0.9, .weight_decay = decay}, network_.parameters())) {
        initialize_weights(servers_, 1);
        for (int i = 0; i < workers; ++i) {
            LoaderOptions options;
            options.batch = batch;
            options.worker = i;
            options.workers = workers;
            options.shuffle = false;
            options.normalization = default_normalization("synthetic");
            loaders_.push_back(std::make_unique<Loader>(dataset, options));
            loaders_.back()->start(0);
            arenas_.push_back(
                std::make_unique<ParameterArena>(network_.parameters(), DType::f32,
                                                 std::vector<std::string>{"weights", "gradients"}));
            executors_.push_back(
                std::make_unique<Executor>(network_, *backend_, *arenas_.back(), statistics_,
                                           ExecutorOptions{.batch = batch, .training = true}));
            adopt(i);
        }
    }

    std::vector<float> model() const { return values(servers_, slab::weights); }

    void step(int64_t t, bool delayed) {
        const std::vector<float> before = model();  // G(t)
        const auto mean = servers_.slab<float>(slab::gradients);
        std::ranges::fill(mean, 0.0F);
        for (size_t i = 0; i < workers; ++i) {
            const Batch& images = loaders_[i]->next();
            executors_[i]->train(
                {.images = images.images, .labels = images.labels, .batch = batch});
            const auto gradients = arenas_[i]->slab<float>(slab::gradients);
            for (size_t j = 0; j < mean.size(); ++j)
                mean[j] += gradients[j] / workers;
        }
        optimizer_->update(servers_, {0, servers_.size()}, rate);
        const int64_t n = t - warm_up;
        for (int i = 0; i < workers; ++i) {
            if (!delayed || n < 0) {
                adopt(i);
                continue;
            }
            const ParameterArena& arena = *arenas_[static_cast<size_t>(i)];
            const auto weights = arena.slab<float>(slab::weights);
            const auto gradients = arena.slab<float>(slab::gradients);
            const bool pulled = n > 0 && n % delay == 0;
            for (size_t j = 0; j < weights.size(); ++j) {
                const float base = pulled ? before[j] : weights[j];
                weights[j] = base - rate * (gradients[j] + decay * base);
            }
        }
    }

  private:
    static std::vector<float> values(const ParameterArena& arena, std::string_view slab_name) {
        const auto slab = arena.slab<float>(slab_name);
        return {slab.begin(), slab.end()};
    }
    void adopt(int i) {
        std::ranges::copy(servers_.slab<float>(slab::weights),
                          arenas_[static_cast<size_t>(i)]->slab<float>(slab::weights).begin());
    }

    Network network_;
    std::unique_ptr<Backend> backend_;
    ParameterArena statistics_, servers_;
    std::unique_ptr<Optimizer> optimizer_;
    std::vector<std::unique_ptr<Loader>> loaders_;
    std::vector<std::unique_ptr<ParameterArena>> arenas_;
    std::vector<std::unique_ptr<Executor>> executors_;
};

TEST_F(ClusterTest, CheckpointsAreTheModelsOfASimulation) {
    DatasetOptions options;
    options.dataset = "synthetic";
    options.split = Split::train;
    options.synthetic.seed = 1;
    const Dataset dataset = load_dataset(options);
    for (const std::string variant : {"ssgd", "ssdsgd"}) {
        SCOPED_TRACE(variant);
        expect_done(start_inprocess(
            variant, Simulation::workers,
            {"data.shuffle=false", "data.augment={pad_crop: 0, flip: false}",
             "checkpoint.every_steps=1", "checkpoint.keep=20", "optim.schedule.type=constant",
             "optim.weight_decay=0.01", "distributed.variant=" + variant,
             "distributed.warmup_steps=2", "distributed.delay_steps=3",
             std::string("distributed.local.rule=") + (variant == "ssgd" ? "auto" : "sgd")}));
        Simulation simulation(dataset);
        for (int64_t step = 0; step <= 12; ++step) {
            ASSERT_LT(largest_difference(simulation.model(), weights(variant, step)), 1e-5) << step;
            simulation.step(step, variant == "ssdsgd");
        }
    }
    // The two are not the same run.
    EXPECT_GT(largest_difference(weights("ssgd", 12), weights("ssdsgd", 12)), 1e-4);
}

const std::vector<std::string> resumable{"ssgd", "ssdsgd", "cdsgd", "localsgd"};

Arguments variant_of(const std::string& name) {
    return {"distributed.variant=" + name, "distributed.delay_steps=3", "distributed.local_steps=5",
            "distributed.warmup_steps=" + std::string(name == "ssdsgd" ? "2" : "0")};
}

// Killed as a whole after a checkpoint, and gone on with by another number of servers.
TEST_F(ClusterTest, ResumeAfterAKillIsTheUndisturbedRun) {
    write_config("lenet5");
    for (const std::string& variant : resumable) {
        SCOPED_TRACE(variant);
        const Arguments more = variant_of(variant);
        expect_done(start_inprocess(variant, 2, more));
        Arguments slow = more;
        slow.push_back("comm.emulate.step_time=60ms");
        const Running running = start_inprocess(variant + "k", 2, slow);
        await_step(variant + "k", 4);
        kill(running.child, SIGKILL);
        EXPECT_EQ(wait_for(running).code, 1000 + SIGKILL);
        EXPECT_FALSE(fs::exists(dir(variant + "k") / "step-12"));
        Arguments other = more;
        other.push_back("distributed.servers=3");
        expect_done(start_inprocess(variant + "k", 2, other));
        expect_same(variant, variant + "k");
    }
}

TEST_F(ClusterTest, ASignalStopsWithACheckpointToGoOnFrom) {
    write_config("lenet5");
    for (const std::string& variant : resumable) {
        SCOPED_TRACE(variant);
        const Arguments more = variant_of(variant);
        expect_done(start_inprocess(variant, 2, more));
        Arguments slow = more;
        slow.push_back("comm.emulate.step_time=100ms");
        slow.push_back("checkpoint.every_steps=0");
        const Running running = start_inprocess(variant + "s", 2, slow);
        for (int i = 0; i < 2000; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            if (contents(running.output).find("logs  ") != std::string::npos)
                break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(150));
        kill(running.child, SIGTERM);
        const Outcome outcome = wait_for(running);
        EXPECT_EQ(outcome.code, 75) << outcome.text;
        expect_part(outcome.text, "stopped by signal 15 after step ");
        EXPECT_FALSE(fs::exists(dir(variant + "s") / "step-12")) << outcome.text;
        expect_done(start_inprocess(variant + "s", 2, more));
        expect_same(variant, variant + "s");
    }
}

// Each worker keeps running statistics of its own; a checkpoint holds them and their mean.
TEST_F(ClusterTest, BatchNormStatisticsAreEachWorkersOwn) {
    write_config("resnet20");
    const auto run = [&](const std::string& name, int steps, const Arguments& more) {
        Arguments all{"train.max_steps=" + std::to_string(steps), "data.batch_size=8",
                      "optim.schedule.type=constant", "checkpoint.every_steps=3"};
        all.insert(all.end(), more.begin(), more.end());
        expect_done(start_inprocess(name, 2, all));
    };
    run("whole", 6, {});
    run("parts", 3, {"distributed.servers=2"});
    run("parts", 6, {});
    EXPECT_GT(model("whole", 6).size(), 1000000u);
    EXPECT_TRUE(model("whole", 6) == model("parts", 6));

    const Checkpoint checkpoint = Checkpoint::open(dir("whole") / "step-6");
    const Network network = build_model("resnet20", {});
    const TensorTable& table = network.statistics();
    std::vector<std::vector<float>> own(2, std::vector<float>(static_cast<size_t>(table.size())));
    for (size_t i = 0; i < 2; ++i)
        checkpoint.state.read("worker" + std::to_string(i) + ".statistics", {table.size()},
                              std::span(own[i]));
    EXPECT_NE(own[0], own[1]);
    for (const TensorInfo& tensor : table.tensors()) {
        std::vector<float> mean(static_cast<size_t>(tensor.size()));
        checkpoint.model.read(tensor.name, tensor.shape, std::span(mean));
        for (size_t j = 0; j < mean.size(); ++j) {
            const size_t at = static_cast<size_t>(tensor.offset) + j;
            ASSERT_EQ(mean[j],
                      static_cast<float>(
                          (static_cast<double>(own[0][at]) + static_cast<double>(own[1][at])) / 2))
                << tensor.name;
        }
    }
}

TEST_F(ClusterTest, ASignalToTheLauncherStopsAllProcesses) {
    expect_done(start_processes("whole", 2, 2, {}));
    const Running running = start_processes("run", 2, 2, {"comm.emulate.step_time=150ms"});
    await_step("run", 0);
    kill(running.child, SIGTERM);
    const Outcome outcome = wait_for(running);
    EXPECT_EQ(outcome.code, 75) << outcome.text;
    expect_done(start_processes("run", 1, 2, {}));
    expect_same("whole", "run");
}

TEST_F(ClusterTest, AnotherNumberOfWorkersIsRefused) {
    expect_done(start_inprocess("run", 2, {}));
    Arguments arguments = config_of("run", 2, {"distributed.workers=4"});
    arguments.insert(arguments.begin(), program());
    const Outcome outcome = wait_for(start(arguments));
    EXPECT_EQ(outcome.code, 2);
    expect_part(outcome.text, "is of another run (distributed.workers: 2 → 4)");
}

TEST_F(ClusterTest, AsynchronousVariantsLearn) {
    for (const std::string variant : {"asgd", "ssp", "dcasgd", "dcasgd_a"}) {
        SCOPED_TRACE(variant);
        expect_done(start_inprocess(
            variant, 4, {"distributed.variant=" + variant, "train.epochs=2", "train.max_steps=0"}));
        const auto evals = records(variant, "eval");
        ASSERT_EQ(evals.size(), 2u);
        EXPECT_GT(evals[1]["top1"].get<double>(), 0.8);
        const auto comm = records(variant, "comm");
        ASSERT_EQ(comm.size(), 28u);  // of 4 workers at steps 5, 10, ..., 30, and 32, the last
        for (const Json& record : comm) {
            EXPECT_GT(record["push_bytes"], 0);
            EXPECT_EQ(record["push_bytes"], record["pull_bytes"]);
            EXPECT_GE(record["staleness"], 0);
        }
    }
}

TEST_F(ClusterTest, StepTimeIsKeptByTheClock) {
    const Running running =
        start_inprocess("run", 2, {"comm.emulate.step_time=50ms", "log.every_steps=4"});
    const Outcome outcome = wait_for(running);
    ASSERT_EQ(outcome.code, 0) << outcome.text;
    expect_part(outcome.text, "50 ms forward and backward");
    const auto comm = records("run", "comm");
    ASSERT_EQ(comm.size(), 6u);
    for (const Json& record : comm)  // no upper bound: a busy machine takes longer
        EXPECT_GE(record["compute_s"].get<double>() / 4, 0.0499) << record;
}

TEST_F(ClusterTest, RecordsAndTheSummarySayWhereTimeWent) {
    const Outcome outcome = wait_for(start_inprocess("run", 2, {"distributed.servers=2"}));
    ASSERT_EQ(outcome.code, 0) << outcome.text;
    expect_part(outcome.text, "cluster      ssgd, 2 workers, 2 servers");
    expect_part(outcome.text, "computing ");
    expect_part(outcome.text, "slowest      worker ");
    const auto comm = records("run", "comm"), steps = records("run", "step");
    ASSERT_EQ(steps.size(), 2u);
    EXPECT_EQ(steps[1]["samples"], 5 * 512);
    ASSERT_EQ(comm.size(), 6u);  // at steps 5, 10, and 12, the last
    EXPECT_EQ(comm[3]["worker"], 1);
    EXPECT_EQ(comm[3]["push_bytes"], 5 * 4 * (32 * 32 * 3 * 10 + 10));
}

// --- what is refused, by whom, with what words ---

TEST_F(ClusterTest, WrongCombinationsAreRefused) {
    const auto refusal = [&](const Arguments& more) {
        const Outcome outcome = wait_for(start_inprocess("run", 2, more));
        EXPECT_EQ(outcome.code, 2) << outcome.text;
        return outcome.text;
    };
    expect_part(refusal({"distributed.local.rule=glu"}), "would never be used");
    expect_part(refusal({"distributed.variant=localsgd", "distributed.codec.name=2bit"}),
                "take raw");
    expect_part(refusal({"data.batch_size=8192"}), "a global batch of 2 x 8192 = 16384");
}

TEST_F(ClusterTest, AServerWithoutWorkersAndAWorkerWithoutServers) {
    Arguments server = config_of("run", 2, {"comm.timeout=1s"});
    server.insert(server.begin(), program());
    server.insert(server.end(), {"--role=server", "--listen=127.0.0.1:0"});
    const Outcome alone = wait_for(start(server));
    EXPECT_EQ(alone.code, 1);
    expect_part(alone.text, "2 of 2 workers have not come to the server at ");

    Arguments worker = config_of("run", 2, {"comm.timeout=1s"});
    worker.insert(worker.begin(), program());
    worker.insert(worker.end(), {"--role=worker", "--servers=127.0.0.1:1"});
    const Outcome lost = wait_for(start(worker));
    EXPECT_EQ(lost.code, 1);
    expect_part(lost.text, "127.0.0.1:1");

    worker.back() = "--servers=127.0.0.1:1,127.0.0.1:2";
    const Outcome many = wait_for(start(worker));
    EXPECT_EQ(many.code, 2);
    expect_part(many.text, "2 addresses where distributed.servers is 1");
    worker.pop_back();
    const Outcome none = wait_for(start(worker));
    EXPECT_EQ(none.code, 2);
    expect_part(none.text, "a worker needs the addresses of its servers");
    worker.push_back("--rank=2");
    const Outcome rank = wait_for(start(worker));
    EXPECT_EQ(rank.code, 2);
    expect_part(rank.text, "--rank 2: the run has 2 workers");
}

/// Starts a server that is to have two workers and returns it with its address.
class ClusterRolesTest : public ClusterTest {
  protected:
    std::pair<Running, std::string> start_server() const {
        Arguments server = config_of("run", 2, {"comm.timeout=4s"});
        server.insert(server.begin(), program());
        server.insert(server.end(), {"--role=server", "--listen=127.0.0.1:0"});
        const Running running = start(server);
        const std::string mark = "others call it ";
        std::string text;
        for (int i = 0; i < 2000 && text.find('\n', text.find(mark)) == std::string::npos; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            text = contents(running.output);
            if (text.find(mark) == std::string::npos)
                text.clear();
        }
        const size_t at = text.find(mark) + mark.size();
        return {running, text.substr(at, text.find('\n', at) - at)};
    }

    Running start_worker(const std::string& address, const Arguments& more) const {
        Arguments arguments{"comm.timeout=4s"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        Arguments worker = config_of("run", 2, arguments);
        worker.insert(worker.begin(), program());
        worker.insert(worker.end(), {"--role=worker", "--servers=" + address});
        return start(worker);
    }
};

TEST_F(ClusterRolesTest, AnotherConfigOrModelIsRefusedAtBothEnds) {
    const auto [server, address] = start_server();
    const Outcome rate = wait_for(start_worker(address, {"optim.lr=0.3"}));
    EXPECT_EQ(rate.code, 1);
    expect_part(rate.text, "optim.lr is 0.02");
    const Outcome model = wait_for(start_worker(address, {"model.name=lenet5"}));
    EXPECT_EQ(model.code, 1);
    expect_part(model.text, "model.name is linear");
    const Outcome outcome = wait_for(server);
    EXPECT_EQ(outcome.code, 1);
    expect_part(outcome.text, "was refused: ");
}

TEST_F(ClusterRolesTest, APortInUseIsNamed) {
    const auto [server, address] = start_server();
    Arguments second = config_of("second", 2);
    second.insert(second.begin(), program());
    second.insert(second.end(), {"--role=server", "--listen=" + address});
    const Outcome outcome = wait_for(start(second));
    EXPECT_EQ(outcome.code, 1);
    expect_part(outcome.text, address.substr(address.rfind(':')));
    kill(server.child, SIGKILL);
    wait_for(server);
}

TEST_F(ClusterRolesTest, NobodyHangsWhenAWorkerDies) {
    const auto [server, address] = start_server();
    const Running one = start_worker(address, {"comm.emulate.step_time=100ms"});
    const Running other = start_worker(address, {"comm.emulate.step_time=100ms"});
    await_step("run", 0);
    kill(one.child, SIGKILL);
    wait_for(one);
    const Outcome survivor = wait_for(other), ended = wait_for(server);
    EXPECT_EQ(survivor.code, 1) << survivor.text;
    EXPECT_EQ(ended.code, 1) << ended.text;
    expect_part(ended.text, "is lost");
    expect_part(survivor.text, "is lost");
}

}  // namespace
}  // namespace trainer
