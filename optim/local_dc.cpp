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
    void update(const LocalSlabs& slabs, Part part, const float* base, bool, float lr,
                SlabMath* device) const override {
        const LocalDcUpdate next{lr, part.decay, static_cast<float>(options_.lambda_dc)};
        if (const int64_t at = part.range.first; device != nullptr) {
            device->local(next, slabs.weights + at, base + at, slabs.gradients + at,
                          part.range.count);
            return;
        }
        for (int64_t i = part.range.first; i < part.range.end(); ++i)
            slabs.weights[i] = next(base[i], slabs.gradients[i], slabs.weights[i]);
    }
};

}  // namespace

std::unique_ptr<LocalRule> make_local_dc(const LocalRuleOptions& options,
                                         const TensorTable& table) {
    return std::make_unique<LocalDc>(options, table);
}

}  // namespace trainer
