// One builder a kind of node; each is defined in the file named after it. Operations keep the
// context and what the binding points to, and only line up work in the context's stream.
#pragma once

#include <memory>

#include "engine/cuda/context.h"

namespace trainer::cuda {

std::unique_ptr<Operation> build_input(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_convolution(Context& context, const Binding& binding);
/// Throws UsageError where training would see a single value a channel.
std::unique_ptr<Operation> build_batch_norm(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_relu(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_max_pool(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_global_average_pool(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_linear(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_pad_shortcut(Context& context, const Binding& binding);
std::unique_ptr<Operation> build_dropout(Context& context, const Binding& binding);

/// As Backend::build_loss; leaves its sums where the step's state says.
std::unique_ptr<Loss> build_loss(Context& context, const Buffer& logits, const Buffer* gradient,
                                 const StepInput& step, double label_smoothing);

/// As Backend::make_steps.
std::unique_ptr<DeviceSteps> make_steps(Context& context, const DeviceStepsOptions& options);

/// As Backend::join.
std::unique_ptr<Collective> join_group(Context& context, const GroupOptions& options);

/// As Backend::keep_images.
std::unique_ptr<DeviceImages> keep_images(Context& context, const ImageSet& set);
/// Lines up the making of a batch of kept images: `out`, floats [samples][channels][height][width],
/// zeros from sample `batch` on. `indices` lie on the device.
void line_up_kept(const DeviceImages& images, const int32_t* indices, int64_t epoch, int64_t batch,
                  int64_t samples, float* out, cudaStream_t stream);

/// As Backend::slab_math.
std::unique_ptr<SlabMath> make_slab_math(Context& context);

/// As Backend::make_exchange; `math` outlives it.
std::shared_ptr<DeviceExchange> make_exchange(Context& context, SlabMath& math,
                                              const ParameterArena& arena);

/// What operations have in common.
class CudaOperation : public Operation {
  public:
    CudaOperation(Context& context, const Binding& binding)
        : context_(context), binding_(binding), node_(*binding.node) {}

  protected:
    bool wants_input_gradient() const { return binding_.input_gradients.at(0) != nullptr; }

    Tensor input(size_t index = 0) const { return all_of(*binding_.inputs.at(index)); }
    Tensor output() const { return all_of(*binding_.output); }
    Tensor output_gradient() const { return all_of(*binding_.output_gradients.at(0)); }
    Tensor input_gradient(size_t index = 0) const {
        return all_of(*binding_.input_gradients.at(index));
    }
    Tensor all_of(const Buffer& buffer) const { return tensor_of(buffer, binding_.batch); }

    /// Of the slab as the device sees it.
    const float* parameter(size_t index) const {
        return parameter_in(binding_, context_.on_device(*binding_.parameters), index);
    }
    float* gradient(size_t index) const {
        return parameter_in(binding_, binding_.gradients.at(0), index);
    }

    Context& context_;
    const Binding& binding_;
    const Node& node_;
};

}  // namespace trainer::cuda
