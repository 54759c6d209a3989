// LocalRule: how a worker makes its next weights from its base and its own gradient,
// w(t+1) = U(B, g), while the servers' model is on its way.
//
// The base B is the servers' model just pulled, or the worker's own weights. A rule may keep slabs
// of its own in the worker's arena; they are part of a checkpoint. One file a rule: local_sgd,
// local_dc, local_glu, local_momentum.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/arena.h"
#include "engine/slab_math.h"

namespace trainer {

namespace slab {
/// Where a pull arrives; the base of the step that takes it.
inline constexpr std::string_view incoming = "incoming";
/// P_new: the last model pulled.
inline constexpr std::string_view pulled = "pulled";
/// ĝ = (P_old - P_new) / Ση: the servers' mean velocity between the last two pulls.
inline constexpr std::string_view global_gradient = "global_gradient";
/// u_i: the momentum of a worker's own steps.
inline constexpr std::string_view local_momentum = "local_momentum";
}  // namespace slab

struct LocalRuleOptions {
    std::string rule = "auto";  ///< sgd | dc | glu | momentum; a variant resolves auto
    double weight_decay = 0;    ///< λ
    bool decay_bn_bias = true;
    double alpha = 2.0;                 ///< glu: weight of the worker's gradient
    double beta = 0.5;                  ///< glu: weight of ĝ
    double lambda_dc = 0.04;            ///< dc
    double momentum = 0.9;              ///< momentum: μ
    bool seeded = false;                ///< momentum: u := ĝ where a pull is adopted
    std::vector<std::string> frozen{};  ///< tensors whose names start so are never changed
};

/// The slabs that a rule works on, of an arena or as a device has them; nullptr where there is
/// none.
struct LocalSlabs {
    float* weights = nullptr;
    const float* gradients = nullptr;
    const float* incoming = nullptr;
    float* pulled = nullptr;
    float* global_gradient = nullptr;
    float* momentum = nullptr;

    static LocalSlabs of(const ParameterArena& arena);
};

class LocalRule {
  public:
    virtual ~LocalRule() = default;

    /// Slabs that the rule needs besides "weights", "gradients" and "incoming"; zero at first.
    std::vector<std::string> slabs() const;

    /// At t = T_w, when "weights" holds G(T_w): that model counts as the first pull, ĝ = 0, u = 0.
    void start(const ParameterArena& arena) const;

    /// One local step on a range: weights <- U(B, gradients), with B = "incoming" where `pulled`,
    /// else "weights". `lr` is η_loc. `lr_sum` is the sum of the servers' rates over the steps
    /// between the last two pulls (only read where `pulled`).
    void step(const ParameterArena& arena, Range range, bool pulled, double lr,
              double lr_sum) const {
        step(LocalSlabs::of(arena), range, pulled, lr, lr_sum, nullptr);
    }
    /// The same on slabs that are at home on a device, by its arithmetic: lined up there.
    void step(const LocalSlabs& slabs, Range range, bool pulled, double lr, double lr_sum,
              SlabMath* device) const;

  protected:
    LocalRule(const LocalRuleOptions& options, const TensorTable& table, bool uses_global_gradient,
              bool uses_momentum);

    /// A run of elements with the same weight decay.
    struct Part {
        Range range;
        float decay;
    };
    virtual void update(const LocalSlabs& slabs, Part part, const float* base, bool pulled,
                        float lr, SlabMath* device) const = 0;

    LocalRuleOptions options_;

  private:
    bool uses_global_gradient_;
    bool uses_momentum_;
    std::vector<Part> parts_;
};

std::unique_ptr<LocalRule> make_local_sgd(const LocalRuleOptions&, const TensorTable&);
std::unique_ptr<LocalRule> make_local_dc(const LocalRuleOptions&, const TensorTable&);
std::unique_ptr<LocalRule> make_local_glu(const LocalRuleOptions&, const TensorTable&);
std::unique_ptr<LocalRule> make_local_momentum(const LocalRuleOptions&, const TensorTable&);

/// The rule of that name; throws UsageError where there is none.
std::unique_ptr<LocalRule> make_local_rule(const LocalRuleOptions& options,
                                           const TensorTable& table);

}  // namespace trainer
