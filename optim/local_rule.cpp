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
void take_global_gradient(const LocalSlabs& slabs, Range range, double lr_sum, SlabMath* device) {
    const GlobalGradientUpdate take{static_cast<float>(lr_sum > 0 ? 1 / lr_sum : 0)};
    if (device != nullptr) {
        device->local(take, slabs.global_gradient + range.first, slabs.pulled + range.first,
                      slabs.incoming + range.first, range.count);
        return;
    }
    for (int64_t i = range.first; i < range.end(); ++i)
        take(slabs.global_gradient[i], slabs.pulled[i], slabs.incoming[i]);
}

}  // namespace

LocalSlabs LocalSlabs::of(const ParameterArena& arena) {
    const auto find = [&](std::string_view name) {
        return arena.has_slab(name) ? arena.slab<float>(name).data() : nullptr;
    };
    return {find(slab::weights), find(slab::gradients),       find(slab::incoming),
            find(slab::pulled),  find(slab::global_gradient), find(slab::local_momentum)};
}

void LocalRule::step(const LocalSlabs& slabs, Range range, bool pulled, double lr, double lr_sum,
                     SlabMath* device) const {
    if (pulled && uses_global_gradient_)
        take_global_gradient(slabs, range, lr_sum, device);
    const float* base = pulled ? slabs.incoming : slabs.weights;
    for (const Part& whole : parts_) {
        const int64_t first = std::max(whole.range.first, range.first);
        const int64_t end = std::min(whole.range.end(), range.end());
        if (first < end)
            update(slabs, {{first, end - first}, whole.decay}, base, pulled, static_cast<float>(lr),
                   device);
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
