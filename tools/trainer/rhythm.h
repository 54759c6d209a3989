// Rhythm: which global step is where in which epoch, what is done at it, and who takes part.
//
// A worker takes batches of one size; so where the members change, the samples that a step takes
// do, and what is left of the epoch makes more steps, or fewer. A Rhythm describes the run from the
// last such change on, by arithmetic alone, and goes over the wire as it is: server 0's decides for
// all.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainer::job {

/// Ranks, as many as a run can have.
class Members {
  public:
    static Members all(int workers) {
        Members members;
        for (int rank = 0; rank < workers; ++rank)
            members.add(rank);
        return members;
    }

    bool has(int rank) const { return (words_[word(rank)] >> (rank % 64) & 1) != 0; }
    void add(int rank) { words_[word(rank)] |= uint64_t{1} << (rank % 64); }
    void remove(int rank) { words_[word(rank)] &= ~(uint64_t{1} << (rank % 64)); }
    int count() const { return below(most); }
    bool empty() const { return count() == 0; }
    /// Members of lower rank: a member's place among them.
    int below(int rank) const {
        int count = 0;
        for (size_t i = 0; i < word(rank); ++i)
            count += std::popcount(words_[i]);
        if (rank % 64 != 0)
            count += std::popcount(words_[word(rank)] & ((uint64_t{1} << (rank % 64)) - 1));
        return count;
    }
    std::vector<int> ranks() const {
        std::vector<int> ranks;
        for (int rank = 0; rank < most; ++rank)
            if (has(rank))
                ranks.push_back(rank);
        return ranks;
    }
    bool operator==(const Members&) const = default;

  private:
    static constexpr int most = 4096;
    static size_t word(int rank) { return static_cast<size_t>(rank) / 64; }
    std::array<uint64_t, most / 64> words_{};
};

/// Where in the data a step begins.
struct Place {
    int64_t epoch = 0;          ///< from 0
    int64_t position = 0;       ///< samples of the epoch's order that were used before
    int64_t step_in_epoch = 0;  ///< counted from the last change of members, where that is later
    bool operator==(const Place&) const = default;
};

struct Rhythm {
    // The run, the same from start to end.
    int64_t samples = 1;  ///< training images
    int64_t batch = 1;    ///< of one worker
    int64_t drop_last = 1;
    int64_t workers = 1;  ///< that the config says; schedules are in steps of so many
    int64_t epochs = 1, max_steps = 0;
    int64_t eval_every_epochs = 1;
    int64_t checkpoint_every_epochs = 1, checkpoint_every_steps = 0;
    int64_t log_every_steps = 50;
    int64_t scale_lr = 0;  ///< distributed.scale_lr_on_loss

    // Since the last change of members.
    int64_t first_step = 0;
    int64_t first_epoch = 0, first_position = 0;  ///< at most an epoch's samples
    Members members{};

    /// From `step` on others take part.
    void change(int64_t step, const Members& next);

    /// Of a step from first_step on.
    Place place(int64_t step) const;
    /// Samples of all members at that step, and those of the member `rank`.
    int64_t samples_of(int64_t step) const;
    int64_t samples_of(int64_t step, int rank) const;

    int64_t total_steps() const;
    bool is_last(int64_t step) const { return step >= total_steps(); }
    /// Whether step `step`, once done, ends an epoch whose number, from 1, `epochs` divides.
    bool ends_epochs(int64_t step, int64_t every) const;
    bool evaluates(int64_t step) const {
        return is_last(step) || ends_epochs(step, eval_every_epochs);
    }
    /// A checkpoint whatever the score.
    bool saves(int64_t step) const {
        return is_last(step) || ends_epochs(step, checkpoint_every_epochs) ||
               (checkpoint_every_steps > 0 && step % checkpoint_every_steps == 0);
    }
    /// One if the score is the best so far.
    bool saves_best(int64_t step) const {
        return evaluates(step) && (checkpoint_every_epochs > 0 || checkpoint_every_steps > 0);
    }
    bool has_boundary(int64_t step) const { return evaluates(step) || saves(step); }
    bool logs_window(int64_t step) const { return step % log_every_steps == 0; }
    /// Where the time went; to the last step too, however short the run.
    bool logs_comm(int64_t step) const { return logs_window(step) || is_last(step); }
    bool logs_epoch(int64_t step) const { return is_last(step) || ends_epochs(step, 1); }

    /// The step of an undisturbed run that has seen as much: schedules go by it.
    int64_t schedule_step(int64_t step) const;
    /// What the learning rate is multiplied with.
    double lr_factor() const {
        return scale_lr == 0 ? 1
                             : static_cast<double>(members.count()) / static_cast<double>(workers);
    }
    /// Steps of a whole epoch, of those who take part now.
    int64_t steps_per_epoch() const { return steps_in(samples, members.count()); }

  private:
    int64_t steps_in(int64_t left, int64_t count) const;
    int64_t first_steps() const { return steps_in(samples - first_position, members.count()); }
};

}  // namespace trainer::job
