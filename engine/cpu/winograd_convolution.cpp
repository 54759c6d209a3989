// The convolutions that winograd.h computes, where it is faster than oneDNN's direct kernels.
#include <algorithm>

#include "engine/cpu/operations.h"
#include "engine/cpu/winograd.h"

namespace trainer::cpu {

namespace {

std::byte* address(const Place& place) {
    return place.base ? *place.base + place.offset : place.fixed;
}

template <typename T>
class WinogradConvolution final : public PlainOperation {
  public:
    WinogradConvolution(Context& context, const Binding& binding)
        : PlainOperation(context, binding),
          flat_(parameter_info(binding, 0).shape, memory::data_type::f32, memory::format_tag::oihw),
          weights_(context, node_.name, flat_, {}, weight_of(binding, 0)),
          forward_weights_(weights_.form(blocks(memory::format_tag::OIhw16i16o))) {
        if (binding.training && wants_input_gradient())
            backward_weights_ = weights_.form(blocks(memory::format_tag::OIhw16o16i));
        for (size_t lane = 0; lane < context.lanes.size(); ++lane)
            reserve(lane);
    }

    void load_weights() override { weights_.load(); }

    void forward(Lane& lane) override {
        const Range part = samples(lane);
        if (part.count == 0)
            return;
        winograd::convolve(geometry(part.count), activations(*binding_.inputs[0], part),
                           {.data = floats(forward_weights_),
                            .input_stride = taps,
                            .output_stride = inputs() / 16 * taps},
                           node_.has_bias ? floats(place_at(weight_of(binding_, 1))) : nullptr,
                           activations(*binding_.output, part), scratch(lane));
    }

    void backward(Lane& lane) override {
        const Range part = samples(lane);
        if (part.count == 0) {
            zero_gradients(binding_, lane);
            return;
        }
        const auto index = static_cast<size_t>(lane.index());
        const T* const gradient = activations(*binding_.output_gradients.at(0), part);
        winograd::weight_gradient(
            geometry(part.count), activations(*binding_.inputs[0], part), gradient,
            floats(gradients_[index].place()),
            node_.has_bias
                ? floats(place_at(parameter_in(binding_, binding_.gradients.at(index), 1)))
                : nullptr,
            scratch(lane));
        gradients_[index].flatten();
        if (wants_input_gradient())
            winograd::convolve(transposed(geometry(part.count)), gradient,
                               {.data = floats(backward_weights_),
                                .input_stride = inputs() / 16 * taps,
                                .output_stride = taps,
                                .rotated = true},
                               nullptr, activations(*binding_.input_gradients[0], part),
                               scratch(lane));
    }

    std::string implementation() const override { return "winograd:avx512"; }

  private:
    static constexpr int64_t taps = 9 * 16 * 16;

    memory::desc blocks(memory::format_tag tag) const {
        return {parameter_info(binding_, 0).shape, memory::data_type::f32, tag};
    }
    int64_t inputs() const { return parameter_info(binding_, 0).shape[1]; }
    winograd::Geometry geometry(int64_t samples) const {
        return {samples, inputs(), node_.shape[0], node_.shape[1], node_.shape[2]};
    }
    static winograd::Geometry transposed(winograd::Geometry geometry) {
        std::swap(geometry.inputs, geometry.outputs);
        return geometry;
    }

    void reserve(size_t lane) {
        LaneTools& tools = context_.lanes[lane];
        const Range part = part_of(binding_.batch, static_cast<int64_t>(lane),
                                   static_cast<int64_t>(context_.lanes.size()));
        if (part.count > 0) {
            const winograd::Geometry here = geometry(part.count);
            tools.scratchpad.reserve(winograd::convolve_scratch(here));
            if (binding_.training) {
                tools.scratchpad.reserve(winograd::convolve_scratch(transposed(here)));
                tools.scratchpad.reserve(winograd::weight_gradient_scratch(here));
            }
        }
        if (binding_.training)
            gradients_.emplace_back(node_.name, tools, blocks(memory::format_tag::OIhw16i16o),
                                    flat_, RowPadding{},
                                    parameter_in(binding_, binding_.gradients.at(lane), 0));
    }

    std::byte* scratch(const Lane& lane) const {
        return address(context_.lanes[static_cast<size_t>(lane.index())].scratchpad.place());
    }
    static T* activations(const Buffer& buffer, Range part) {
        return reinterpret_cast<T*>(address(place_in(buffer, part.first)));
    }
    static float* floats(const Place& place) { return reinterpret_cast<float*>(address(place)); }

    memory::desc flat_;  // [out, in, 3, 3]
    PackedTensor weights_;
    Place forward_weights_, backward_weights_;
    std::vector<FlatGradient> gradients_;  // by lane
};

}  // namespace

bool winograd_pays(const Context& context, const Binding& binding) {
    const Node& node = *binding.node;
    if (!context.winograd || !winograd::available() || context.block != 16 || node.kernel != 3 ||
        node.stride != 1 || node.padding != 1 || !is_blocked(context, *binding.inputs[0]))
        return false;
    const Shape& weights = parameter_info(binding, 0).shape;
    if (weights[0] % 16 != 0 || weights[1] % 16 != 0)
        return false;
    // Tiles that are mostly border, too few to share the transform of the weights, or of too few
    // channels to share theirs, cost more than they save; in bf16 the direct way has twice the
    // speed of fp32.
    const auto lanes = static_cast<int64_t>(context.lanes.size());
    const winograd::Geometry geometry{(binding.batch + lanes - 1) / lanes, weights[1], weights[0],
                                      node.shape[1], node.shape[2]};
    const bool fp32 = context.precision == Precision::fp32;
    const int64_t pixels = geometry.samples * geometry.height * geometry.width;
    return std::min(geometry.inputs, geometry.outputs) >= (fp32 ? 16 : 32) &&
           geometry.tiles() >= (fp32 ? 24 : 64) && pixels >= (fp32 ? 8 : 13) * geometry.tiles();
}

std::unique_ptr<Operation> build_winograd_convolution(Context& context, const Binding& binding) {
    if (context.precision == Precision::bf16)
        return std::make_unique<WinogradConvolution<Bf16>>(context, binding);
    return std::make_unique<WinogradConvolution<float>>(context, binding);
}

}  // namespace trainer::cpu
