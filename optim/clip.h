// GradientClipper: scales a gradient down to a largest norm.
#pragma once

#include <vector>

#include "engine/arena.h"
#include "engine/lanes.h"
#include "engine/slab_math.h"

namespace trainer {

/// Clips the global L2 norm as torch.nn.utils.clip_grad_norm_ does:
/// g <- g * min(1, max_norm / (norm + 1e-6)).
class GradientClipper {
  public:
    /// For gradients of `size` elements; max_norm 0 clips nothing.
    GradientClipper(double max_norm, int64_t size);

    bool active() const { return max_norm_ > 0; }

    /// Clips the "gradients" slab; called by every lane. The norm is summed in an order that does
    /// not depend on the number of lanes. Where `device` is there, it is the one that the slabs are
    /// at home on (Backend::slab_math), and does it. Returns the norm before clipping.
    double run(Lane& lane, const ParameterArena& arena, SlabMath* device = nullptr);

  private:
    template <typename T>
    double run_as(Lane& lane, const ParameterArena& arena);
    double run_on(SlabMath& device, const ParameterArena& arena) const;
    /// What to multiply a gradient of that norm with.
    double scale_of(double norm) const { return max_norm_ / (norm + 1e-6); }

    static constexpr int64_t chunk_ = 16384;
    double max_norm_;
    int64_t size_;
    std::vector<double> sums_;  // of squares, one a chunk
};

}  // namespace trainer
