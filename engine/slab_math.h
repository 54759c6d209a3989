// SlabMath: elementwise arithmetic over slabs that are at home on a device, run there.
#pragma once

#include <cstdint>

#include "engine/elementwise.h"

namespace trainer {

/// Every function takes pointers into slabs of Backend::allocate_slabs or DeviceExchange, and lines
/// up work on `count` elements, in order; wait() waits for it. Called between steps. Throws Error
/// where the device fails.
class SlabMath {
  public:
    virtual ~SlabMath() = default;

    virtual void update(const MomentumUpdate<float>& update, float* weights, float* velocity,
                        const float* gradients, int64_t count) = 0;
    virtual void update(const NesterovUpdate<float>& update, float* weights, float* velocity,
                        const float* gradients, int64_t count) = 0;
    virtual void update(const LarsUpdate<float>& update, float* weights, float* velocity,
                        const float* gradients, int64_t count) = 0;

    /// Steps of local rules: from `base` with the gradients (taken at `weights`) to `weights`.
    virtual void local(const LocalSgdUpdate& update, float* weights, const float* base,
                       const float* gradients, int64_t count) = 0;
    virtual void local(const LocalDcUpdate& update, float* weights, const float* base,
                       const float* gradients, int64_t count) = 0;
    virtual void local(const LocalGluUpdate& update, float* weights, const float* base,
                       const float* gradients, const float* global, int64_t count) = 0;
    virtual void local(const LocalMomentumUpdate& update, float* weights, const float* base,
                       const float* gradients, const float* before, float* velocity,
                       int64_t count) = 0;
    virtual void local(const GlobalGradientUpdate& update, float* global, float* pulled,
                       const float* incoming, int64_t count) = 0;

    /// Of the squares in double, in an order that depends on `count` alone. Waits.
    virtual double sum_of_squares(const float* values, int64_t count) = 0;

    virtual void scale(float* values, float factor, int64_t count) = 0;

    /// Returns once all is done, and the processor may read and write the slabs.
    virtual void wait() = 0;
};

}  // namespace trainer
