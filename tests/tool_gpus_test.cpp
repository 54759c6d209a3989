// Programs with several GPUs: a worker that has some, and workers without servers.
#include "tests/cluster_runs.h"
#include "tests/gpu.h"

namespace trainer {
namespace {

using namespace testing_cluster;

class GpusTest : public ClusterTest {
  protected:
    /// Why this test is skipped here; nullopt where there are so many GPUs and NCCL.
    static std::optional<std::string> why_not(int gpus) {
        if (auto why = why_no_gpu())
            return why;
        if (auto why = why_no_cuda(gpus - 1))
            return why;
        return why_no_nccl();
    }

    static Arguments on_gpus(Arguments arguments) {
        arguments.emplace_back("device=cuda");
        arguments.emplace_back("train.max_steps=8");
        return arguments;
    }

    void expect_close(const std::string& one, const std::string& other) const {
        for (const int64_t step : {4, 8}) {
            const std::vector<float> a = weights(one, step), b = weights(other, step);
            ASSERT_EQ(a.size(), b.size());
            double largest = 0;
            for (size_t i = 0; i < a.size(); ++i)
                largest = std::max(largest, std::abs(static_cast<double>(a[i] - b[i])));
            EXPECT_LT(largest, 2e-5) << one << " and " << other << " at step " << step;
        }
    }
};

#define TRAINER_NEEDS(gpus)             \
    if (const auto why = why_not(gpus)) \
    GTEST_SKIP() << "needs " << (gpus) << " GPUs and NCCL: " << *why

TEST_F(GpusTest, AloneOrWithServersTheirNumberChangesNothing) {
    TRAINER_NEEDS(2);
    for (const int workers : {1, 2}) {
        if (workers == 2 && why_not(4))
            break;  // each worker has GPUs of its own
        fs::remove_all(root_ / "runs");
        expect_done(start_inprocess("one", workers, on_gpus({})));
        expect_done(start_inprocess("two", workers, on_gpus({"worker.gpus=2"})));
        expect_close("one", "two");
        expect_done(start_inprocess("again", workers, on_gpus({"worker.gpus=2"})));
        EXPECT_TRUE(model("two", 8) == model("again", 8)) << "the same bits twice";
    }
}

TEST_F(GpusTest, AllreduceIsWhatServersCompute) {
    TRAINER_NEEDS(2);
    write_config("lenet5");
    for (const std::string variant : {"ssgd", "localsgd"}) {
        const Arguments more{"distributed.variant=" + variant, "distributed.local_steps=3"};
        Arguments without = more;
        without.emplace_back("distributed.topology=allreduce");
        expect_done(start_inprocess(variant + "ps", 2, on_gpus(more)));
        expect_done(start_inprocess(variant, 2, on_gpus(without)));
        EXPECT_TRUE(model(variant, 8) == model(variant + "ps", 8)) << variant << ": bit for bit";
        without.emplace_back("worker.gpus=2");
        if (!why_not(4)) {
            expect_done(start_inprocess(variant + "4", 2, on_gpus(without)));
            expect_close(variant, variant + "4");
        }
    }
}

TEST_F(GpusTest, TooFewGpusAreNamed) {
    TRAINER_NEEDS(1);
    const auto refusal = [&](const Arguments& more) {
        const Outcome outcome = wait_for(start_inprocess("run", 2, more));
        EXPECT_EQ(outcome.code, 2) << outcome.text;
        return outcome.text;
    };
    expect_part(refusal({"device=cuda", "worker.gpus=16"}),
                "worker.gpus: 16: this machine has no GPU");
    expect_part(refusal({"device=cuda", "worker.gpus=16"}), ": it has ");
    expect_part(refusal({"device=cpu", "worker.gpus=2"}), "worker.gpus: 2: the CPU computes here");
}

// Where there is no GPU a worker cannot have several either.
TEST_F(GpusTest, SeveralNeedAGpu) {
    const Outcome outcome = wait_for(start_inprocess("run", 1, {"device=cpu", "worker.gpus=4"}));
    EXPECT_EQ(outcome.code, 2);
    expect_part(outcome.text, "worker.gpus: 4: the CPU computes here; take worker.gpus 1");
}

}  // namespace
}  // namespace trainer
