// One builder a kind of node; each is defined in the file named after it. Operations keep the
// context and what the binding points to.
#pragma once

#include <memory>

#include "engine/cpu/context.h"
#include "engine/cpu/simd.h"

namespace trainer::cpu {

std::unique_ptr<Operation> build_input(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_convolution(Context& context, const Binding& binding);
/// Whether a convolution is faster by Winograd's algorithm, which the next then builds.
bool winograd_pays(const Context& context, const Binding& binding);
std::unique_ptr<Operation> build_winograd_convolution(Context& context, const Binding& binding);
/// Throws UsageError where training would see a single value a channel.
std::unique_ptr<Operation> build_batch_norm(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_relu(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_max_pool(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_global_average_pool(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_linear(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_pad_shortcut(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_dropout(Context& context, const Binding& binding);

/// As Backend::build_loss.
std::unique_ptr<Loss> build_loss(const Buffer& logits, const Buffer* gradient,
                                 const StepInput& step, double label_smoothing);

/// As Backend::add.
void add_activations(Lane& lane, const Buffer& source, const Buffer& target, int64_t batch);

/// What operations of plain loops have in common.
class PlainOperation : public Operation {
  public:
    PlainOperation(Context& context, const Binding& binding)
        : context_(context), binding_(binding), node_(*binding.node) {}

  protected:
    bool wants_input_gradient() const { return binding_.input_gradients.at(0) != nullptr; }
    Range samples(const Lane& lane) const { return lane.part(binding_.batch); }

    Context& context_;
    const Binding& binding_;
    const Node& node_;
};

/// Builds a template over the type of activations and the block of channels:
/// for_element_and_block(context, [&]<typename T, int B>() { return std::make_unique<...>(); }).
template <typename Make>
auto for_element_and_block(const Context& context, Make make) {
    if (context.precision == Precision::bf16)
        return make.template operator()<Bf16, 16>();
    if (context.block == 16)
        return make.template operator()<float, 16>();
    return make.template operator()<float, 8>();
}

}  // namespace trainer::cpu
