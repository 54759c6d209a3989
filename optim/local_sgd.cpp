// Local rule sgd, of OD-SGD (arXiv 2005.06728): U(B, g) = B - η (g + λ B).
#include "engine/elementwise.h"
#include "optim/local_rule.h"

namespace trainer {

namespace {

class LocalSgd final : public LocalRule {
  public:
    LocalSgd(const LocalRuleOptions& options, const TensorTable& table)
        : LocalRule(options, table, false, false) {}

  protected:
    void update(const ParameterArena& arena, Part part, const float* base, bool,
                float lr) const override {
        float* weights = arena.slab<float>(slab::weights).data();
        const float* gradients = arena.slab<float>(slab::gradients).data();
        const LocalSgdUpdate next{lr, part.decay};
        for (int64_t i = part.range.first; i < part.range.end(); ++i)
            weights[i] = next(base[i], gradients[i]);
    }
};

}  // namespace

std::unique_ptr<LocalRule> make_local_sgd(const LocalRuleOptions& options,
                                          const TensorTable& table) {
    return std::make_unique<LocalSgd>(options, table);
}

}  // namespace trainer
