#include "optim/local_rule.h"

#include <algorithm>

namespace trainer {

LocalRule::LocalRule(const LocalRuleOptions& options, const TensorTable& table,
                     bool uses_global_gradient, bool uses_momentum)
    : options_(options),
      uses_global_gradient_(uses_global_gradient),
      uses_momentum_(uses_momentum) {
    for (const TensorInfo& tensor : table.tensors()) {
        if (std::ranges::any_of(options.frozen, [&](const std::string& beginning) {
                return tensor.name.starts_with(beginning);
            }))
            continue;
        const bool decays = tensor.decay || options.decay_bn_bias;
        const auto decay = static_cast<float>(decays ? options.weight_decay : 0);
        if (!parts_.empty() && parts_.back().decay == decay &&
            parts_.back().range.end() == tensor.offset)
            parts_.back().range.count += tensor.size();
        else
            parts_.push_back({tensor.range(), decay});
    }
}

std::vector<std::string> LocalRule::slabs() const {
    std::vector<std::string> result;
    if (uses_global_gradient_) {
        result.emplace_back(slab::pulled);
        result.emplace_back(slab::global_gradient);
    }
    if (uses_momentum_)
        result.emplace_back(slab::local_momentum);
    return result;
}

void LocalRule::start(const ParameterArena& arena) const {
    const auto weights = arena.slab<float>(slab::weights);
    if (uses_global_gradient_) {
        std::copy(weights.begin(), weights.end(), arena.slab<float>(slab::pulled).begin());
        std::ranges::fill(arena.slab<float>(slab::global_gradient), 0.0F);
    }
    if (uses_momentum_)
        std::ranges::fill(arena.slab<float>(slab::local_momentum), 0.0F);
}

namespace {

// ĝ <- (P_old - P_new) / Ση; P <- P_new.
void take_global_gradient(const ParameterArena& arena, Range range, double lr_sum) {
    const float* incoming = arena.slab<float>(slab::incoming).data();
    float* pulled = arena.slab<float>(slab::pulled).data();
    float* global = arena.slab<float>(slab::global_gradient).data();
    const auto factor = static_cast<float>(lr_sum > 0 ? 1 / lr_sum : 0);
    for (int64_t i = range.first; i < range.end(); ++i) {
        global[i] = (pulled[i] - incoming[i]) * factor;
        pulled[i] = incoming[i];
    }
}

}  // namespace

void LocalRule::step(const ParameterArena& arena, Range range, bool pulled, double lr,
                     double lr_sum) const {
    if (pulled && uses_global_gradient_)
        take_global_gradient(arena, range, lr_sum);
    const float* base = arena.slab<float>(pulled ? slab::incoming : slab::weights).data();
    for (const Part& whole : parts_) {
        const int64_t first = std::max(whole.range.first, range.first);
        const int64_t end = std::min(whole.range.end(), range.end());
        if (first < end)
            update(arena, {{first, end - first}, whole.decay}, base, pulled,
                   static_cast<float>(lr));
    }
}

std::unique_ptr<LocalRule> make_local_rule(const LocalRuleOptions& options,
                                           const TensorTable& table) {
    if (options.rule == "sgd")
        return make_local_sgd(options, table);
    if (options.rule == "dc")
        return make_local_dc(options, table);
    if (options.rule == "glu")
        return make_local_glu(options, table);
    if (options.rule == "momentum")
        return make_local_momentum(options, table);
    throw UsageError("distributed.local.rule: " + options.rule +
                     " is no local rule; take sgd, dc, glu or momentum");
}

}  // namespace trainer
