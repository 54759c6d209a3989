// NextWeights: what a worker of many does with its gradients, and what makes its next weights.
//
// A step calls range_done for each range whose gradients are final, while backward goes on, and
// then finish, which leaves the weights of the next step in "weights". Exchange does it with
// servers, CollectiveExchange among the workers alone.
#pragma once

#include <cstdint>

#include "engine/dtype.h"

namespace trainer {

/// What a worker must keep, besides the slabs, to go on after `step` steps.
struct ExchangeState {
    int64_t step = 0;           ///< steps completed
    int64_t pulled_step = 0;    ///< of P_new: the last model pulled
    bool pull_pending = false;  ///< G(step) has been asked for and not yet taken
    bool operator==(const ExchangeState&) const = default;
};

class NextWeights {
  public:
    virtual ~NextWeights() = default;

    /// Goes on as a worker in that state; the slabs are the caller's to fill before ("weights":
    /// w_i(step)).
    virtual void start(const ExchangeState& state) = 0;
    virtual ExchangeState state() const = 0;

    /// Takes gradients of `range` that have been lined up on the device, times `factor`, from its
    /// slab `gradients`; nullptr: zeros. False where they have to come to the arena's. Either way
    /// range_done() is called once they are there, or may be waited for.
    virtual bool range_leaves(Range /*range*/, float* /*gradients*/, float /*factor*/) {
        return false;
    }

    /// Gradients of `range` (whole tensors) are final.
    virtual void range_done(Range range) = 0;

    /// Ends step state().step: waits for what it must, and makes the next weights.
    virtual void finish() = 0;

    /// Brings slabs home that a device has newer: to be called before the arena's are read.
    virtual void fetch_slabs() const {}
};

}  // namespace trainer
