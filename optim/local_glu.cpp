// Local rule glu, global gradients for local update, of SSD-SGD (arXiv 2012.05396, section 3.3):
// U(B, g) = B - η (α g + β ĝ + λ B), with ĝ the servers' mean velocity between the last two pulls.
#include <cmath>

#include "optim/local_rule.h"

namespace trainer {

namespace {

class LocalGlu final : public LocalRule {
  public:
    LocalGlu(const LocalRuleOptions& options, const TensorTable& table)
        : LocalRule(options, table, true, false) {}

  protected:
    void update(const ParameterArena& arena, Part part, const float* base, bool,
                float lr) const override {
        float* weights = arena.slab<float>(slab::weights).data();
        const float* gradients = arena.slab<float>(slab::gradients).data();
        const float* global = arena.slab<float>(slab::global_gradient).data();
        const auto alpha = static_cast<float>(options_.alpha),
                   beta = static_cast<float>(options_.beta);
        for (int64_t i = part.range.first; i < part.range.end(); ++i) {
            const float direction =
                std::fma(alpha, gradients[i], std::fma(beta, global[i], part.decay * base[i]));
            weights[i] = std::fma(-lr, direction, base[i]);
        }
    }
};

}  // namespace

std::unique_ptr<LocalRule> make_local_glu(const LocalRuleOptions& options,
                                          const TensorTable& table) {
    return std::make_unique<LocalGlu>(options, table);
}

}  // namespace trainer
