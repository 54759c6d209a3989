// Collective: sums over a group of equals, each of which has a slab of its own.
//
// comm/mesh.h has one over any transport, engine/cuda one by NCCL. All members of a group begin the
// same sums in the same order. An Error, from whichever call, is the end of the group: the others
// get one too, within the timeout at the latest.
#pragma once

#include <cstdint>
#include <string>

#include "engine/dtype.h"

namespace trainer {

/// What has gone over the wire of one member, payloads, and the time that wait() has blocked.
struct CollectiveCounters {
    int64_t sent_bytes = 0;
    int64_t received_bytes = 0;
    double travel_s = 0;  ///< time during which any sum was under way
    double wait_s = 0;
};

/// Used by one thread at a time.
class Collective {
  public:
    virtual ~Collective() = default;

    virtual int rank() const = 0;
    virtual int size() const = 0;

    /// Begins to put the sum over all members in the place of `range` of the slab that begins at
    /// `slab`, which stays untouched until wait(): element by element, the same bits everywhere.
    /// Unless said otherwise it is taken in the order of ranks.
    virtual void sum(float* slab, Range range) = 0;

    /// Returns when all sums that were begun are there.
    virtual void wait() = 0;

    /// Takes leave of the others, who all do so. Nothing else is called any more.
    virtual void close() = 0;

    /// Ends the group, and lets the others know why.
    virtual void abort(const std::string& why) = 0;

    virtual CollectiveCounters counters() const = 0;
};

}  // namespace trainer
