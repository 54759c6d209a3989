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
    void update(const LocalSlabs& slabs, Part part, const float* base, bool pulled, float lr,
                SlabMath* device) const override {
        const float* before = pulled && options_.seeded ? slabs.global_gradient : slabs.momentum;
        const LocalMomentumUpdate next{lr, part.decay, static_cast<float>(options_.momentum)};
        if (const int64_t at = part.range.first; device != nullptr) {
            device->local(next, slabs.weights + at, base + at, slabs.gradients + at, before + at,
                          slabs.momentum + at, part.range.count);
            return;
        }
        for (int64_t i = part.range.first; i < part.range.end(); ++i)
            slabs.weights[i] = next(base[i], slabs.gradients[i], before[i], slabs.momentum[i]);
    }
};

}  // namespace

std::unique_ptr<LocalRule> make_local_momentum(const LocalRuleOptions& options,
                                               const TensorTable& table) {
    return std::make_unique<LocalMomentum>(options, table);
}

}  // namespace trainer
