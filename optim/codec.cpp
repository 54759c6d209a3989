#include "optim/codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace trainer {

namespace {

// Elements worked on at a time: their gradients, residuals and codes stay in the first cache, so
// that the passes over them cost one pass over memory.
constexpr int64_t run_elements = 2048;

// Calls body(first, count) over [0, count) in such runs.
template <typename Body>
void in_runs(int64_t count, Body body) {
    for (int64_t first = 0; first < count; first += run_elements)
        body(first, std::min(run_elements, count - first));
}

std::span<const float> part(std::span<const float> slab, int64_t first, int64_t count) {
    return slab.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
}

std::span<float> part(std::span<float> slab, int64_t first, int64_t count) {
    return slab.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
}

std::byte* put_scale(const Codec& codec, float scale, std::byte* out) {
    if (!codec.has_scale())
        return out;
    std::memcpy(out, &scale, sizeof scale);
    return out + sizeof scale;
}

size_t segment_bytes(const Codec& codec, int64_t count) {
    return (codec.has_scale() ? sizeof(float) : 0) + codec.code_bytes(count);
}

}  // namespace

void Codec::encode_with_feedback(std::span<const float> gradients, std::span<float> residual,
                                 float scale, std::byte* codes) const {
    for (size_t i = 0; i < residual.size(); ++i)
        residual[i] += gradients[i];
    encode(residual, scale, codes);
    add_decoded(codes, scale, -1, residual);
}

std::vector<Segment> segments_of(const Codec& codec, const TensorTable& table, Range range) {
    if (!codec.measures())
        return {{range, -1}};
    std::vector<Segment> result;
    for (size_t index = 0; index < table.tensors().size(); ++index) {
        const Range tensor = table.tensors()[index].range();
        const int64_t first = std::max(tensor.first, range.first);
        const int64_t end = std::min(tensor.end(), range.end());
        if (first < end)
            result.push_back({{first, end - first}, static_cast<int>(index)});
    }
    return result;
}

size_t encoded_bytes(const Codec& codec, std::span<const Segment> segments) {
    size_t bytes = 0;
    for (const Segment& segment : segments)
        bytes += segment_bytes(codec, segment.range.count);
    return bytes;
}

void encode_range(const Codec& codec, std::span<const Segment> segments,
                  std::span<const float> slab, std::byte* out) {
    for (const Segment& segment : segments) {
        const auto values = part(slab, segment.range.first, segment.range.count);
        const float scale = codec.scale(values);
        out = put_scale(codec, scale, out);
        codec.encode(values, scale, out);
        out += codec.code_bytes(segment.range.count);
    }
}

namespace {

float scale_at(const Codec& codec, std::span<const std::byte> in, size_t at) {
    float scale = 0;
    if (codec.has_scale())
        std::memcpy(&scale, in.data() + at, sizeof scale);
    return scale;
}

}  // namespace

void check_encoded(const Codec& codec, std::span<const Segment> segments,
                   std::span<const std::byte> in) {
    if (in.size() != encoded_bytes(codec, segments))
        throw Error("a push of " + std::to_string(in.size()) + " bytes in codec " + codec.name() +
                    " where its range takes " + std::to_string(encoded_bytes(codec, segments)));
    size_t at = 0;
    for (const Segment& segment : segments) {
        if (!std::isfinite(scale_at(codec, in, at)))
            throw Error("a push in codec " + codec.name() + " with a scale that is not finite");
        at += segment_bytes(codec, segment.range.count);
    }
}

void add_decoded_block(const Codec& codec, const EncodedBlock& block, std::span<const std::byte> in,
                       std::span<float> sum) {
    codec.add_decoded(in.data() + block.codes_at, scale_at(codec, in, block.scale_at), 1, sum);
}

void add_decoded_range(const Codec& codec, std::span<const Segment> segments,
                       std::span<const std::byte> in, std::span<float> sum, int64_t first) {
    check_encoded(codec, segments, in);
    for_each_block(codec, segments, run_elements, [&](const EncodedBlock& block) {
        add_decoded_block(codec, block, in,
                          part(sum, block.range.first - first, block.range.count));
    });
}

ErrorFeedback::ErrorFeedback(const Codec& codec, const TensorTable& table,
                             std::span<float> residual)
    : codec_(codec),
      table_(table),
      residual_(residual),
      scales_(codec.measures() ? table.tensors().size() : 1,
              codec.measures() ? 0 : codec.scale({})) {
    check(static_cast<int64_t>(residual.size()) == table.size(),
          "a residual covers all parameters");
    check(run_elements % codec.granule() == 0, "runs end on whole bytes of the codec");
}

void ErrorFeedback::begin(std::span<const float> gradients, Range range) {
    if (!codec_.measures())
        return;
    std::array<float, run_elements> sums;
    for (size_t index = 0; index < scales_.size(); ++index) {
        const TensorInfo& tensor = table_.tensors()[index];
        if (tensor.offset < range.first || tensor.offset >= range.end())
            continue;
        check(tensor.range().end() <= range.end(), "a measured range holds whole tensors");
        double total = 0;
        in_runs(tensor.size(), [&](int64_t first, int64_t count) {
            const auto g = part(gradients, tensor.offset + first, count);
            const auto e = part(residual_, tensor.offset + first, count);
            for (size_t i = 0; i < g.size(); ++i)
                sums[i] = e[i] + g[i];
            total += static_cast<double>(codec_.scale({sums.data(), g.size()})) *
                     static_cast<double>(count);
        });
        scales_[index] =
            static_cast<float>(total / static_cast<double>(std::max<int64_t>(tensor.size(), 1)));
    }
}

void ErrorFeedback::encode(std::span<const Segment> segments, std::span<const float> gradients,
                           std::byte* out) {
    for (const Segment& segment : segments) {
        const float scale = scales_[segment.tensor < 0 ? 0 : static_cast<size_t>(segment.tensor)];
        out = put_scale(codec_, scale, out);
        in_runs(segment.range.count, [&](int64_t first, int64_t count) {
            const auto g = part(gradients, segment.range.first + first, count);
            const auto e = part(residual_, segment.range.first + first, count);
            codec_.encode_with_feedback(g, e, scale, out + codec_.code_bytes(first));
        });
        out += codec_.code_bytes(segment.range.count);
    }
}

void ErrorFeedback::flush(std::span<float> gradients, Range range) {
    const auto g = part(gradients, range.first, range.count);
    const auto e = part(residual_, range.first, range.count);
    for (size_t i = 0; i < g.size(); ++i) {
        g[i] += e[i];
        e[i] = 0;
    }
}

}  // namespace trainer
