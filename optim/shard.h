// Shard: one server's part of the model. Takes pushes, applies its rule when the gate opens, and
// says which pulls may be answered.
//
// Without threads or sockets: a server's loop hands it what arrives and sends what it returns, so
// that every rule can be followed step by step in a test. One file a rule: shard_average,
// shard_on_arrival.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/arena.h"
#include "optim/codec.h"
#include "optim/sgd.h"
#include "optim/step_schedule.h"

namespace trainer {

namespace slab {
/// Of dcasgd_a: the moving mean square of the gradients.
inline constexpr std::string_view mean_square = "mean_square";
}  // namespace slab

/// A range of one worker's push, still encoded. `owner` keeps the bytes where they are; it is let
/// go once they are used.
struct Push {
    Range range;
    CodecId codec = CodecId::raw;
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner{};
};

/// The answer to a pull of G(step). `weights` is the shard; it stays as it is until that worker's
/// push of step `step` + 1 arrives.
struct PullReply {
    int worker = 0;
    int64_t step = 0;
    std::span<const float> weights;
};

struct ShardOptions {
    enum class Rule {
        average,            ///< all N pushes of a step, then one update with their mean
        average_weights,    ///< the same, but the pushes are weights and their mean is the model
        on_arrival,         ///< one update a push, with that worker's gradient
        delay_compensated,  ///< DC-ASGD-c, arXiv 1609.08326
        delay_compensated_adaptive,  ///< DC-ASGD-a of the same paper
    } rule = Rule::average;
    int workers = 1;
    int backup = 0;  ///< average: a step closes with the first N - backup pushes
    std::shared_ptr<const Codec> codec{};  ///< of pushes that are not exact; those are raw
    StepSchedule schedule{StepScheduleOptions{}};
    /// on_arrival: a worker may be so many steps ahead of the slowest (SSP); nullopt: no gate.
    std::optional<int64_t> staleness{};
    double lambda = 0.04;                      ///< λ of delay_compensated
    double lambda0 = 2.0, m = 0.95;            ///< of delay_compensated_adaptive
    std::function<double(int64_t step)> lr{};  ///< η(t)
};

class Shard {
  public:
    virtual ~Shard() = default;

    /// Slabs that a shard of these options needs besides "weights", "gradients" and the
    /// optimizer's.
    static std::vector<std::string> slabs(const ShardOptions& options);

    /// `arena` holds the whole table and slabs(); only `range` of it is used. It and the optimizer
    /// outlive the shard. REQUIRES: where the optimizer needs whole tensors, a range of such.
    static std::unique_ptr<Shard> make(const ShardOptions& options, const Optimizer& optimizer,
                                       const ParameterArena& arena, Range range);

    /// Takes one range of `worker`'s push of global step `step`, a part of the shard's range; the
    /// parts of one push may come in any order, and each element comes once. Throws Error (a
    /// protocol error) for a worker, step, range or length that cannot be.
    virtual void push(int worker, int64_t step, Push push) = 0;

    /// Notes that `worker` asks for G(step).
    void pull(int worker, int64_t step);

    /// The pulls that may be answered now, each once. Called after every push and pull.
    std::vector<PullReply> replies();

    /// Global steps completed: averages, or N pushes applied.
    int64_t steps() const { return steps_; }
    /// Whether the model is G(step): all pushes of the steps before have been applied. Steps of
    /// which nothing is pushed (local ones) leave it as it is.
    bool completed(int64_t step) const;
    /// For a resume: the next push is of global step `step`. The slabs are the caller's to fill.
    virtual void resume_at(int64_t step);

    /// A worker is lost: steps are closed with those who are left, and with what it has pushed of
    /// them. Its pulls are forgotten.
    virtual void leave(int worker);
    /// Nobody waits for the answers to this worker's pulls any more.
    void forget_pulls(int worker);
    /// From global step `step` on, which all who push have reached, these workers (by rank) push.
    virtual void set_members(int64_t step, const std::vector<bool>& members);
    int members() const { return members_; }
    /// Pushes that came after their step was closed without them (backup).
    int64_t late_pushes() const { return late_; }
    /// Whether an answer's weights may change while it is sent, so that it takes a copy.
    bool answers_change() const { return options_.backup > 0; }

    /// on_arrival: sum over a worker's pushes of the updates that came between its pull and its
    /// push, the largest of them, and how many pushes that were.
    struct Staleness {
        int64_t sum = 0, pushes = 0, largest = 0;
    };
    const Staleness& staleness(int worker) const { return staleness_[static_cast<size_t>(worker)]; }
    /// The same of all workers together.
    Staleness staleness() const;

    Range range() const { return range_; }

  protected:
    Shard(const ShardOptions& options, const Optimizer& optimizer, const ParameterArena& arena,
          Range range);

    /// The weights to answer a pull with, or nullopt where it must wait.
    virtual std::optional<std::span<const float>> answer(int worker, int64_t step) = 0;

    /// Throws where a push cannot be.
    void check_push(int worker, int64_t step, const Push& push) const;
    /// The shard's part of a slab; element i of the table at [i - range().first].
    std::span<float> part(std::string_view slab_name) const;
    /// "gradients" <- factor · (the sum of what `pushes` say of their common range, in their
    /// order), block by block; calls `done(block)` while each is still in the cache.
    void sum_pushes(std::span<const Push> pushes, float factor,
                    const std::function<void(Range)>& done) const;

    ShardOptions options_;
    const Optimizer& optimizer_;
    const ParameterArena& arena_;
    Range range_;
    int64_t steps_ = 0;
    std::vector<Staleness> staleness_;  // by worker
    std::vector<bool> present_;         // by rank
    int members_;                       // of them
    int64_t late_ = 0;

  private:
    struct Waiting {
        int worker;
        int64_t step;
    };
    /// The segments of a range in a codec, worked out once.
    const std::vector<Segment>& segments(const Codec& codec, Range range) const;
    const Codec& codec_of(const Push& push) const;

    struct Layout {
        CodecId codec;
        Range range;
        std::vector<Segment> segments;
    };
    std::vector<Waiting> pulls_;
    std::unique_ptr<Codec> raw_;
    mutable std::vector<std::unique_ptr<Layout>> layouts_;
};

}  // namespace trainer
