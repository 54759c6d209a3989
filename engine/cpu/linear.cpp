// Linear layers with oneDNN's inner product over plain rows: an input in blocks of channels is
// first laid out in C, H, W order, which costs little beside the product.
#include <cstring>

#include "engine/cpu/operations.h"

namespace trainer::cpu {

namespace {

using Tag = memory::format_tag;

// Calls visit(place in C, H, W order, place in blocks) for each element of a sample.
template <typename Visit>
void for_each_blocked(const Shape& shape, int64_t block, Visit visit) {
    const int64_t area = shape[1] * shape[2];
    for (int64_t c = 0; c < shape[0]; ++c)
        for (int64_t i = 0; i < area; ++i)
            visit(c * area + i, (c / block * area + i) * block + c % block);
}

// Rows of its own that a layer needs where a buffer isn't rows of the right type.
struct Rows {
    Memory memory;
    Buffer buffer;

    Rows(int64_t batch, int64_t width, DType type)
        : memory(allocate_host(static_cast<size_t>(batch * width) * size_of(type))),
          buffer{.data = memory.data.get(),
                 .shape = {width},
                 .type = type,
                 .channels = width,
                 .sample_bytes = width * static_cast<int64_t>(size_of(type))} {}
};

template <typename T>
class Linear final : public PlainOperation {
  public:
    Linear(Context& context, const Binding& binding);

    void load_weights() override { weights_.load(); }
    void forward(Lane& lane) override;
    void backward(Lane& lane) override;
    std::string implementation() const override { return implementation_; }

  private:
    struct Work {  // of one lane
        Call forward, backward_data, backward_weights;
        FlatGradient weight_gradient;
    };

    void build(size_t lane, Range samples);
    void build_backward_data(Work& work, LaneTools& tools, const InnerProductForward& hint,
                             Range samples);
    void build_backward_weights(Work& work, size_t lane, const InnerProductForward& hint,
                                Range samples);
    InnerProductDesc geometry(int64_t samples) const;
    Call make_call(LaneTools& tools, const dnnl::primitive_desc& desc,
                   const dnnl::primitive& primitive);
    memory::desc rows(int64_t count, int64_t width, memory::data_type type) const {
        return {{count, width}, type, Tag::nc};
    }

    // What the primitives read and write in place of the binding's buffers.
    const Buffer& input() const { return own_input_ ? own_input_->buffer : *binding_.inputs[0]; }
    const Buffer& input_gradient() const {
        return own_input_gradient_ ? own_input_gradient_->buffer : *binding_.input_gradients[0];
    }
    const Buffer& output_gradient() const {
        return own_output_gradient_ ? own_output_gradient_->buffer
                                    : *binding_.output_gradients.at(0);
    }

    int64_t in_features_, out_features_;
    memory::data_type type_;  // of activations
    memory::desc flat_weights_, bias_;
    PackedTensor weights_;
    std::unique_ptr<Rows> own_input_, own_input_gradient_, own_output_gradient_;
    std::vector<Work> work_;
    std::vector<std::string> implementations_;
    std::string implementation_;
};

template <typename T>
Linear<T>::Linear(Context& context, const Binding& binding)
    : PlainOperation(context, binding),
      in_features_(parameter_info(binding, 0).shape[1]),
      out_features_(node_.shape[0]),
      type_(onednn_type(context.activation())),
      flat_weights_(parameter_info(binding, 0).shape, memory::data_type::f32, Tag::oi),
      bias_({out_features_}, memory::data_type::f32, Tag::x),
      weights_(context, node_.name, flat_weights_, {}, weight_of(binding, 0)),
      work_(context.lanes.size()) {
    const bool blocked = is_blocked(context, *binding.inputs[0]);
    if (blocked)
        own_input_ = std::make_unique<Rows>(binding.batch, in_features_, context.activation());
    if (binding.training) {
        if (blocked && wants_input_gradient())
            own_input_gradient_ =
                std::make_unique<Rows>(binding.batch, in_features_, context.activation());
        if (binding.output->type != context.activation())
            own_output_gradient_ =
                std::make_unique<Rows>(binding.batch, out_features_, context.activation());
    }
    for (size_t lane = 0; lane < work_.size(); ++lane)
        build(lane, part_of(binding.batch, static_cast<int64_t>(lane),
                            static_cast<int64_t>(work_.size())));
    implementation_ = join_implementations(node_.name, implementations_);
}

template <typename T>
InnerProductDesc Linear<T>::geometry(int64_t samples) const {
    return {.source = rows(samples, in_features_, type_),
            .weights = {{out_features_, in_features_}, type_, Tag::any},
            .bias = bias_,
            .target = rows(samples, out_features_, onednn_type(binding_.output->type))};
}

template <typename T>
Call Linear<T>::make_call(LaneTools& tools, const dnnl::primitive_desc& desc,
                          const dnnl::primitive& primitive) {
    implementations_.emplace_back(desc.impl_info_str());
    tools.scratchpad.reserve(desc.scratchpad_desc().get_size());
    Call call(node_.name, primitive, tools.stream);
    call.bind(DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc(), tools.scratchpad.place());
    return call;
}

template <typename T>
void Linear<T>::build(size_t lane, Range samples) {
    if (samples.count == 0)
        return;
    Work& work = work_[lane];
    LaneTools& tools = context_.lanes[lane];
    const auto desc =
        inner_product_forward(context_.engine, geometry(samples.count), binding_.training);
    work.forward = make_call(tools, desc, dnnl::inner_product_forward(desc));
    work.forward.bind(DNNL_ARG_SRC, desc.src_desc(), place_in(input(), samples.first));
    work.forward.bind(DNNL_ARG_WEIGHTS, desc.weights_desc(), weights_.form(desc.weights_desc()));
    work.forward.bind(DNNL_ARG_BIAS, bias_, place_at(weight_of(binding_, 1)));
    work.forward.bind(DNNL_ARG_DST, desc.dst_desc(), place_in(*binding_.output, samples.first));
    if (!binding_.training)
        return;
    build_backward_weights(work, lane, desc, samples);
    if (wants_input_gradient())
        build_backward_data(work, tools, desc, samples);
}

template <typename T>
void Linear<T>::build_backward_data(Work& work, LaneTools& tools, const InnerProductForward& hint,
                                    Range samples) {
    InnerProductDesc forms = geometry(samples.count);
    forms.target = rows(samples.count, out_features_, type_);
    const auto desc = inner_product_backward_data(context_.engine, forms, hint);
    Call& call = work.backward_data;
    call = make_call(tools, desc, dnnl::inner_product_backward_data(desc));
    call.bind(DNNL_ARG_DIFF_DST, desc.diff_dst_desc(), place_in(output_gradient(), samples.first));
    call.bind(DNNL_ARG_WEIGHTS, desc.weights_desc(), weights_.form(desc.weights_desc()));
    call.bind(DNNL_ARG_DIFF_SRC, desc.diff_src_desc(), place_in(input_gradient(), samples.first));
}

template <typename T>
void Linear<T>::build_backward_weights(Work& work, size_t lane, const InnerProductForward& hint,
                                       Range samples) {
    InnerProductDesc forms = geometry(samples.count);
    forms.target = rows(samples.count, out_features_, type_);
    forms.weights = {{out_features_, in_features_}, memory::data_type::f32, Tag::any};
    const auto desc = inner_product_backward_weights(context_.engine, forms, hint);
    LaneTools& tools = context_.lanes[lane];
    std::byte* const slab = binding_.gradients.at(lane);
    work.weight_gradient = FlatGradient(node_.name, tools, desc.diff_weights_desc(), flat_weights_,
                                        {}, parameter_in(binding_, slab, 0));
    Call& call = work.backward_weights;
    call = make_call(tools, desc, dnnl::inner_product_backward_weights(desc));
    call.bind(DNNL_ARG_SRC, desc.src_desc(), place_in(input(), samples.first));
    call.bind(DNNL_ARG_DIFF_DST, desc.diff_dst_desc(), place_in(output_gradient(), samples.first));
    call.bind(DNNL_ARG_DIFF_WEIGHTS, desc.diff_weights_desc(), work.weight_gradient.place());
    call.bind(DNNL_ARG_DIFF_BIAS, bias_, place_at(parameter_in(binding_, slab, 1)));
}

template <typename T>
void Linear<T>::forward(Lane& lane) {
    Work& work = work_[static_cast<size_t>(lane.index())];
    if (!work.forward)
        return;
    const Range part = samples(lane);
    for (int64_t n = part.first; own_input_ && n < part.end(); ++n) {
        const T* const from = binding_.inputs[0]->sample<T>(n);
        T* const to = own_input_->buffer.sample<T>(n);
        for_each_blocked(binding_.inputs[0]->shape, context_.block,
                         [&](int64_t plain, int64_t blocked) { to[plain] = from[blocked]; });
    }
    work.forward.run();
}

template <typename T>
void Linear<T>::backward(Lane& lane) {
    Work& work = work_[static_cast<size_t>(lane.index())];
    if (!work.backward_weights) {
        zero_gradients(binding_, lane);
        return;
    }
    const Range part = samples(lane);
    if (own_output_gradient_) {
        const float* const from = binding_.output_gradients[0]->sample<float>(part.first);
        T* const to = own_output_gradient_->buffer.sample<T>(part.first);
        for (int64_t i = 0; i < part.count * out_features_; ++i)
            assign(to[i], from[i]);
    }
    work.backward_weights.run();
    work.weight_gradient.flatten();
    if (!work.backward_data)
        return;
    work.backward_data.run();
    for (int64_t n = part.first; own_input_gradient_ && n < part.end(); ++n) {
        const Buffer& gradient = *binding_.input_gradients[0];
        const T* const from = own_input_gradient_->buffer.sample<T>(n);
        T* const to = gradient.sample<T>(n);
        std::memset(to, 0, static_cast<size_t>(gradient.sample_bytes));  // the padding
        for_each_blocked(gradient.shape, context_.block,
                         [&](int64_t plain, int64_t blocked) { to[blocked] = from[plain]; });
    }
}

}  // namespace

std::unique_ptr<Operation> build_linear(Context& context, const Binding& binding) {
    if (context.precision == Precision::bf16)
        return std::make_unique<Linear<Bf16>>(context, binding);
    return std::make_unique<Linear<float>>(context, binding);
}

}  // namespace trainer::cpu
