#include "engine/cpu/onednn.h"

#include "engine/error.h"

#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
#include <omp.h>
#elif DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
#error \
    "the CPU engine runs one primitive a thread: it needs a oneDNN built for OpenMP or sequential"
#endif

namespace trainer::cpu {

namespace {

int set_threads(int count) {
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
    const int before = omp_get_max_threads();
    if (before != count)
        omp_set_num_threads(count);
    return before;
#else
    return count;
#endif
}

bool isa_covers(dnnl::cpu_isa wanted) {
    const auto have = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto want = static_cast<unsigned>(wanted);
    return (have & want) == want;
}

}  // namespace

SingleThreaded::SingleThreaded() : before_(set_threads(1)) {}

SingleThreaded::~SingleThreaded() {
    set_threads(before_);
}

void stay_single_threaded() {
    set_threads(1);
}

std::string onednn_version() {
    const dnnl_version_t* version = dnnl_version();
    return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch);
}

#if defined(__x86_64__)
bool has_avx512() {
    return isa_covers(dnnl::cpu_isa::avx512_core);
}

bool has_bf16() {
    return isa_covers(dnnl::cpu_isa::avx512_core_bf16);
}
#else
bool has_avx512() {
    return false;
}

bool has_bf16() {
    return false;
}
#endif

std::string isa_name() {
    if (has_bf16())
        return "avx512_core_bf16";
    if (has_avx512())
        return "avx512_core";
#if defined(__x86_64__)
    return isa_covers(dnnl::cpu_isa::avx2) ? "avx2" : "sse41";
#else
    return "generic";
#endif
}

Place place_in(const Buffer& buffer, int64_t first) {
    return {.base = &buffer.data, .offset = first * buffer.sample_bytes};
}

Place place_at(std::byte* address) {
    return {.fixed = address};
}

void Workspace::reserve(size_t bytes) {
    if (bytes <= memory_.bytes)
        return;
    memory_ = {};  // first, so that both are never held at once
    memory_ = allocate_host(bytes);
    data_ = memory_.data.get();
}

Call::Call(std::string what, const dnnl::primitive& primitive, const dnnl::stream& stream)
    : what_(std::move(what)), primitive_(primitive), stream_(stream) {}

void Call::bind(int argument, const memory::desc& desc, const Place& place) {
    if (desc.get_size() == 0)
        return;
    // oneDNN zeroes the padding of what it is given: not before the buffer is there.
    memories_.emplace_back(desc, stream_.get_engine(), static_cast<void*>(DNNL_MEMORY_NONE));
    if (place.fixed)
        memories_.back().set_data_handle(place.fixed);
    arguments_.push_back({place.base, place.offset, place.fixed});
    c_arguments_.push_back({argument, memories_.back().get()});
}

void Call::run() {
    stay_single_threaded();
    for (size_t i = 0; i < arguments_.size(); ++i) {
        Argument& argument = arguments_[i];
        std::byte* const now = argument.base ? *argument.base + argument.offset : argument.bound;
        if (now != argument.bound) {
            memories_[i].set_data_handle(now);
            argument.bound = now;
        }
    }
    const dnnl_status_t status =
        dnnl_primitive_execute(primitive_.get(), stream_.get(),
                               static_cast<int>(c_arguments_.size()), c_arguments_.data());
    if (status != dnnl_success)
        throw Error(what_ + ": oneDNN failed with status " + std::to_string(status));
}

dnnl::primitive_attr user_scratchpad() {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return attributes;
}

namespace {

constexpr auto direct = dnnl::algorithm::convolution_direct;

dnnl::prop_kind forward_kind(bool training) {
    return training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
}

// 3.x has no operation descriptors: their arguments go to the primitive's descriptor itself.
template <typename Primitive, typename... Arguments>
typename Primitive::primitive_desc forward_desc(const dnnl::engine& engine,
                                                const Arguments&... arguments) {
#if DNNL_VERSION_MAJOR >= 3
    return {engine, arguments..., user_scratchpad()};
#else
    return {typename Primitive::desc(arguments...), user_scratchpad(), engine};
#endif
}

template <typename Primitive, typename Hint, typename... Arguments>
typename Primitive::primitive_desc backward_desc(const dnnl::engine& engine, const Hint& hint,
                                                 const Arguments&... arguments) {
#if DNNL_VERSION_MAJOR >= 3
    return {engine, arguments..., hint, user_scratchpad()};
#else
    return {typename Primitive::desc(arguments...), user_scratchpad(), engine, hint};
#endif
}

}  // namespace

ConvolutionForward convolution_forward(const dnnl::engine& engine, const ConvolutionDesc& desc,
                                       bool training) {
    return forward_desc<dnnl::convolution_forward>(
        engine, forward_kind(training), direct, desc.source, desc.weights, desc.bias, desc.target,
        desc.strides, desc.padding, desc.padding);
}

ConvolutionBackwardData convolution_backward_data(const dnnl::engine& engine,
                                                  const ConvolutionDesc& desc,
                                                  const ConvolutionForward& hint) {
    return backward_desc<dnnl::convolution_backward_data>(engine, hint, direct, desc.source,
                                                          desc.weights, desc.target, desc.strides,
                                                          desc.padding, desc.padding);
}

ConvolutionBackwardWeights convolution_backward_weights(const dnnl::engine& engine,
                                                        const ConvolutionDesc& desc,
                                                        const ConvolutionForward& hint) {
    return backward_desc<dnnl::convolution_backward_weights>(
        engine, hint, direct, desc.source, desc.weights, desc.bias, desc.target, desc.strides,
        desc.padding, desc.padding);
}

InnerProductForward inner_product_forward(const dnnl::engine& engine, const InnerProductDesc& desc,
                                          bool training) {
    return forward_desc<dnnl::inner_product_forward>(engine, forward_kind(training), desc.source,
                                                     desc.weights, desc.bias, desc.target);
}

InnerProductBackwardData inner_product_backward_data(const dnnl::engine& engine,
                                                     const InnerProductDesc& desc,
                                                     const InnerProductForward& hint) {
    return backward_desc<dnnl::inner_product_backward_data>(engine, hint, desc.source, desc.weights,
                                                            desc.target);
}

InnerProductBackwardWeights inner_product_backward_weights(const dnnl::engine& engine,
                                                           const InnerProductDesc& desc,
                                                           const InnerProductForward& hint) {
    return backward_desc<dnnl::inner_product_backward_weights>(
        engine, hint, desc.source, desc.weights, desc.bias, desc.target);
}

}  // namespace trainer::cpu
