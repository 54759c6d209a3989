// LaneTeam: work reaches every lane, barriers hold, exceptions come back.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/error.h"
#include "engine/lanes.h"

namespace trainer {
namespace {

class Lanes : public testing::TestWithParam<int> {};

TEST_P(Lanes, RunReachesEveryLaneOnItsOwnThread) {
    LaneTeam team(GetParam(), false);
    EXPECT_EQ(team.count(), GetParam());
    std::vector<std::thread::id> threads(static_cast<size_t>(team.count()));
    team.run([&](Lane& lane) {
        EXPECT_EQ(lane.count(), GetParam());
        threads[static_cast<size_t>(lane.index())] = std::this_thread::get_id();
    });
    EXPECT_EQ(threads[0], std::this_thread::get_id()) << "the caller is lane 0";
    EXPECT_EQ(std::set<std::thread::id>(threads.begin(), threads.end()).size(), threads.size());
}

// A worker that began again, with a new team, found one processor and went on with one lane.
TEST(LanesPinned, LeaveTheCallersThreadWhereItCouldRunBefore) {
    cpu_set_t before, during, after;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    if (CPU_COUNT(&before) < 2)
        GTEST_SKIP() << "one processor";
    {
        const LaneTeam team(2);
        ASSERT_EQ(sched_getaffinity(0, sizeof during, &during), 0);
        EXPECT_EQ(CPU_COUNT(&during), 1);
    }
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST_P(Lanes, PartsOfLanesCoverAll) {
    LaneTeam team(GetParam(), false);
    std::vector<int> touched(37, 0);
    team.run([&](Lane& lane) {
        const Range part = lane.part(37);
        for (int64_t i = part.first; i < part.end(); ++i)
            ++touched[static_cast<size_t>(i)];
    });
    EXPECT_EQ(touched, std::vector<int>(37, 1));
}

// Every lane writes its slot, and after the barrier reads all others' (not atomics: a barrier that
// orders nothing is a data race that the thread sanitizer sees). A second barrier keeps the next
// round's writes from this round's reads.
TEST_P(Lanes, BarrierSeparatesRounds) {
    LaneTeam team(GetParam(), false);
    constexpr int rounds = 2000;
    const auto lanes = static_cast<size_t>(team.count());
    std::vector<int> slots(lanes, -1);
    std::vector<int> wrong(lanes, 0);
    team.run([&](Lane& lane) {
        const auto self = static_cast<size_t>(lane.index());
        for (int round = 0; round < rounds; ++round) {
            slots[self] = round;
            lane.barrier();
            for (const int slot : slots)
                wrong[self] += slot != round;
            lane.barrier();
        }
    });
    EXPECT_EQ(wrong, std::vector<int>(lanes, 0));
}

TEST_P(Lanes, BarrierHoldsWhereOneLaneIsLate) {
    LaneTeam team(GetParam(), false);
    std::atomic<int> arrived{0};
    std::atomic<int> early{0};
    team.run([&](Lane& lane) {
        for (int round = 1; round <= 5; ++round) {
            // Far longer than lanes spin: the others sleep.
            if (lane.index() == round % lane.count())
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
            ++arrived;
            lane.barrier();
            if (arrived != round * lane.count())
                ++early;
            lane.barrier();
        }
    });
    EXPECT_EQ(early, 0);
}

TEST_P(Lanes, ManyRunsFollowEachOther) {
    LaneTeam team(GetParam(), false);
    const auto lanes = static_cast<size_t>(team.count());
    std::vector<int64_t> sums(lanes, 0);
    int64_t factor = 1;
    const std::function<void(Lane&)> work = [&](Lane& lane) {
        sums[static_cast<size_t>(lane.index())] += factor;
        lane.barrier();
    };
    for (; factor <= 2000; ++factor)
        team.run(work);
    EXPECT_EQ(sums, std::vector<int64_t>(lanes, 2000 * 2001 / 2));
}

TEST_P(Lanes, AnExceptionOfAnyLaneComesBack) {
    LaneTeam team(GetParam(), false);
    for (int thrower = 0; thrower < team.count(); ++thrower) {
        std::atomic<int> finished{0};
        const auto work = [&](Lane& lane) {
            if (lane.index() == thrower)
                throw Error("lane " + std::to_string(thrower));
            // The run returns only once every lane is done.
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            ++finished;
        };
        try {
            team.run(work);
            FAIL() << "the exception of lane " << thrower << " was lost";
        } catch (const Error& error) {
            EXPECT_EQ(std::string(error.what()), "lane " + std::to_string(thrower));
        }
        EXPECT_EQ(finished, team.count() - 1);
    }
    int64_t sum = 0;
    team.run([&](Lane& lane) {
        if (lane.index() == 0)
            sum = 1;
    });
    EXPECT_EQ(sum, 1) << "a team works on after an exception";
}

TEST_P(Lanes, WhereAllThrowTheLowestLaneIsHeard) {
    LaneTeam team(GetParam(), false);
    for (int round = 0; round < 20; ++round) {
        try {
            team.run([](Lane& lane) {
                lane.barrier();
                throw Error(std::to_string(lane.index()));
            });
            FAIL();
        } catch (const Error& error) {
            EXPECT_STREQ(error.what(), "0");
        }
    }
}

TEST_P(Lanes, TeamsComeAndGo) {
    for (int i = 0; i < 50; ++i) {
        LaneTeam team(GetParam(), false);
        if (i % 2 == 0)
            continue;  // never used
        std::atomic<int> ran{0};
        team.run([&](Lane& lane) {
            lane.barrier();
            ++ran;
        });
        EXPECT_EQ(ran, GetParam());
    }
}

INSTANTIATE_TEST_SUITE_P(Counts, Lanes, testing::Values(1, 2, 3, 4));

TEST(LaneTeam, TwoTeamsWorkSideBySide) {
    std::vector<int64_t> sums(2, 0);
    std::vector<std::thread> callers;
    for (size_t t = 0; t < 2; ++t)
        callers.emplace_back([&sums, t] {
            LaneTeam team(2, false);
            std::vector<int64_t> parts(2, 0);
            for (int i = 0; i < 500; ++i)
                team.run([&](Lane& lane) {
                    parts[static_cast<size_t>(lane.index())] += lane.index() + 1;
                    lane.barrier();
                    if (lane.index() == 0)
                        sums[t] += parts[0] + parts[1];
                    lane.barrier();
                });
        });
    for (std::thread& caller : callers)
        caller.join();
    EXPECT_EQ(sums, std::vector<int64_t>(2, 3 * 500 * 501 / 2));
}

TEST(LaneTeam, PinsALaneToOneProcessor) {
    cpu_set_t usable;
    ASSERT_EQ(sched_getaffinity(0, sizeof usable, &usable), 0);
    if (CPU_COUNT(&usable) < 2)
        GTEST_SKIP() << "one processor: nothing to tell apart";
    // In a thread of its own, since the caller is pinned too.
    std::thread([] {
        LaneTeam team(2);
        int processors[2] = {0, 0};
        team.run([&](Lane& lane) {
            cpu_set_t set;
            sched_getaffinity(0, sizeof set, &set);
            processors[lane.index()] = CPU_COUNT(&set);
        });
        EXPECT_EQ(processors[0], 1);
        EXPECT_EQ(processors[1], 1);
    }).join();
}

TEST(LaneTeam, NeedsALane) {
    EXPECT_THROW(LaneTeam(0), std::logic_error);
}

}  // namespace
}  // namespace trainer
