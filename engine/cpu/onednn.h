// The door to oneDNN: what differs between 2.x and 3.x, and primitives bound to their memory so
// that running one sets up nothing.
#pragma once

#include <dnnl.hpp>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend.h"

namespace trainer::cpu {

using dnnl::memory;

/// While it lives, OpenMP gives this thread a team of one. oneDNN fixes its number of threads when
/// a primitive is built, and asks again when some are run.
class SingleThreaded {
  public:
    SingleThreaded();
    ~SingleThreaded();
    SingleThreaded(const SingleThreaded&) = delete;
    SingleThreaded& operator=(const SingleThreaded&) = delete;

  private:
    int before_ = 1;
};

/// Makes this thread's OpenMP teams have one member from now on.
void stay_single_threaded();

/// "2.6.3"
std::string onednn_version();

/// What this processor has, as oneDNN may use it.
bool has_avx512();
bool has_bf16();
/// E.g. "avx512_core_bf16".
std::string isa_name();

/// Where a primitive finds one of its memories: `offset` bytes behind *base at the time of the
/// call, or at `fixed` for good.
struct Place {
    std::byte* const* base = nullptr;
    int64_t offset = 0;
    std::byte* fixed = nullptr;
};
/// Samples of a buffer from `first` on.
Place place_in(const Buffer& buffer, int64_t first);
Place place_at(std::byte* address);

/// Memory that grows while operations are built and that all of one lane share in turn.
class Workspace {
  public:
    void reserve(size_t bytes);
    Place place() const { return {.base = &data_}; }

  private:
    Memory memory_;
    std::byte* data_ = nullptr;
};

/// A primitive and its arguments. Running it allocates nothing of its own.
class Call {
  public:
    Call() = default;
    /// `what` names it in an error.
    Call(std::string what, const dnnl::primitive& primitive, const dnnl::stream& stream);

    void bind(int argument, const memory::desc& desc, const Place& place);
    void run();

    explicit operator bool() const { return static_cast<bool>(primitive_); }

  private:
    struct Argument {
        std::byte* const* base = nullptr;
        int64_t offset = 0;
        std::byte* bound = nullptr;  // what the memory object points to now
    };

    std::string what_;
    dnnl::primitive primitive_;
    dnnl::stream stream_;
    std::vector<memory> memories_;
    std::vector<Argument> arguments_;
    std::vector<dnnl_exec_arg_t> c_arguments_;
};

/// Attributes with the scratchpad left to the caller.
dnnl::primitive_attr user_scratchpad();

/// Geometry of a convolution, and the form of each of its tensors (with format "any" where oneDNN
/// is to choose). `bias` is empty where there is none.
struct ConvolutionDesc {
    memory::desc source, weights, bias, target;
    memory::dims strides, padding;
};
using ConvolutionForward = dnnl::convolution_forward::primitive_desc;
using ConvolutionBackwardData = dnnl::convolution_backward_data::primitive_desc;
using ConvolutionBackwardWeights = dnnl::convolution_backward_weights::primitive_desc;
ConvolutionForward convolution_forward(const dnnl::engine& engine, const ConvolutionDesc& desc,
                                       bool training);
/// `desc.source` and `desc.target` are the forms of their gradients.
ConvolutionBackwardData convolution_backward_data(const dnnl::engine& engine,
                                                  const ConvolutionDesc& desc,
                                                  const ConvolutionForward& hint);
/// `desc.weights`, `desc.bias` and `desc.target` are the forms of their gradients.
ConvolutionBackwardWeights convolution_backward_weights(const dnnl::engine& engine,
                                                        const ConvolutionDesc& desc,
                                                        const ConvolutionForward& hint);

/// target [n, o] = source [n, i] * weights [o, i] + bias.
struct InnerProductDesc {
    memory::desc source, weights, bias, target;
};
using InnerProductForward = dnnl::inner_product_forward::primitive_desc;
using InnerProductBackwardData = dnnl::inner_product_backward_data::primitive_desc;
using InnerProductBackwardWeights = dnnl::inner_product_backward_weights::primitive_desc;
InnerProductForward inner_product_forward(const dnnl::engine& engine, const InnerProductDesc& desc,
                                          bool training);
InnerProductBackwardData inner_product_backward_data(const dnnl::engine& engine,
                                                     const InnerProductDesc& desc,
                                                     const InnerProductForward& hint);
InnerProductBackwardWeights inner_product_backward_weights(const dnnl::engine& engine,
                                                           const InnerProductDesc& desc,
                                                           const InnerProductForward& hint);

}  // namespace trainer::cpu
