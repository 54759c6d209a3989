// What all operations of one CPU backend share: the block of channels, the lanes' streams and
// workspaces, and how activations lie.
//
// Activations [c, h, w] lie as blocks of channels, [c / block][h][w][block], the channels padded
// with zeros to whole blocks; features [f] as plain rows. Only an image that feeds convolutions of
// up to three channels, or linear layers, stays [c][h][w] as it came.
#pragma once

#include <vector>

#include "engine/cpu/onednn.h"

namespace trainer::cpu {

/// Of one lane, used by one operation at a time.
struct LaneTools {
    dnnl::stream stream;
    Workspace scratchpad;  ///< of oneDNN's primitives
    Workspace gradient;    ///< a weight gradient in a primitive's own form
    Workspace padded;      ///< a flat weight gradient with padded rows
};

struct Context {
    explicit Context(const CpuOptions& options);
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    /// Element type of activations: f32 or bf16.
    DType activation() const { return precision == Precision::bf16 ? DType::bf16 : DType::f32; }
    int64_t padded(int64_t channels) const { return (channels + block - 1) / block * block; }

    /// How `node`'s output lies, as Backend::layout.
    Buffer layout(const Network& network, const Node& node) const;

    Precision precision;
    bool winograd;
    int block;  ///< channels of a block: 16 with AVX-512, else 8
    dnnl::engine engine;
    std::vector<LaneTools> lanes;
};

/// Whether a buffer's sample is in blocks of channels.
inline bool is_blocked(const Context& context, const Buffer& buffer) {
    return buffer.shape.size() == 3 && buffer.channels % context.block == 0;
}

/// oneDNN's description of `samples` samples of a buffer.
memory::desc describe(const Context& context, const Buffer& buffer, int64_t samples);

memory::data_type onednn_type(DType type);

/// How the rows of a parameter tensor (its first extent) are widened with zeros for a primitive
/// that wants whole blocks of input channels; equal widths where they are not.
struct RowPadding {
    int64_t rows = 0, width = 0, padded = 0;
    bool needed() const { return width != padded; }
};

/// A parameter tensor in the forms that primitives want, filled from the flat slab by load().
class PackedTensor {
  public:
    /// `flat` describes the tensor with its rows padded, `address` is where it lies without.
    PackedTensor(const Context& context, std::string name, const memory::desc& flat,
                 const RowPadding& padding, std::byte* address);

    /// The tensor in the form `desc`: in memory of this object, or where it lies if that is it.
    Place form(const memory::desc& desc);
    void load();

  private:
    struct Form {
        memory::desc desc;
        Memory packed, scratchpad;
        Call fill;
    };

    std::string name_;
    memory::desc flat_;
    RowPadding padding_;
    std::byte* address_;
    Memory padded_;  // the flat tensor with its rows padded, where they are
    dnnl::stream stream_;
    std::vector<Form> forms_;
};

/// A reorder from one form to another by a lane's tools.
Call make_reorder(const std::string& what, LaneTools& tools, const memory::desc& from,
                  const Place& source, const memory::desc& to, const Place& target);

/// One lane's gradient of a parameter tensor: where a primitive is to leave it, and what then
/// brings it to the slab.
class FlatGradient {
  public:
    FlatGradient() = default;
    /// `form` is what the primitive writes; `flat`, `padding`, `address` as for PackedTensor.
    FlatGradient(const std::string& what, LaneTools& tools, const memory::desc& form,
                 const memory::desc& flat, const RowPadding& padding, std::byte* address);
    const Place& place() const { return place_; }
    void flatten();

  private:
    Place place_;
    Call reorder_;
    RowPadding padding_;
    std::byte* address_ = nullptr;
    Place padded_;  // where rows are padded: of the lane's tools
};

/// First byte of a node's `index`-th parameter in a slab, and its extents.
std::byte* parameter_in(const Binding& binding, std::byte* slab_address, size_t index);
const TensorInfo& parameter_info(const Binding& binding, size_t index);
/// The same in the slab of weights.
std::byte* weight_of(const Binding& binding, size_t index);
/// Zeroes a lane's gradients of all the node's parameters: what a lane without samples adds.
void zero_gradients(const Binding& binding, const Lane& lane);

/// "brg:avx512 / jit:..." of the passes of one operation; says once on standard error where one of
/// them is oneDNN's unoptimised code.
std::string join_implementations(const std::string& what, const std::vector<std::string>& names);

}  // namespace trainer::cpu
