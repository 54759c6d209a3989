// Local rule glu, global gradients for local update, of SSD-SGD (arXiv 2012.05396, section 3.3):
// U(B, g) = B - η (α g + β ĝ + λ B), with ĝ the servers' mean velocity between the last two pulls.
#include "engine/elementwise.h"
#include "optim/local_rule.h"

namespace trainer {

namespace {

class LocalGlu final : public LocalRule {
  public:
    LocalGlu(const LocalRuleOptions& options, const TensorTable& table)
        : LocalRule(options, table, true, false) {}

  protected:
    void update(const LocalSlabs& slabs, Part part, const float* base, bool, float lr,
                SlabMath* device) const override {
        const LocalGluUpdate next{lr, part.decay, static_cast<float>(options_.alpha),
                                  static_cast<float>(options_.beta)};
        if (const int64_t at = part.range.first; device != nullptr) {
            device->local(next, slabs.weights + at, base + at, slabs.gradients + at,
                          slabs.global_gradient + at, part.range.count);
            return;
        }
        for (int64_t i = part.range.first; i < part.range.end(); ++i)
            slabs.weights[i] = next(base[i], slabs.gradients[i], slabs.global_gradient[i]);
    }
};

}  // namespace

std::unique_ptr<LocalRule> make_local_glu(const LocalRuleOptions& options,
                                          const TensorTable& table) {
    return std::make_unique<LocalGlu>(options, table);
}

}  // namespace trainer
