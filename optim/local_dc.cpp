// Local rule dc, delay compensated (arXiv 1609.08326, equation 5, in the form of OD-SGD, arXiv
// 2005.06728): U(B, g) = B - η (g + λ B + λ_dc g⊙g⊙(B - w)), with w the weights that g was taken
// at.
#include "engine/elementwise.h"
#include "optim/local_rule.h"

namespace trainer {

namespace {

class LocalDc final : public LocalRule {
  public:
    LocalDc(const LocalRuleOptions& options, const TensorTable& table)
        : LocalRule(options, table, false, false) {}

  protected:
    void update(const ParameterArena& arena, Part part, const float* base, bool,
                float lr) const override {
        float* weights = arena.slab<float>(slab::weights).data();
        const float* gradients = arena.slab<float>(slab::gradients).data();
        const LocalDcUpdate next{lr, part.decay, static_cast<float>(options_.lambda_dc)};
        for (int64_t i = part.range.first; i < part.range.end(); ++i)
            weights[i] = next(base[i], gradients[i], weights[i]);
    }
};

}  // namespace

std::unique_ptr<LocalRule> make_local_dc(const LocalRuleOptions& options,
                                         const TensorTable& table) {
    return std::make_unique<LocalDc>(options, table);
}

}  // namespace trainer
