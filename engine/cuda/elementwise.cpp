// Operations whose outputs depend on one input element each: input, ReLU, padded shortcut, dropout.
#include "engine/cuda/operations.h"

namespace trainer::cuda {

namespace {

/// Takes the step's images over, from where the step has left them on the device.
class Input final : public CudaOperation {
  public:
    using CudaOperation::CudaOperation;
    void forward(Lane&) override {
        line_up_input(context_.step_of(binding_.step).constants, output(), context_.stream());
    }
    void backward(Lane&) override {}
};

class Relu final : public CudaOperation {
  public:
    using CudaOperation::CudaOperation;
    void forward(Lane&) override { line_up_relu(input(), output(), context_.stream()); }
    void backward(Lane&) override {
        if (wants_input_gradient())
            line_up_relu_gradient(output(), output_gradient(), input_gradient(), context_.stream());
    }
};

/// The parameterless shortcut (option A) of He et al., arXiv 1512.03385.
class PadShortcut final : public CudaOperation {
  public:
    using CudaOperation::CudaOperation;
    void forward(Lane&) override {
        line_up_shortcut(input(), output(), node_.stride, context_.stream());
    }
    void backward(Lane&) override {
        if (wants_input_gradient())
            line_up_shortcut_gradient(output_gradient(), input_gradient(), node_.stride,
                                      context_.stream());
    }
};

/// In training zeroes each element with probability `drop` and scales the others by
/// 1 / (1 - drop) (arXiv 1207.0580, scaled at training time); a copy in inference. The mask is a
/// pure function of seed, step, sample and node, drawn again in backward.
class Dropout final : public CudaOperation {
  public:
    Dropout(Context& context, const Binding& binding)
        : CudaOperation(context, binding),
          index_(static_cast<uint64_t>(binding.node - binding.network->nodes().data())),
          drop_(binding.training ? node_.drop : 0) {}

    void forward(Lane&) override { mask(input(), output()); }
    void backward(Lane&) override {
        if (wants_input_gradient())
            mask(output_gradient(), input_gradient());
    }

  private:
    void mask(const Tensor& from, const Tensor& to) const {
        line_up_dropout(from, to, context_.step_of(binding_.step).constants, index_, drop_,
                        context_.stream());
    }

    uint64_t index_;  // of the node in its network
    double drop_;
};

}  // namespace

std::unique_ptr<Operation> build_input(Context& context, const Binding& binding) {
    return std::make_unique<Input>(context, binding);
}
std::unique_ptr<Operation> build_relu(Context& context, const Binding& binding) {
    return std::make_unique<Relu>(context, binding);
}
std::unique_ptr<Operation> build_pad_shortcut(Context& context, const Binding& binding) {
    return std::make_unique<PadShortcut>(context, binding);
}
std::unique_ptr<Operation> build_dropout(Context& context, const Binding& binding) {
    return std::make_unique<Dropout>(context, binding);
}

}  // namespace trainer::cuda
