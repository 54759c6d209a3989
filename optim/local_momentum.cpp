// Local rule momentum (this project's own): u <- μ u + g + λ B; U(B, g) = B - η u, with u the
// worker's own, kept across pulls; seeded: u := ĝ first, where a pull is adopted.
#include "engine/elementwise.h"
#include "optim/local_rule.h"

namespace trainer {

namespace {

class LocalMomentum final : public LocalRule {
  public:
    LocalMomentum(const LocalRuleOptions& options, const TensorTable& table)
        : LocalRule(options, table, options.seeded, true) {}

  protected:
    void update(const ParameterArena& arena, Part part, const float* base, bool pulled,
                float lr) const override {
        float* weights = arena.slab<float>(slab::weights).data();
        const float* gradients = arena.slab<float>(slab::gradients).data();
        float* velocity = arena.slab<float>(slab::local_momentum).data();
        const float* before =
            pulled && options_.seeded ? arena.slab<float>(slab::global_gradient).data() : velocity;
        const LocalMomentumUpdate next{lr, part.decay, static_cast<float>(options_.momentum)};
        for (int64_t i = part.range.first; i < part.range.end(); ++i)
            weights[i] = next(base[i], gradients[i], before[i], velocity[i]);
    }
};

}  // namespace

std::unique_ptr<LocalRule> make_local_momentum(const LocalRuleOptions& options,
                                               const TensorTable& table) {
    return std::make_unique<LocalMomentum>(options, table);
}

}  // namespace trainer
