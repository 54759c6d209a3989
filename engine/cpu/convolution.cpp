// Convolution with oneDNN's primitives, each lane with its own, built for its samples.
#include "engine/cpu/operations.h"

namespace trainer::cpu {

namespace {

class Convolution final : public Operation {
  public:
    Convolution(Context& context, const Binding& binding);

    void load_weights() override { weights_.load(); }
    void forward(Lane& lane) override;
    void backward(Lane& lane) override;
    std::string implementation() const override { return implementation_; }

  private:
    struct Work {  // of one lane; no calls where it has no samples
        Call forward, backward_data, backward_weights;
        FlatGradient weight_gradient;
    };

    void build_forward(Work& work, LaneTools& tools, const ConvolutionForward& desc, int64_t first);
    void build_backward_data(Work& work, LaneTools& tools, const ConvolutionForward& hint,
                             Range samples);
    void build_backward_weights(Work& work, size_t lane, const ConvolutionForward& hint,
                                Range samples);
    ConvolutionDesc geometry(Range samples) const;
    Call make_call(LaneTools& tools, const dnnl::primitive_desc& desc,
                   const dnnl::primitive& primitive);
    Place bias_place() const { return place_at(weight_of(binding_, 1)); }

    Context& context_;
    const Binding& binding_;
    const Node& node_;
    // [out, in, k, k]; with whole blocks of input channels, since oneDNN's fast kernels take no
    // others. The input's own padding is zero, and so are the weights there.
    Shape weight_shape_;
    RowPadding padding_;
    memory::desc flat_weights_, bias_;  // bias_ empty where there is none
    PackedTensor weights_;
    std::vector<Work> work_;  // by lane
    std::vector<std::string> implementations_;
    std::string implementation_;
};

memory::desc flat_desc(const Shape& shape) {
    constexpr auto type = memory::data_type::f32;
    return shape.size() == 4 ? memory::desc(shape, type, memory::format_tag::oihw)
                             : memory::desc(shape, type, memory::format_tag::x);
}

Shape weight_shape(const Context& context, const Binding& binding) {
    Shape shape = parameter_info(binding, 0).shape;
    if (is_blocked(context, *binding.inputs[0]))
        shape[1] = context.padded(shape[1]);
    return shape;
}

RowPadding row_padding(const Shape& shape, const Shape& padded) {
    return {shape[0], element_count(shape) / shape[0], element_count(padded) / shape[0]};
}

memory::desc any_form(const Shape& shape, memory::data_type type) {
    return {shape, type, memory::format_tag::any};
}

Convolution::Convolution(Context& context, const Binding& binding)
    : context_(context),
      binding_(binding),
      node_(*binding.node),
      weight_shape_(weight_shape(context, binding)),
      padding_(row_padding(parameter_info(binding, 0).shape, weight_shape_)),
      flat_weights_(flat_desc(weight_shape_)),
      bias_(node_.has_bias ? flat_desc(parameter_info(binding, 1).shape) : memory::desc()),
      weights_(context, node_.name, flat_weights_, padding_, weight_of(binding, 0)),
      work_(context.lanes.size()) {
    for (size_t lane = 0; lane < work_.size(); ++lane) {
        const Range samples =
            part_of(binding.batch, static_cast<int64_t>(lane), static_cast<int64_t>(work_.size()));
        if (samples.count == 0)
            continue;
        const ConvolutionForward forward =
            convolution_forward(context.engine, geometry(samples), binding.training);
        build_forward(work_[lane], context.lanes[lane], forward, samples.first);
        if (!binding.training)
            continue;
        build_backward_weights(work_[lane], lane, forward, samples);
        if (binding.input_gradients[0])
            build_backward_data(work_[lane], context.lanes[lane], forward, samples);
    }
    implementation_ = join_implementations(node_.name, implementations_);
}

ConvolutionDesc Convolution::geometry(Range samples) const {
    Buffer source = *binding_.inputs[0];
    source.shape[0] = weight_shape_[1];
    return {.source = describe(context_, source, samples.count),
            .weights = any_form(weight_shape_, onednn_type(context_.activation())),
            .bias = bias_,
            .target = describe(context_, *binding_.output, samples.count),
            .strides = {node_.stride, node_.stride},
            .padding = {node_.padding, node_.padding}};
}

Call Convolution::make_call(LaneTools& tools, const dnnl::primitive_desc& desc,
                            const dnnl::primitive& primitive) {
    implementations_.emplace_back(desc.impl_info_str());
    tools.scratchpad.reserve(desc.scratchpad_desc().get_size());
    Call call(node_.name, primitive, tools.stream);
    call.bind(DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc(), tools.scratchpad.place());
    return call;
}

void Convolution::build_forward(Work& work, LaneTools& tools, const ConvolutionForward& desc,
                                int64_t first) {
    work.forward = make_call(tools, desc, dnnl::convolution_forward(desc));
    work.forward.bind(DNNL_ARG_SRC, desc.src_desc(), place_in(*binding_.inputs[0], first));
    work.forward.bind(DNNL_ARG_WEIGHTS, desc.weights_desc(), weights_.form(desc.weights_desc()));
    work.forward.bind(DNNL_ARG_DST, desc.dst_desc(), place_in(*binding_.output, first));
    if (node_.has_bias)
        work.forward.bind(DNNL_ARG_BIAS, bias_, bias_place());
}

void Convolution::build_backward_data(Work& work, LaneTools& tools, const ConvolutionForward& hint,
                                      Range samples) {
    const auto desc = convolution_backward_data(context_.engine, geometry(samples), hint);
    Call& call = work.backward_data;
    call = make_call(tools, desc, dnnl::convolution_backward_data(desc));
    call.bind(DNNL_ARG_DIFF_DST, desc.diff_dst_desc(),
              place_in(*binding_.output_gradients.at(0), samples.first));
    call.bind(DNNL_ARG_WEIGHTS, desc.weights_desc(), weights_.form(desc.weights_desc()));
    call.bind(DNNL_ARG_DIFF_SRC, desc.diff_src_desc(),
              place_in(*binding_.input_gradients[0], samples.first));
}

void Convolution::build_backward_weights(Work& work, size_t lane, const ConvolutionForward& hint,
                                         Range samples) {
    ConvolutionDesc forms = geometry(samples);
    // Gradients of weights are summed in fp32 and stay so.
    forms.weights = any_form(weight_shape_, memory::data_type::f32);
    const auto desc = convolution_backward_weights(context_.engine, forms, hint);
    LaneTools& tools = context_.lanes[lane];
    std::byte* const slab = binding_.gradients.at(lane);
    work.weight_gradient = FlatGradient(node_.name, tools, desc.diff_weights_desc(), flat_weights_,
                                        padding_, parameter_in(binding_, slab, 0));
    Call& call = work.backward_weights;
    call = make_call(tools, desc, dnnl::convolution_backward_weights(desc));
    call.bind(DNNL_ARG_SRC, desc.src_desc(), place_in(*binding_.inputs[0], samples.first));
    call.bind(DNNL_ARG_DIFF_DST, desc.diff_dst_desc(),
              place_in(*binding_.output_gradients.at(0), samples.first));
    call.bind(DNNL_ARG_DIFF_WEIGHTS, desc.diff_weights_desc(), work.weight_gradient.place());
    if (node_.has_bias)
        call.bind(DNNL_ARG_DIFF_BIAS, bias_, place_at(parameter_in(binding_, slab, 1)));
}

void Convolution::forward(Lane& lane) {
    Work& work = work_[static_cast<size_t>(lane.index())];
    if (work.forward)
        work.forward.run();
}

void Convolution::backward(Lane& lane) {
    Work& work = work_[static_cast<size_t>(lane.index())];
    if (!work.backward_weights) {
        zero_gradients(binding_, lane);
        return;
    }
    work.backward_weights.run();
    work.weight_gradient.flatten();
    if (work.backward_data)
        work.backward_data.run();
}

}  // namespace

std::unique_ptr<Operation> build_convolution(Context& context, const Binding& binding) {
    return std::make_unique<Convolution>(context, binding);
}

}  // namespace trainer::cpu
