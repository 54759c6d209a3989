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
    void update(const LocalSlabs& slabs, Part part, const float* base, bool, float lr,
                SlabMath* device) const override {
        const LocalSgdUpdate next{lr, part.decay};
        if (const int64_t at = part.range.first; device != nullptr) {
            device->local(next, slabs.weights + at, base + at, slabs.gradients + at,
                          part.range.count);
            return;
        }
        for (int64_t i = part.range.first; i < part.range.end(); ++i)
            slabs.weights[i] = next(base[i], slabs.gradients[i]);
    }
};

}  // namespace

std::unique_ptr<LocalRule> make_local_sgd(const LocalRuleOptions& options,
                                          const TensorTable& table) {
    return std::make_unique<LocalSgd>(options, table);
}

}  // namespace trainer
