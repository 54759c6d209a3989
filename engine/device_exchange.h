// DeviceExchange: what a worker of a cluster does with gradients and weights between steps, on the
// device that computes them, so that only what travels leaves it.
//
// Slabs that only the worker uses (the residual of the error feedback, a local rule's) live on the
// device while it works; fetch() brings them home for a checkpoint.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/arena.h"
#include "engine/slab_math.h"

namespace trainer {

/// The codes of optim/codec.h that devices make.
enum class DeviceCode { floats, fp16, bf16, two_bit };

/// What of a range of gradients leaves, and how. Codes are those of ErrorFeedback, bit for bit.
struct CodedRange {
    /// Elements that share a scale: a tensor's or a server's part; and where their codes start in
    /// the outbox, of two_bit behind 4 bytes for the scale.
    struct Segment {
        Range range;
        int tensor = -1;  ///< whose scale it is, where the threshold is measured
        size_t codes_at = 0;
    };
    Range range;
    DeviceCode code = DeviceCode::floats;
    /// Of two_bit; nullopt: measured on each tensor, all of which the range holds whole.
    std::optional<float> threshold{};
    /// The slab of the error feedback; empty: none. Floats take all of it along, and clear it.
    std::string_view residual{};
    std::vector<Segment> segments{};
    /// Of the outbox, holding the codes of all segments.
    size_t first_byte = 0, bytes = 0;
};

/// Used by one thread at a time. Throws Error where the device fails.
class DeviceExchange {
  public:
    virtual ~DeviceExchange() = default;

    /// Makes ready for pushes of such a range; returns a number for them.
    virtual size_t prepare(const CodedRange& coded) = 0;

    /// Lines up, behind what has been lined up to compute `gradients` (the device's slab of them):
    /// the gradients of the range times `factor`, which stay so; their codes; and the codes' way to
    /// `outbox`, memory of allocate_outbox(). await() waits until they are there.
    virtual void push(size_t prepared, float* gradients, float factor, std::byte* outbox) = 0;
    virtual void await(size_t prepared) = 0;

    /// Zeroed memory of the host that the device copies to fast.
    virtual Memory allocate_outbox(size_t bytes) = 0;

    /// Where the device has a slab of the arena; "incoming" is the host's own, which it reads
    /// there.
    virtual float* slab(std::string_view name) = 0;
    /// A slab of gradients that are zero.
    virtual float* zeros() = 0;
    /// Copies a slab to the device, or back to the arena. Both wait.
    virtual void send(std::string_view name) = 0;
    virtual void fetch(std::string_view name) = 0;

    /// Whose weights the next step takes: the device's own, or (at first) the arena's.
    virtual void keep_weights(bool device) = 0;

    /// Works on slabs of the device.
    virtual SlabMath& math() = 0;
};

}  // namespace trainer
