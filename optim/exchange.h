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
#include "engine/device_exchange.h"
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

    /// All but the options outlive the exchange. `device`, of the arena, encodes and makes local
    /// steps where the gradients are computed; nullptr: this does. Throws UsageError for options
    /// that cannot be.
    Exchange(const ExchangeOptions& options, Link& link, const ParameterArena& arena,
             const Optimizer& optimizer, LaneTeam& lanes,
             std::shared_ptr<DeviceExchange> device = nullptr);

    /// Asks again for a pull that was pending.
    void start(const ExchangeState& state) override;
    ExchangeState state() const override { return state_; }

    /// Goes on with that later step, as if those between had been done by others (backup workers).
    /// REQUIRES: the schedule is synchronous.
    void skip_to(int64_t step) { state_.step = step; }

    bool range_leaves(Range range, float* gradients, float factor) override;
    /// Pushes the gradients where step state().step does.
    void range_done(Range range) override;
    void finish() override;
    void fetch_slabs() const override;

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
        std::optional<size_t> on_device;  // as DeviceExchange::prepare numbers it
    };
    // What leaves of a step's gradients.
    enum class Push { nothing, slab, exact, flushed, encoded };
    // Memory that one step's pushes leave from.
    struct Outbox {
        Memory memory;
        std::vector<Ticket> tickets;
    };

    Push push_of(const StepActions& actions) const;
    size_t prepared(Range range, Push push);
    LocalSlabs device_slabs() const;
    RangePlan& plan_of(Range range);
    void push_raw(Range range, std::string_view slab_name);
    void fill_outbox(Range range, bool flushes);
    void encode(Range range);
    void push_encoded(Range range);
    Outbox& outbox() { return outboxes_[static_cast<size_t>(state_.step) % outboxes_.size()]; }
    void clear(Outbox& box);
    void local_step(const StepActions& actions);
    void local_step_on_device();
    std::vector<std::string_view> device_slab_names() const;
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
    std::shared_ptr<DeviceExchange> device_;
    // Of whole ranges as floats, with the residual or without: as prepared.
    struct FloatPlan {
        Range range;
        bool flushes;
        size_t on_device;
    };
    std::vector<FloatPlan> float_plans_;
    float* device_gradients_ = nullptr;  // of this step, where the device has them
    bool weights_on_device_ = false;     // newer than the arena's
    std::optional<Ticket> pending_;
    ExchangeState state_;
    double waited_ = 0;
    double inflight_waited_ = 0;
    double lr_sum_ = 0;
    StepActions actions_;
    std::function<void(Lane&)> local_work_;  // made once: to make one allocates
};

}  // namespace trainer
