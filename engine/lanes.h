// Lanes: the computing threads of one worker, each with its own contiguous slice of the batch.
//
// All lanes run the same program over their slices, and meet at barriers where a result depends on
// the whole batch (batch statistics, the sum of gradients). Sums over lanes are taken in lane
// order, so that a run gives the same bits every time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "engine/dtype.h"

namespace trainer {

class LaneTeam;

/// One thread's place in a LaneTeam, handed to the work it runs.
class Lane {
  public:
    Lane(LaneTeam& team, int index, int count) : team_(&team), index_(index), count_(count) {}

    int index() const { return index_; }
    int count() const { return count_; }

    /// Returns once every lane has called it; what they wrote before is then visible to all.
    void barrier();

    /// This lane's contiguous part of `count` things (samples, channels, elements).
    Range part(int64_t count) const { return part_of(count, index_, count_); }

  private:
    LaneTeam* team_;
    int index_;
    int count_;
};

/// A fixed team of threads that run the same function together. The calling thread is lane 0.
/// Waits spin for a few microseconds, then sleep, so that a busy machine is not burnt idle.
class LaneTeam {
  public:
    /// `count` >= 1 lanes. With `pin`, lane i is bound to the i-th processor that this process may
    /// use; the caller's own affinity is left alone when count is 1.
    explicit LaneTeam(int count, bool pin = true);
    /// Lets the caller's thread run where it could before, where it is the one that made the team.
    ~LaneTeam();
    LaneTeam(const LaneTeam&) = delete;
    LaneTeam& operator=(const LaneTeam&) = delete;

    int count() const { return count_; }

    /// Runs `work` on every lane and returns when all have returned. An exception of any lane is
    /// rethrown here, once all lanes are idle again; work that throws must do so on every lane or
    /// outside barriers. Allocates nothing. Called from one thread at a time.
    void run(const std::function<void(Lane&)>& work);

  private:
    friend class Lane;
    struct State;
    void barrier();

    int count_;
    std::unique_ptr<State> state_;
};

}  // namespace trainer
