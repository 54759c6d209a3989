// Optimizer: the base optimizers, one update of the weights from a gradient.
//
// An update is one fused pass over the slabs "weights", "momentum" and "gradients" of an arena, or
// over any range of them, such as a lane's part or a server's shard.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/arena.h"
#include "engine/slab_math.h"

namespace trainer {

struct OptimizerOptions {
    std::string name = "sgd";  ///< sgd | nesterov | lars
    double momentum = 0.9;
    double weight_decay = 0;
    /// false: tensors whose TensorInfo::decay is false (biases, batch norm) do not decay, and
    /// LARS gives them the global learning rate.
    bool decay_bn_bias = true;
    double trust = 0.001;               ///< eta of LARS
    std::vector<std::string> frozen{};  ///< tensors whose names start so are never changed
};

/// One base optimizer for the tensors of one table. Holds no state: that is the arena's.
class Optimizer {
  public:
    virtual ~Optimizer() = default;

    /// Slabs that an update needs besides "weights" and "gradients", zero at the start.
    std::vector<std::string> slabs() const { return {std::string(slab::momentum)}; }

    /// Updates the weights of `range` from the gradients there, on the calling thread. `arena`
    /// has the optimizer's table. Where `device` is there, it is the one that the slabs are at home
    /// on (Backend::slab_math), and the update runs there. Allocates nothing.
    /// REQUIRES: where whole_tensors(), `range` cuts no tensor.
    void update(const ParameterArena& arena, Range range, double lr,
                SlabMath* device = nullptr) const;

    /// Whether an update needs tensors whole (LARS: their norms).
    virtual bool whole_tensors() const = 0;

    /// Part `index` of `parts` of `range`, for one lane or server each: together they are `range`;
    /// cut between tensors where whole_tensors().
    Range part(Range range, int64_t index, int64_t parts) const;

  protected:
    /// A run of elements that are treated alike: the whole table, or a tensor, or some in a row.
    struct Segment {
        Range range;
        bool decay;
    };
    Optimizer(const OptimizerOptions& options, const TensorTable& table, bool by_tensor);

    virtual void update_segment(const ParameterArena& arena, Segment part, double lr,
                                SlabMath* device) const = 0;

    OptimizerOptions options_;

  private:
    std::vector<Segment> segments_;  // in order; frozen tensors are left out
    std::vector<int64_t> starts_;    // of every tensor, and the end of the table
};

/// Throws UsageError for a name that is none of the base optimizers'.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          const TensorTable& table);

}  // namespace trainer
