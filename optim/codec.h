// Codecs: how a range of a float vector (a gradient, a delta) travels, and error feedback.
//
// A range is encoded as one segment after another. A segment is a run of elements that share one
// scale: the part of a parameter tensor that lies in the range for a codec that measures tensors,
// else the whole range. On the wire: the scale as f32 where the codec has one, then the codes.
// Source of the 2-bit code and its feedback: BIT-SGD, as in CD-SGD (doi 10.1145/3472456.3472508),
// section 3; error feedback in general: arXiv 1901.09847.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/arena.h"

namespace trainer {

/// The number of a codec on the wire.
enum class CodecId : uint16_t { raw = 0, fp16 = 1, bf16 = 2, two_bit = 3 };

/// Encodes and decodes one segment. Stateless: safe to share between threads.
class Codec {
  public:
    virtual ~Codec() = default;

    virtual CodecId id() const = 0;
    virtual std::string name() const = 0;

    /// Whether what is decoded equals what was encoded: no feedback is needed.
    virtual bool lossless() const { return false; }
    /// Whether a segment carries a scale.
    virtual bool has_scale() const { return false; }
    /// Whether the scale is measured on each tensor (else it is fixed, and one for the range).
    virtual bool measures() const { return false; }

    /// The scale of a whole tensor, or of a vector where the codec does not measure; 0 without one.
    virtual float scale(std::span<const float> /*tensor*/) const { return 0; }

    /// Bytes of the codes of `count` elements, the scale not included.
    virtual size_t code_bytes(int64_t count) const = 0;
    /// How many elements end on a byte boundary together, so that a segment can be worked on in
    /// runs of a multiple of it.
    virtual int64_t granule() const { return 1; }

    /// Writes code_bytes(values.size()) bytes.
    virtual void encode(std::span<const float> values, float scale, std::byte* codes) const = 0;

    /// sum[i] += sign · decoded[i]; sign is 1 or -1.
    virtual void add_decoded(const std::byte* codes, float scale, float sign,
                             std::span<float> sum) const = 0;

    /// e <- e + g; codes = encode(e); e <- e - decode(codes): a run of error feedback. Where a
    /// codec does it in one pass, with the same result bit for bit.
    virtual void encode_with_feedback(std::span<const float> gradients, std::span<float> residual,
                                      float scale, std::byte* codes) const;
};

std::unique_ptr<Codec> make_raw_codec();
/// IEEE half precision, rounded to nearest even; what is too large becomes an infinity.
std::unique_ptr<Codec> make_fp16_codec();
std::unique_ptr<Codec> make_bf16_codec();
/// Sends ±threshold or 0 (1/16 of the bytes): 16 values in a little-endian 32-bit word, value j in
/// bits 2j and 2j + 1, 00 = 0, 01 = +threshold, 10 = -threshold. threshold > 0; nullopt: per tensor
/// two_bit_auto_factor · mean |value|.
std::unique_ptr<Codec> make_two_bit_codec(std::optional<float> threshold);
/// The factor of an `auto` threshold.
inline constexpr float two_bit_auto_factor = 2.0F;

/// Cuts a range into segments: {range, index of its tensor}. For a codec that does not measure the
/// whole range is one segment, of tensor -1. The same at both ends of a link.
struct Segment {
    Range range;
    int tensor = -1;
};
std::vector<Segment> segments_of(const Codec& codec, const TensorTable& table, Range range);

/// Bytes of an encoded range.
size_t encoded_bytes(const Codec& codec, std::span<const Segment> segments);

/// Encodes elements of `slab` as the segments say, without feedback; `out` holds encoded_bytes().
/// REQUIRES: for a codec that measures, segments that are whole tensors.
void encode_range(const Codec& codec, std::span<const Segment> segments,
                  std::span<const float> slab, std::byte* out);

/// A run of elements of an encoded range, and where its scale and its codes lie in the bytes.
struct EncodedBlock {
    Range range;
    size_t scale_at = 0;
    size_t codes_at = 0;
};

/// Calls body(EncodedBlock) over the segments in runs of about `elements`, so that several
/// encoded ranges can be worked on while their sum stays in the cache.
template <typename Body>
void for_each_block(const Codec& codec, std::span<const Segment> segments, int64_t elements,
                    Body body) {
    elements = std::max<int64_t>(elements / codec.granule(), 1) * codec.granule();
    size_t at = 0;
    for (const Segment& segment : segments) {
        const size_t scale_at = at;
        const size_t codes_at = at + (codec.has_scale() ? sizeof(float) : 0);
        for (int64_t first = 0; first < segment.range.count; first += elements)
            body(EncodedBlock{
                {segment.range.first + first, std::min(elements, segment.range.count - first)},
                scale_at,
                codes_at + codec.code_bytes(first)});
        at = codes_at + codec.code_bytes(segment.range.count);
    }
}

/// Throws Error where `in` is not exactly as long as such a range, or a scale in it is not finite.
void check_encoded(const Codec& codec, std::span<const Segment> segments,
                   std::span<const std::byte> in);

/// sum[i] += decoded element i of the block, i counted from the block's start. `in` has passed
/// check_encoded.
void add_decoded_block(const Codec& codec, const EncodedBlock& block, std::span<const std::byte> in,
                       std::span<float> sum);

/// check_encoded, then sum[i - first] += decoded element i, for every element of the segments.
void add_decoded_range(const Codec& codec, std::span<const Segment> segments,
                       std::span<const std::byte> in, std::span<float> sum, int64_t first);

/// Error feedback around any codec: e <- e + g; q = encode(e); e <- e - decode(q), with the
/// residual e of one worker kept between pushes.
class ErrorFeedback {
  public:
    /// `residual` is a slab over `table`, owned by the caller (part of a checkpoint); both and the
    /// codec outlive this.
    ErrorFeedback(const Codec& codec, const TensorTable& table, std::span<float> residual);

    /// Begins the push of a range whose gradients are final: measures the scale of each tensor of
    /// it on e + g. REQUIRES: for a codec that measures, a range of whole tensors.
    void begin(std::span<const float> gradients, Range range);

    /// Encodes segments (of the range begun; a server's part of them, say) to `out`, which holds
    /// encoded_bytes(), and leaves in e what was not sent. Each element once a push.
    void encode(std::span<const Segment> segments, std::span<const float> gradients,
                std::byte* out);

    /// For an exact push that flushes: gradients[range] += e, e <- 0.
    void flush(std::span<float> gradients, Range range);

  private:
    const Codec& codec_;
    const TensorTable& table_;
    std::span<float> residual_;
    std::vector<float> scales_;  // by tensor; one for all where the codec does not measure
};

}  // namespace trainer
