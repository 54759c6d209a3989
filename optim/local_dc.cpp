// Local rule dc, delay compensated (arXiv 1609.08326, equation 5, in the form of OD-SGD, arXiv
// 2005.06728): U(B, g) = B - η (g + λ B + λ_dc g⊙g⊙(B - w)), with w the weights that g was taken
// at.
#include <cmath>

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
        const auto lambda = static_cast<float>(options_.lambda_dc);
        for (int64_t i = part.range.first; i < part.range.end(); ++i) {
            const float g = gradients[i], b = base[i];
            const float compensation = lambda * g * g * (b - weights[i]);
            weights[i] = std::fma(-lr, std::fma(part.decay, b, g) + compensation, b);
        }
    }
};

}  // namespace

std::unique_ptr<LocalRule> make_local_dc(const LocalRuleOptions& options,
                                         const TensorTable& table) {
    return std::make_unique<LocalDc>(options, table);
}

}  // namespace trainer
