// The servers' rules, followed push by push and worked by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "optim/shard.h"

namespace trainer {
namespace {

using Kind = StepScheduleOptions::Kind;
using Rule = ShardOptions::Rule;

// A model of `size` weights on one server, with momentum 0.9 unless said otherwise.
struct Server {
    Server(ShardOptions options, int64_t size = 2, double momentum = 0.9, double decay = 0)
        : optimizer(make_optimizer({.momentum = momentum, .weight_decay = decay}, table(size))),
          arena(table(size), DType::f32, slabs(options)) {
        if (!options.lr)
            options.lr = [](int64_t) { return 0.1; };
        shard = Shard::make(options, *optimizer, arena, {0, size});
    }

    static TensorTable table(int64_t size) {
        TensorTable result;
        result.add("w", {size}, true, {});
        return result;
    }

    static std::vector<std::string> slabs(const ShardOptions& options) {
        std::vector<std::string> result{"weights", "gradients", "momentum"};
        for (const std::string& name : Shard::slabs(options))
            result.push_back(name);
        return result;
    }

    static Push raw(std::vector<float> values, int64_t first = 0) {
        auto owner = std::make_shared<std::vector<float>>(std::move(values));
        const auto bytes = std::as_bytes(std::span(*owner));
        return {{first, static_cast<int64_t>(owner->size())}, CodecId::raw, bytes, owner};
    }

    void push(int worker, int64_t step, std::vector<float> values, int64_t first = 0) {
        shard->push(worker, step, raw(std::move(values), first));
    }

    float weight(size_t i = 0) const { return arena.slab<float>("weights")[i]; }

    // "worker:step" of each pull that is answered now.
    std::string answered() {
        std::string text;
        for (const PullReply& reply : shard->replies())
            text += (text.empty() ? "" : " ") + std::to_string(reply.worker) + ":" +
                    std::to_string(reply.step);
        return text;
    }

    std::unique_ptr<Optimizer> optimizer;
    ParameterArena arena;
    std::unique_ptr<Shard> shard;
};

TEST(Average, UpdatesOnceAllHavePushed) {
    Server server({.rule = Rule::average, .workers = 2}, 1, 0.9, 0.5);
    server.arena.slab<float>("weights")[0] = 1;
    server.push(1, 0, {0.2F});
    EXPECT_EQ(server.weight(), 1);
    server.push(0, 0, {0.6F});
    double v = 0.4 + 0.5 * 1, w = 1 - 0.1 * v;
    EXPECT_NEAR(server.weight(), w, 1e-6);
    EXPECT_EQ(server.shard->steps(), 1);
    server.push(0, 1, {0.0F});
    server.push(1, 1, {1.0F});
    v = 0.9 * v + 0.5 + 0.5 * w;
    w -= 0.1 * v;
    EXPECT_NEAR(server.weight(), w, 1e-6);
}

TEST(Average, SumsInWorkerOrderWhateverTheOrderOfArrival) {
    // 1e8 + 1 - 1e8 depends on the order: both must give that of workers 0, 1, 2.
    const float big = 1e8F;
    Server one({.workers = 3}, 1, 0), other({.workers = 3}, 1, 0);
    one.push(0, 0, {big});
    one.push(1, 0, {1});
    one.push(2, 0, {-big});
    other.push(2, 0, {-big});
    other.push(0, 0, {big});
    other.push(1, 0, {1});
    EXPECT_EQ(one.weight(), other.weight());
}

TEST(Average, GoesOnWithoutWhoLeaves) {
    Server server({.workers = 3}, 2, 0);
    server.push(0, 0, {1}, 0);
    server.push(1, 0, {2}, 0);
    server.push(0, 0, {1}, 1);
    server.push(1, 0, {2}, 1);
    server.push(2, 0, {6}, 1);  // of this range its push has come
    EXPECT_NEAR(server.weight(1), -0.3, 1e-6);
    server.shard->pull(2, 1);
    server.shard->leave(2);
    EXPECT_NEAR(server.weight(0), -0.15, 1e-6);  // the mean of those who are there
    EXPECT_EQ(server.shard->steps(), 1);
    EXPECT_EQ(server.answered(), "");
    server.push(1, 1, {1, 1});
    server.push(0, 1, {1, 1});
    EXPECT_EQ(server.shard->steps(), 2);

    server.shard->set_members(2, {true, false, true});
    server.push(2, 2, {3, 3});
    EXPECT_EQ(server.shard->steps(), 2);
    server.push(0, 2, {1, 1});
    EXPECT_EQ(server.shard->steps(), 3);
    EXPECT_NEAR(server.weight(0), -0.15 - 0.1 - 0.2, 1e-6);
    server.shard->leave(1);  // is not there
    EXPECT_EQ(server.shard->members(), 2);
}

// One who is lost after it has pushed counts in that step.
TEST(Average, WhatTheLostHavePushedCounts) {
    Server server({.workers = 2}, 1, 0);
    server.push(1, 0, {4});
    server.shard->leave(1);
    EXPECT_EQ(server.shard->steps(), 0);
    server.push(0, 0, {2});
    EXPECT_NEAR(server.weight(), -0.3, 1e-6);
    server.push(0, 1, {1});
    EXPECT_NEAR(server.weight(), -0.4, 1e-6);
}

TEST(Average, BackupWorkersArriveTooLate) {
    Server server({.workers = 3, .backup = 1}, 2, 0);
    server.push(2, 0, {1, 1});
    server.push(0, 0, {3, 3});
    EXPECT_EQ(server.shard->steps(), 1);
    EXPECT_NEAR(server.weight(), -0.2, 1e-6);
    server.push(1, 0, {100, 100});
    EXPECT_EQ(server.shard->late_pushes(), 1);
    EXPECT_NEAR(server.weight(), -0.2, 1e-6);
    // Of a step that is closed in part, too.
    server.push(0, 1, {1}, 0);
    server.push(1, 1, {1}, 0);
    server.push(2, 1, {100}, 0);
    EXPECT_EQ(server.shard->late_pushes(), 2);
    server.push(0, 1, {1}, 1);
    EXPECT_EQ(server.shard->steps(), 1);
    server.push(2, 1, {1}, 1);
    EXPECT_EQ(server.shard->steps(), 2);
    server.push(1, 1, {100}, 1);
    EXPECT_NEAR(server.weight(0), -0.3, 1e-6);
    EXPECT_NEAR(server.weight(1), -0.3, 1e-6);
    EXPECT_TRUE(server.shard->answers_change());
}

TEST(OnArrival, WhoLeavesIsNotWaitedFor) {
    Server server({.rule = Rule::on_arrival, .workers = 3, .staleness = 1}, 1, 0);
    for (const int worker : {0, 1})
        for (const int64_t step : {0, 1})
            server.push(worker, step, {1});
    server.shard->pull(0, 2);
    EXPECT_EQ(server.answered(), "");  // two ahead of worker 2
    EXPECT_FALSE(server.shard->completed(2));
    server.shard->leave(2);
    EXPECT_EQ(server.answered(), "0:2");
    EXPECT_TRUE(server.shard->completed(2));
    EXPECT_EQ(server.shard->steps(), 2);
    server.shard->set_members(2, {true, true, true});
    server.shard->pull(2, 2);
    EXPECT_EQ(server.answered(), "2:2");
    server.push(2, 2, {1});
    EXPECT_NEAR(server.weight(), -0.5, 1e-6);
    EXPECT_EQ(server.shard->steps(), 2);
}

TEST(Average, RangesAreUpdatedEachByItself) {
    Server server({.workers = 2}, 3, 0);
    server.push(0, 0, {3}, 2);
    server.push(1, 0, {1}, 2);
    EXPECT_NEAR(server.weight(2), -0.2, 1e-6);
    EXPECT_EQ(server.shard->steps(), 0);
    server.push(0, 0, {1, 1});
    server.push(1, 0, {1, 3});
    EXPECT_EQ(server.shard->steps(), 1);
    EXPECT_NEAR(server.weight(1), -0.2, 1e-6);
}

TEST(Average, APullWaitsForItsStep) {
    Server server({.workers = 2});
    server.shard->pull(0, 0);
    EXPECT_EQ(server.answered(), "0:0");
    server.push(0, 0, {1, 1});
    server.shard->pull(0, 1);
    EXPECT_EQ(server.answered(), "");
    server.push(1, 0, {1, 1});
    server.shard->pull(1, 1);
    EXPECT_EQ(server.answered(), "0:1 1:1");
    EXPECT_EQ(server.answered(), "");
}

TEST(Average, RefusesWhatCannotBe) {
    Server server({.workers = 2});
    server.push(0, 0, {1, 1});
    EXPECT_THROW(server.push(0, 0, {1, 1}), Error);     // twice
    EXPECT_THROW(server.push(2, 0, {1, 1}), Error);     // no such worker
    EXPECT_THROW(server.push(1, 0, {1, 1, 1}), Error);  // past the end
    EXPECT_THROW(server.push(1, 9999, {1, 1}), Error);  // too far ahead
    EXPECT_THROW(server.push(1, -1, {1, 1}), Error);
    Push wrong = Server::raw({1, 1});
    wrong.bytes = wrong.bytes.first(7);
    EXPECT_THROW(server.shard->push(1, 0, wrong), Error);  // another length
    Push coded = Server::raw({1, 1});
    coded.codec = CodecId::two_bit;
    EXPECT_THROW(server.shard->push(1, 0, coded), Error);  // not this job's codec
    server.push(1, 0, {1, 1});
    EXPECT_THROW(server.push(1, 0, {1, 1}), Error);  // that step is closed
}

// A pull of G(t+1) is answered from memory that step t+1's update does not touch.
TEST(Average, DelayedPullsSeeOneVersion) {
    ShardOptions options{.workers = 2,
                         .schedule = StepSchedule({.kind = Kind::delayed, .delay_steps = 1})};
    Server server(options, 1, 0);
    server.push(0, 0, {1});
    server.push(1, 0, {1});
    server.shard->pull(0, 1);
    const auto first = server.shard->replies();
    ASSERT_EQ(first.size(), 1U);
    const float g1 = first[0].weights[0];
    EXPECT_NEAR(g1, -0.1, 1e-6);
    server.push(0, 1, {1});  // both push the next step before worker 1's pull is read
    server.push(1, 1, {1});
    EXPECT_NEAR(server.weight(), -0.2, 1e-6);
    EXPECT_EQ(first[0].weights[0], g1);
    server.shard->pull(1, 1);
    const auto second = server.shard->replies();
    ASSERT_EQ(second.size(), 1U);
    EXPECT_EQ(second[0].weights[0], g1);
}

TEST(Average, DecodesTheJobsCodec) {
    const std::shared_ptr<const Codec> codec = make_two_bit_codec(0.5F);
    ShardOptions options{.workers = 2, .codec = codec};
    Server server(options, 2, 0);
    for (int worker = 0; worker < 2; ++worker) {
        const std::vector<float> values{worker == 0 ? 1.0F : 0.1F, -0.7F};
        auto bytes = std::make_shared<std::vector<std::byte>>(8);
        const auto segments = segments_of(*codec, server.arena.table(), {0, 2});
        encode_range(*codec, segments, values, bytes->data());
        server.shard->push(worker, 0, {{0, 2}, CodecId::two_bit, *bytes, bytes});
    }
    EXPECT_NEAR(server.weight(0), -0.1 * 0.25, 1e-7);
    EXPECT_NEAR(server.weight(1), -0.1 * -0.5, 1e-7);
}

TEST(AverageWeights, TheMeanOfTheWorkersWeights) {
    ShardOptions options{.rule = Rule::average_weights,
                         .workers = 2,
                         .schedule = StepSchedule({.kind = Kind::local, .local_steps = 3})};
    Server server(options, 1);
    server.push(0, 2, {3});
    server.push(1, 2, {4});
    EXPECT_EQ(server.weight(), 3.5F);
    EXPECT_EQ(server.shard->steps(), 3);
    EXPECT_THROW(server.push(0, 3, {1}), Error);  // a local step pushes nothing
}

TEST(OnArrival, EveryPushIsAnUpdate) {
    Server server({.rule = Rule::on_arrival, .workers = 2}, 1, 0.9);
    server.push(0, 0, {1});
    EXPECT_NEAR(server.weight(), -0.1, 1e-6);
    EXPECT_EQ(server.shard->steps(), 0);  // a global step is N pushes
    server.shard->pull(0, 1);
    EXPECT_EQ(server.answered(), "0:1");
    server.push(0, 1, {1});
    EXPECT_NEAR(server.weight(), -0.1 - 0.19, 1e-6);
    EXPECT_EQ(server.shard->steps(), 1);
    server.push(1, 0, {1});
    EXPECT_NEAR(server.weight(), -0.29 - 0.1 * (0.9 * 1.9 + 1), 1e-6);
    EXPECT_EQ(server.shard->staleness().sum, 2);  // worker 1 missed two updates
    EXPECT_EQ(server.shard->staleness().largest, 2);
    EXPECT_EQ(server.shard->staleness().pushes, 3);
}

TEST(OnArrival, AReplyIsTheWorkersOwnCopy) {
    Server server({.rule = Rule::on_arrival, .workers = 2}, 1, 0);
    server.push(0, 0, {1});
    server.shard->pull(0, 1);
    const auto reply = server.shard->replies();
    server.push(1, 0, {1});
    EXPECT_NEAR(reply.at(0).weights[0], -0.1, 1e-6);
    EXPECT_NEAR(server.weight(), -0.2, 1e-6);
}

TEST(OnArrival, LearningRateIsThatOfTheGlobalStep) {
    ShardOptions options{.rule = Rule::on_arrival, .workers = 2};
    options.lr = [](int64_t step) { return step == 0 ? 1.0 : 0.25; };
    Server server(options, 1, 0);
    for (const auto& [worker, step] : {std::pair{0, 0}, {0, 1}, {1, 0}, {1, 1}})
        server.push(worker, step, {1});
    EXPECT_EQ(server.weight(), -2.5F);  // two pushes at 1, two at 0.25
}

TEST(Ssp, AWorkerIsAtMostSStepsAhead) {
    ShardOptions options{.rule = Rule::on_arrival, .workers = 2, .staleness = 1};
    Server server(options, 1);
    server.push(0, 0, {1});
    server.shard->pull(0, 1);
    EXPECT_EQ(server.answered(), "0:1");
    server.push(0, 1, {1});
    server.shard->pull(0, 2);
    EXPECT_EQ(server.answered(), "");  // it would be two ahead
    server.push(1, 0, {1});
    EXPECT_EQ(server.answered(), "0:2");
}

TEST(OnArrival, WarmUpAverages) {
    ShardOptions options{
        .rule = Rule::on_arrival, .workers = 2, .schedule = StepSchedule({.warmup_steps = 1})};
    Server server(options, 1, 0);
    server.push(0, 0, {1});
    EXPECT_EQ(server.weight(), 0);
    server.push(1, 0, {3});
    EXPECT_NEAR(server.weight(), -0.2, 1e-6);
    server.push(1, 1, {1});
    EXPECT_NEAR(server.weight(), -0.3, 1e-6);
}

TEST(DelayCompensated, AddsTheSecondOrderTerm) {
    ShardOptions options{.rule = Rule::delay_compensated, .workers = 2, .lambda = 0.5};
    Server server(options, 1, 0);
    server.push(0, 0, {2});  // G = G_bak: no compensation
    const double w = -0.2;
    EXPECT_NEAR(server.weight(), w, 1e-6);
    server.push(1, 0, {3});  // G_bak(1) is still 0
    EXPECT_NEAR(server.weight(), w - 0.1 * (3 + 0.5 * 9 * (w - 0)), 1e-6);
}

TEST(DelayCompensated, WithoutLambdaIsAsgd) {
    Server dc({.rule = Rule::delay_compensated, .workers = 2, .lambda = 0}, 2);
    Server asgd({.rule = Rule::on_arrival, .workers = 2}, 2);
    for (Server* server : {&dc, &asgd})
        for (const auto& [worker, step] : {std::pair{0, 0}, {0, 1}, {1, 0}, {0, 2}, {1, 1}})
            server->push(worker, step, {0.3F * static_cast<float>(step + 1), -1.7F});
    EXPECT_EQ(dc.weight(0), asgd.weight(0));
    EXPECT_EQ(dc.weight(1), asgd.weight(1));
}

TEST(DelayCompensated, AdaptiveDividesByTheRootMeanSquare) {
    ShardOptions options{
        .rule = Rule::delay_compensated_adaptive, .workers = 2, .lambda0 = 2, .m = 0.75};
    Server server(options, 1, 0);
    server.push(0, 0, {2});
    const double w = -0.2, ms1 = 0.25 * 4;
    server.push(1, 0, {3});
    const double ms2 = 0.75 * ms1 + 0.25 * 9;
    EXPECT_NEAR(server.weight(), w - 0.1 * (3 + 2 / std::sqrt(ms2 + 1e-7) * 9 * w), 1e-6);
}

TEST(OnArrival, RefusesAStepOutOfTurn) {
    Server server({.rule = Rule::on_arrival, .workers = 2}, 1);
    EXPECT_THROW(server.push(0, 1, {1}), Error);
    server.push(0, 0, {1});
    EXPECT_THROW(server.push(0, 0, {1}), Error);
}

}  // namespace
}  // namespace trainer
