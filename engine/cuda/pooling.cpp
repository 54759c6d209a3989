// Max pooling over windows, and average pooling over whole planes.
#include "engine/cuda/operations.h"

namespace trainer::cuda {

namespace {

class MaxPool final : public CudaOperation {
  public:
    MaxPool(Context& context, const Binding& binding)
        : CudaOperation(context, binding),
          window_{node_.kernel, node_.stride, node_.padding},
          winners_(
              context.allocate(binding.training ? static_cast<size_t>(output().elements()) : 0)) {
        if (node_.kernel > 15)
            throw UsageError(node_.name + ": the CUDA engine pools windows of up to 15 pixels");
    }

    void forward(Lane&) override {
        line_up_max_pool(input(), output(), window_, winners(), context_.stream());
    }
    void backward(Lane&) override {
        if (wants_input_gradient())
            line_up_max_pool_gradient(output_gradient(), winners(), input_gradient(), window_,
                                      context_.stream());
    }

  private:
    uint8_t* winners() const { return reinterpret_cast<uint8_t*>(winners_.data.get()); }

    Window window_;
    Memory winners_;  // [batch][row][column][channel]: which pixel of its window
};

class GlobalAveragePool final : public CudaOperation {
  public:
    using CudaOperation::CudaOperation;
    void forward(Lane&) override { line_up_average_pool(input(), output(), context_.stream()); }
    void backward(Lane&) override {
        if (wants_input_gradient())
            line_up_average_pool_gradient(output_gradient(), input_gradient(), context_.stream());
    }
};

}  // namespace

std::unique_ptr<Operation> build_max_pool(Context& context, const Binding& binding) {
    return std::make_unique<MaxPool>(context, binding);
}
std::unique_ptr<Operation> build_global_average_pool(Context& context, const Binding& binding) {
    return std::make_unique<GlobalAveragePool>(context, binding);
}

}  // namespace trainer::cuda
