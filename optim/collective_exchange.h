// CollectiveExchange: S-SGD and Local SGD (arXiv 1805.09767) among workers alone, each of which
// does what servers would do: the same bits, where the Collective sums in the order of ranks.
//
// Each worker has the whole model and the base optimizer's slabs. S-SGD sums gradients, range by
// range while backward goes on; Local SGD sums weights every H steps.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/backend.h"
#include "engine/collective.h"
#include "optim/exchange.h"
#include "optim/next_weights.h"

namespace trainer {

namespace slab {
/// Of Local SGD: the model that all have, which the next local steps have not changed.
inline constexpr std::string_view common = "common";
}  // namespace slab

class CollectiveExchange final : public NextWeights {
  public:
    /// Slabs that it needs in a worker's arena besides "weights" and "gradients".
    static std::vector<std::string> slabs(const ExchangeOptions& options,
                                          const Optimizer& optimizer);

    /// All but the options outlive the exchange; of those it takes the schedule, synchronous or
    /// local, and the learning rate. The arena is at home on the backend's device.
    CollectiveExchange(const ExchangeOptions& options, Collective& collective,
                       const ParameterArena& arena, const Optimizer& optimizer, Backend& backend);

    void start(const ExchangeState& state) override { state_ = state; }
    ExchangeState state() const override { return state_; }
    void range_done(Range range) override;
    void finish() override;

    /// The slab of G(state().step), the model that all have.
    std::string_view model() const;

    /// Lets all know, with the next sums, that this worker wants the run to stop.
    void wish_to_stop() { wish_ = 1; }
    /// Whether the last sums have told so of anyone; all learn it at the same step.
    bool stop_is_agreed() const { return agreed_; }

  private:
    bool is_local(const StepActions& actions) const;
    void sum(Range range, std::string_view slab_name);
    void average(std::string_view slab_name);
    void update();
    void keep_model() const;
    void begin_local_steps() const;

    ExchangeOptions options_;
    Collective& collective_;
    const ParameterArena& arena_;
    const Optimizer& optimizer_;
    Backend& backend_;
    ExchangeState state_;
    float* wishes() const { return reinterpret_cast<float*>(wishes_.data.get()); }

    float wish_ = 0;      // of this worker
    Memory wishes_;       // one float: of all, once they are summed
    bool asked_ = false;  // in this step
    bool agreed_ = false;
    std::string_view averaged_;
    std::function<void(Lane&)> update_work_, average_work_;  // made once: to make one allocates
};

}  // namespace trainer
