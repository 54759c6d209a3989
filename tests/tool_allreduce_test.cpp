// Topology allreduce: workers without servers compute what servers would, to the last bit.
#include <csignal>

#include "tests/cluster_runs.h"

namespace trainer {
namespace {

using namespace testing_cluster;

class AllreduceTest : public ClusterTest {
  protected:
    AllreduceTest() { write_config("lenet5"); }

    /// S-SGD, and Local SGD whose checkpoints are not where weights are averaged.
    static Arguments variant_of(const std::string& name, const Arguments& more = {}) {
        Arguments all{"distributed.variant=" + name, "distributed.local_steps=5"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    static Arguments without_servers(Arguments arguments) {
        arguments.emplace_back("distributed.topology=allreduce");
        return arguments;
    }

    void expect_same_models(const std::string& one, const std::string& other) const {
        for (const int64_t step : {4, 8, 12}) {
            EXPECT_GT(model(one, step).size(), 200000u) << one;
            EXPECT_TRUE(model(one, step) == model(other, step)) << one << " at step " << step;
        }
        const auto evaluations = records(one, "eval"), others = records(other, "eval");
        ASSERT_EQ(evaluations.size(), others.size());
        for (size_t i = 0; i < evaluations.size(); ++i)
            EXPECT_EQ(evaluations[i]["loss"], others[i]["loss"]);
    }
};

const Arguments variants{"ssgd", "localsgd"};

TEST_F(AllreduceTest, IsWhatServersComputeBitForBit) {
    for (const std::string& variant : variants)
        for (const int workers : {2, 4})
            for (const std::string warm_up : {"0", "3"}) {
                const std::string run = variant + std::to_string(workers) + warm_up;
                SCOPED_TRACE(run);
                const Arguments more = variant_of(variant, {"distributed.warmup_steps=" + warm_up});
                expect_done(start_inprocess(run + "ps", workers, more));
                expect_done(start_inprocess(run, workers, without_servers(more)));
                expect_same_models(run, run + "ps");
            }
}

TEST_F(AllreduceTest, WholeTensorsClippingAndSmallerLastStepsToo) {
    for (const Arguments& more :
         {Arguments{"optim.name=lars", "optim.lr=0.5"}, Arguments{"train.clip_grad_norm=0.05"},
          Arguments{"data.drop_last=false", "data.batch_size=1003", "train.max_steps=0",
                    "train.epochs=4", "checkpoint.every_steps=4"}}) {
        SCOPED_TRACE(more[0]);
        fs::remove_all(root_ / "runs");
        expect_done(start_inprocess("ps", 2, more));
        expect_done(start_inprocess("allreduce", 2, without_servers(more)));
        expect_same_models("ps", "allreduce");
    }
}

TEST_F(AllreduceTest, ProcessesComputeTheSame) {
    for (const std::string& variant : variants) {
        const Arguments more = variant_of(variant);
        expect_done(start_inprocess(variant + "ps", 3, more));
        const Outcome outcome = wait_for(start_processes(variant, 1, 3, without_servers(more)));
        EXPECT_EQ(outcome.code, 0) << outcome.text;
        expect_part(outcome.text, variant + ", 3 workers, allreduce");
        expect_same_models(variant, variant + "ps");
        for (const Json& record : records(variant, "comm")) {
            if (variant == "ssgd" || record["step"] != 12) {  // steps 11 and 12 are local ones
                EXPECT_GT(record["push_bytes"], 0) << record;
            }
            EXPECT_EQ(record["push_bytes"], record["pull_bytes"]) << record;
        }
    }
}

TEST_F(AllreduceTest, ResumeAfterAKillIsTheUndisturbedRun) {
    for (const std::string& variant : variants) {
        SCOPED_TRACE(variant);
        const Arguments more = without_servers(variant_of(variant));
        expect_done(start_inprocess(variant, 2, more));
        Arguments slow = more;
        slow.emplace_back("comm.emulate.step_time=60ms");
        const Running running = start_inprocess(variant + "k", 2, slow);
        await_step(variant + "k", 4);
        kill(running.child, SIGKILL);
        EXPECT_EQ(wait_for(running).code, 1000 + SIGKILL);
        EXPECT_FALSE(fs::exists(dir(variant + "k") / "step-12"));
        expect_done(start_processes(variant + "k", 1, 2, more));
        expect_same(variant, variant + "k");
    }
}

TEST_F(AllreduceTest, ASignalStopsWithACheckpointToGoOnFrom) {
    for (const std::string& variant : variants) {
        SCOPED_TRACE(variant);
        const Arguments more = without_servers(variant_of(variant));
        expect_done(start_inprocess(variant, 2, more));
        Arguments slow = more;
        slow.emplace_back("comm.emulate.step_time=150ms");
        const Running running = start_processes(variant + "s", 1, 2, slow);
        await_step(variant + "s", 0);
        kill(running.child, SIGTERM);
        const Outcome outcome = wait_for(running);
        EXPECT_EQ(outcome.code, 75) << outcome.text;
        EXPECT_FALSE(fs::exists(dir(variant + "s") / "step-12")) << outcome.text;
        expect_done(start_inprocess(variant + "s", 2, more));
        expect_same(variant, variant + "s");
    }
}

// The launcher reads what worker 0 says from the moment that it has started it.
TEST_F(AllreduceTest, TheLauncherWaitsForTheLeaderInSilence) {
    std::ofstream(root_ / "worker.sh")
        << "#!/bin/sh\n"
           "case \"$*\" in\n"
           "    *--print-config*) echo '  topology: allreduce' ;;\n"
           "    *--rank=0*) echo 'worker  listens at x, others call it x'\n"
           "        until [ -e joined ]; do sleep 0.02; done ;;\n"
           "    *) touch joined ;;\n"
           "esac\n";
    fs::permissions(root_ / "worker.sh", fs::perms::owner_all);
    for (int i = 0; i < 25; ++i) {
        fs::remove(root_ / "joined");
        const Running running = start({"/usr/bin/env", "TRAINER=./worker.sh",
                                       TRAINER_SOURCE_DIR "/tools/launch_local.sh", "-n2"});
        EXPECT_EQ(wait_for(running).text, "worker  listens at x, others call it x\n");
    }
}

class AllreduceRolesTest : public AllreduceTest {
  protected:
    Running start_rank(int rank, const std::string& address, const Arguments& more = {}) const {
        Arguments arguments = config_of("run", 3, without_servers({"comm.timeout=4s"}));
        for (const std::string& assignment : more)
            set(arguments, assignment);
        arguments.insert(arguments.begin(), program());
        arguments.insert(arguments.end(), {"--role=worker", "--rank=" + std::to_string(rank)});
        arguments.push_back(rank == 0 ? "--listen=127.0.0.1:0" : "--servers=" + address);
        return start(arguments);
    }
    std::string address_of(const Running& leader) const {
        const std::string mark = "others call it ";
        std::string text;
        for (int i = 0; i < 2000 && text.find('\n', text.find(mark)) == std::string::npos; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            text = contents(leader.output);
            if (text.find(mark) == std::string::npos)
                text.clear();
        }
        const size_t at = text.find(mark) + mark.size();
        return text.substr(at, text.find('\n', at) - at);
    }
};

TEST_F(AllreduceRolesTest, ARankThatDiesEndsTheOthersWithinTheTimeout) {
    for (const size_t dying : {1U, 0U}) {
        SCOPED_TRACE(dying);
        fs::remove_all(root_ / "runs");
        const Arguments slow{"comm.emulate.step_time=100ms"};
        std::vector<Running> ranks{start_rank(0, "", slow)};
        const std::string address = address_of(ranks[0]);
        for (const int rank : {1, 2})
            ranks.push_back(start_rank(rank, address, slow));
        await_step("run", 4);
        const auto begin = std::chrono::steady_clock::now();
        kill(ranks[dying].child, SIGKILL);
        for (size_t rank = 0; rank < ranks.size(); ++rank) {
            const Outcome outcome = wait_for(ranks[rank]);
            if (rank == dying)
                continue;
            EXPECT_EQ(outcome.code, 1) << outcome.text;
            expect_part(outcome.text, "lost");
        }
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(6));
    }
}

TEST_F(AllreduceRolesTest, WhoDoesNotComeOrComesWronglyIsNamed) {
    const Outcome alone = wait_for(start_rank(0, ""));
    EXPECT_EQ(alone.code, 1);
    expect_part(alone.text, "2 of 3 workers have not come to the server at ");

    Arguments arguments = config_of("run", 3, {"distributed.topology=allreduce"});
    arguments.insert(arguments.begin(), program());
    arguments.insert(arguments.end(), {"--role=worker", "--rank=1"});
    const Outcome lost = wait_for(start(arguments));
    EXPECT_EQ(lost.code, 2);
    expect_part(lost.text, "a worker needs the address of worker 0");
    arguments.back() = "--rank=0";
    arguments.emplace_back("--listen=0.0.0.0:0");
    const Outcome open = wait_for(start(arguments));
    EXPECT_EQ(open.code, 2);
    expect_part(open.text, "open to other machines");
    arguments[arguments.size() - 3] = "--role=server";
    const Outcome server = wait_for(start(arguments));
    EXPECT_EQ(server.code, 2);
    expect_part(server.text, "allreduce has no servers");
    Arguments wrong =
        config_of("run", 2, {"distributed.topology=allreduce", "distributed.variant=asgd"});
    wrong.insert(wrong.begin(), program());
    const Outcome variant = wait_for(start(wrong));
    EXPECT_EQ(variant.code, 2);
    expect_part(variant.text, "take ssgd or localsgd");

    Arguments listening = config_of("run", 2);
    listening.insert(listening.begin(), program());
    listening.insert(listening.end(), {"--role=worker", "--listen=127.0.0.1:0"});
    const Outcome with_servers = wait_for(start(listening));
    EXPECT_EQ(with_servers.code, 2);
    expect_part(with_servers.text, "--listen: goes with --role=server, or with the workers of");
}

}  // namespace
}  // namespace trainer
