// Exchange: a worker's part of the protocol between gradients and next weights, for every variant
// with servers. What is pushed, pulled and waited for when is the StepSchedule's; the arithmetic is
// the LocalRule's, the codec's and, for Local SGD, the base optimizer's.
//
// No memory is shared between steps that overlap: where a push is not waited for, it leaves from
// one of max_inflight outboxes, which is used again only once it has been handed over.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/link.h"
#include "engine/arena.h"
#include "engine/lanes.h"
#include "optim/codec.h"
#include "optim/local_rule.h"
#include "optim/next_weights.h"
#include "optim/sgd.h"
#include "optim/step_schedule.h"

namespace trainer {

namespace slab {
/// e of the error feedback.
inline constexpr std::string_view residual = "residual";
}  // namespace slab

struct ExchangeOptions {
    StepSchedule schedule{StepScheduleOptions{}};
    std::shared_ptr<const Codec> codec{};     ///< of pushes that are not exact; nullptr: raw
    bool flush_on_exact = false;              ///< an exact push sends g + e and clears e
    int max_inflight = 2;                     ///< steps whose pushes may be under way
    std::function<double(int64_t)> lr{};      ///< η(t) of the servers
    std::optional<double> local_lr{};         ///< η_loc; nullopt: η(t)
    std::optional<LocalRuleOptions> local{};  ///< of the delayed kind
};

class Exchange final : public NextWeights {
  public:
    /// Slabs that it needs in a worker's arena besides "weights" and "gradients".
    static std::vector<std::string> slabs(const ExchangeOptions& options, const TensorTable& table,
                                          const Optimizer& optimizer);

    /// All but the options outlive the exchange. Throws UsageError for options that cannot be.
    Exchange(const ExchangeOptions& options, Link& link, const ParameterArena& arena,
             const Optimizer& optimizer, LaneTeam& lanes);

    /// Asks again for a pull that was pending.
    void start(const ExchangeState& state) override;
    ExchangeState state() const override { return state_; }

    /// Goes on with that later step, as if those between had been done by others (backup workers).
    /// REQUIRES: the schedule is synchronous.
    void skip_to(int64_t step) { state_.step = step; }

    /// Pushes the gradients where step state().step does.
    void range_done(Range range) override;
    void finish() override;

    /// Time that the last finish() was blocked, in seconds, and in total because max_inflight was
    /// reached.
    double waited() const { return waited_; }
    double inflight_waited() const { return inflight_waited_; }

  private:
    // A part of a range for one server, encoded at an offset of an outbox.
    struct Part {
        Piece piece;
        std::vector<Segment> segments;
        size_t offset = 0;
        size_t bytes = 0;
    };
    struct RangePlan {
        Range range;
        std::vector<Part> parts;
    };
    // Memory that one step's pushes leave from.
    struct Outbox {
        Memory memory;
        std::vector<Ticket> tickets;
    };

    const RangePlan& plan_of(Range range);
    void push_raw(Range range, std::string_view slab_name);
    void push_exact_late(Range range);
    void push_encoded(Range range);
    Outbox& outbox() { return outboxes_[static_cast<size_t>(state_.step) % outboxes_.size()]; }
    void clear(Outbox& box);
    void local_step(const StepActions& actions);
    void timed_wait(const Ticket& ticket, double& total);

    ExchangeOptions options_;
    Link& link_;
    const ParameterArena& arena_;
    const Optimizer& optimizer_;
    LaneTeam& lanes_;
    std::unique_ptr<LocalRule> rule_;
    std::optional<ErrorFeedback> feedback_;
    std::vector<Outbox> outboxes_;
    std::vector<Ticket> direct_;  // pushes of this step that leave from a slab itself
    std::vector<RangePlan> plans_;
    std::optional<Ticket> pending_;
    ExchangeState state_;
    double waited_ = 0;
    double inflight_waited_ = 0;
    double lr_sum_ = 0;
    StepActions actions_;
    std::function<void(Lane&)> local_work_;  // made once: to make one allocates
};

}  // namespace trainer
