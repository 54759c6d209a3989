// Steps, epochs and samples of a run whose members change.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "tools/trainer/rhythm.h"

namespace trainer::job {
namespace {

Rhythm rhythm(int64_t samples, int64_t batch, int workers, int64_t epochs, bool drop_last) {
    Rhythm result;
    result.samples = samples;
    result.batch = batch;
    result.workers = workers;
    result.epochs = epochs;
    result.drop_last = drop_last ? 1 : 0;
    result.members = Members::all(workers);
    return result;
}

Members of(const std::vector<int>& ranks) {
    Members members;
    for (const int rank : ranks)
        members.add(rank);
    return members;
}

TEST(Members, AreASetOfRanks) {
    Members members = Members::all(130);
    EXPECT_EQ(members.count(), 130);
    EXPECT_EQ(members.below(129), 129);
    members.remove(64);
    members.remove(3);
    EXPECT_EQ(members.below(129), 127);
    EXPECT_EQ(members.below(64), 63);
    EXPECT_FALSE(members.has(64));
    EXPECT_TRUE(members.has(4095) == false);
    EXPECT_EQ(of({0, 63, 64, 4095}).ranks(), (std::vector<int>{0, 63, 64, 4095}));
    EXPECT_TRUE(Members{}.empty());
}

TEST(Rhythm, WithoutChangesIsWhatDivisionSays) {
    for (const bool drop_last : {true, false}) {
        const Rhythm run = rhythm(103, 5, 4, 3, drop_last);
        const int64_t whole = drop_last ? 5 : 6;
        EXPECT_EQ(run.steps_per_epoch(), whole);
        EXPECT_EQ(run.total_steps(), 3 * whole);
        for (int64_t step = 0; step <= 3 * whole; ++step) {
            EXPECT_EQ(run.place(step), (Place{step / whole, step % whole * 20, step % whole}));
            EXPECT_EQ(run.schedule_step(step), step);
            EXPECT_EQ(run.ends_epochs(step, 1), step > 0 && step % whole == 0) << step;
            EXPECT_EQ(run.ends_epochs(step, 2), step > 0 && step % (2 * whole) == 0) << step;
        }
    }
    Rhythm short_run = rhythm(103, 5, 4, 3, true);
    short_run.max_steps = 7;
    EXPECT_EQ(short_run.total_steps(), 7);
}

// Every sample is taken once an epoch at most, and none is left that would fill a step.
TEST(Rhythm, MembersShareWhatIsLeft) {
    for (const bool drop_last : {true, false})
        for (int64_t at = 1; at <= 12; ++at) {
            Rhythm run = rhythm(103, 5, 4, 4, drop_last);
            const std::vector<std::vector<int>> changes{{0, 2, 3}, {2}, {0, 1, 2, 3}};
            std::map<int64_t, std::multiset<int64_t>> taken;  // by epoch
            size_t change = 0;
            int64_t step = 0;
            for (; !run.is_last(step); ++step) {
                if (change < changes.size() && step == at * static_cast<int64_t>(change + 1))
                    run.change(step, of(changes[change++]));
                const Place place = run.place(step);
                EXPECT_LT(place.epoch, 4);
                int64_t sum = 0;
                for (const int rank : run.members.ranks())
                    sum += run.samples_of(step, rank);
                EXPECT_EQ(sum, run.samples_of(step));
                EXPECT_LE(sum, 5 * run.members.count());
                for (int64_t i = 0; i < sum; ++i)
                    taken[place.epoch].insert(place.position + i);
                EXPECT_LE(run.schedule_step(step), run.schedule_step(step + 1));
            }
            ASSERT_EQ(taken.size(), 4u);
            for (const auto& [epoch, samples] : taken) {
                EXPECT_EQ(std::set<int64_t>(samples.begin(), samples.end()).size(), samples.size());
                EXPECT_EQ(*samples.rbegin(), static_cast<int64_t>(samples.size()) - 1);
                if (drop_last)
                    EXPECT_GT(samples.size(), 103u - 20u);
                else
                    EXPECT_EQ(samples.size(), 103u);
            }
            EXPECT_EQ(run.schedule_step(step), 4 * (drop_last ? 5 : 6));
        }
}

TEST(Rhythm, TheRateFollowsTheMembersWhereAskedTo) {
    Rhythm run = rhythm(100, 5, 4, 1, true);
    run.change(2, of({1, 3}));
    EXPECT_EQ(run.lr_factor(), 1);
    run.scale_lr = 1;
    EXPECT_EQ(run.lr_factor(), 0.5);
}

}  // namespace
}  // namespace trainer::job
