#include "engine/cpu/context.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace trainer::cpu {

Context::Context(const CpuOptions& options)
    : precision(options.precision),
      winograd(options.winograd),
      block(has_avx512() ? 16 : 8),
      engine(dnnl::engine::kind::cpu, 0) {
    lanes.resize(static_cast<size_t>(options.threads));
    for (LaneTools& tools : lanes)
        tools.stream = dnnl::stream(engine);
}

namespace {

// Whether an image is read as it came. It has at most three channels, and only linear layers and
// convolutions read it: in bf16, and without AVX-512, oneDNN's take three channels only, and in
// bf16 only where their outputs fill whole blocks (LeNet's six fall to its reference code).
bool stays_plain(const Context& context, const Network& network, const Node& input) {
    const int64_t channels = input.shape[0];
    const bool convolutions =
        channels == 3 || (context.precision == Precision::fp32 && context.block == 16);
    return channels <= 3 &&
           std::all_of(network.nodes().begin(), network.nodes().end(), [&](const Node& node) {
               const bool reads =
                   std::any_of(node.inputs.begin(), node.inputs.end(),
                               [&](NodeId id) { return &network.node(id) == &input; });
               return !reads || node.kind == Kind::linear ||
                      (node.kind == Kind::convolution && convolutions &&
                       (context.precision == Precision::fp32 ||
                        node.shape[0] % context.block == 0));
           });
}

}  // namespace

Buffer Context::layout(const Network& network, const Node& node) const {
    Buffer buffer;
    buffer.shape = node.shape;
    buffer.type = activation();
    const bool is_logits = &node == &network.nodes().back() && node.shape.size() == 1;
    if (is_logits) {
        check(node.kind == Kind::linear || node.kind == Kind::global_average_pool ||
                  precision == Precision::fp32,
              "logits come from a linear layer or an average pool");
        buffer.type = DType::f32;
    }
    const bool plain =
        node.shape.size() != 3 || (node.kind == Kind::input && stays_plain(*this, network, node));
    buffer.channels = plain ? node.shape[0] : padded(node.shape[0]);
    buffer.sample_bytes = element_count(node.shape) / node.shape[0] * buffer.channels *
                          static_cast<int64_t>(size_of(buffer.type));
    return buffer;
}

memory::data_type onednn_type(DType type) {
    check(type != DType::f64, "oneDNN computes in f32 or bf16");
    return type == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc describe(const Context& context, const Buffer& buffer, int64_t samples) {
    using Tag = memory::format_tag;
    memory::dims dims{samples};
    dims.insert(dims.end(), buffer.shape.begin(), buffer.shape.end());
    if (dims.size() == 2)
        return {dims, onednn_type(buffer.type), Tag::nc};
    const Tag blocks = context.block == 16 ? Tag::nChw16c : Tag::nChw8c;
    return {dims, onednn_type(buffer.type), is_blocked(context, buffer) ? blocks : Tag::nchw};
}

namespace {

// Copies rows between tensors whose rows have other widths, in floats.
void copy_rows(const std::byte* from, int64_t from_width, std::byte* to, int64_t to_width,
               const RowPadding& padding) {
    for (int64_t row = 0; row < padding.rows; ++row)
        std::memcpy(to + row * to_width * static_cast<int64_t>(sizeof(float)),
                    from + row * from_width * static_cast<int64_t>(sizeof(float)),
                    static_cast<size_t>(padding.width) * sizeof(float));
}

}  // namespace

PackedTensor::PackedTensor(const Context& context, std::string name, const memory::desc& flat,
                           const RowPadding& padding, std::byte* address)
    : name_(std::move(name)),
      flat_(flat),
      padding_(padding),
      address_(address),
      padded_(allocate_host(padding.needed() ? flat.get_size() : 0)),
      stream_(context.engine) {}

Place PackedTensor::form(const memory::desc& desc) {
    const Place flat = place_at(padding_.needed() ? padded_.data.get() : address_);
    if (desc == flat_)
        return flat;
    for (const Form& form : forms_)
        if (form.desc == desc)
            return place_at(form.packed.data.get());
    const dnnl::engine engine = stream_.get_engine();
    const dnnl::reorder::primitive_desc reorder(engine, flat_, engine, desc, user_scratchpad());
    Form form{desc, allocate_host(desc.get_size()),
              allocate_host(reorder.scratchpad_desc().get_size()),
              Call(name_, dnnl::reorder(reorder), stream_)};
    form.fill.bind(DNNL_ARG_FROM, flat_, flat);
    form.fill.bind(DNNL_ARG_TO, desc, place_at(form.packed.data.get()));
    form.fill.bind(DNNL_ARG_SCRATCHPAD, reorder.scratchpad_desc(),
                   place_at(form.scratchpad.data.get()));
    forms_.push_back(std::move(form));
    return place_at(forms_.back().packed.data.get());
}

void PackedTensor::load() {
    if (padding_.needed())
        copy_rows(address_, padding_.width, padded_.data.get(), padding_.padded, padding_);
    for (Form& form : forms_)
        form.fill.run();
}

Call make_reorder(const std::string& what, LaneTools& tools, const memory::desc& from,
                  const Place& source, const memory::desc& to, const Place& target) {
    const dnnl::engine engine = tools.stream.get_engine();
    const dnnl::reorder::primitive_desc reorder(engine, from, engine, to, user_scratchpad());
    tools.scratchpad.reserve(reorder.scratchpad_desc().get_size());
    Call call(what, dnnl::reorder(reorder), tools.stream);
    call.bind(DNNL_ARG_FROM, from, source);
    call.bind(DNNL_ARG_TO, to, target);
    call.bind(DNNL_ARG_SCRATCHPAD, reorder.scratchpad_desc(), tools.scratchpad.place());
    return call;
}

FlatGradient::FlatGradient(const std::string& what, LaneTools& tools, const memory::desc& form,
                           const memory::desc& flat, const RowPadding& padding, std::byte* address)
    : padding_(padding), address_(address) {
    Place target = place_at(address);
    if (padding.needed()) {
        tools.padded.reserve(flat.get_size());
        target = padded_ = tools.padded.place();
    }
    if (form == flat) {
        place_ = target;
        return;
    }
    tools.gradient.reserve(form.get_size());
    place_ = tools.gradient.place();
    reorder_ = make_reorder(what, tools, form, place_, flat, target);
}

void FlatGradient::flatten() {
    if (reorder_)
        reorder_.run();
    if (padding_.needed())
        copy_rows(*padded_.base, padding_.padded, address_, padding_.width, padding_);
}

const TensorInfo& parameter_info(const Binding& binding, size_t index) {
    return binding.parameters->table()[binding.node->parameters.at(index)];
}

std::byte* parameter_in(const Binding& binding, std::byte* slab_address, size_t index) {
    return slab_address +
           static_cast<size_t>(parameter_info(binding, index).offset) * sizeof(float);
}

std::byte* weight_of(const Binding& binding, size_t index) {
    return parameter_in(binding, binding.parameters->address(slab::weights), index);
}

void zero_gradients(const Binding& binding, const Lane& lane) {
    std::byte* const gradients = binding.gradients[static_cast<size_t>(lane.index())];
    for (size_t i = 0; i < binding.node->parameters.size(); ++i)
        std::memset(parameter_in(binding, gradients, i), 0,
                    static_cast<size_t>(parameter_info(binding, i).size()) * sizeof(float));
}

std::string join_implementations(const std::string& what, const std::vector<std::string>& names) {
    std::string result;
    std::vector<std::string> seen;
    for (const std::string& name : names) {
        if (std::find(seen.begin(), seen.end(), name) != seen.end())
            continue;
        seen.push_back(name);
        result += (result.empty() ? "" : " ") + name;
        if (name.rfind("ref", 0) == 0 || name.find(":ref") != std::string::npos)
            std::fprintf(stderr, "%s: oneDNN has only unoptimised code for it here (%s)\n",
                         what.c_str(), name.c_str());
    }
    return result;
}

}  // namespace trainer::cpu
