// The loss: its kernels leave gradients in the executor's buffer and sums in the step's state.
#include "engine/cuda/operations.h"

namespace trainer::cuda {

namespace {

class CrossEntropy final : public Loss {
  public:
    CrossEntropy(Context& context, const Buffer& logits, const Buffer* gradient,
                 const StepInput& step, double smoothing)
        : context_(context),
          logits_(logits),
          gradient_(gradient),
          step_(context.step_of(&step)),
          smoothing_(smoothing) {
        check(logits.type == DType::f32, "logits are float");
    }

    LossSums run(Lane&, int64_t) override {
        line_up_loss(logits_.sample<float>(0),
                     gradient_ != nullptr ? gradient_->sample<float>(0) : nullptr, step_.samples,
                     element_count(logits_.shape), step_.labels, smoothing_, step_.constants,
                     step_.sample_losses, step_.sample_hits, step_.sums, context_.stream());
        return {};
    }

  private:
    Context& context_;
    const Buffer& logits_;
    const Buffer* gradient_;  // nullptr for evaluation
    const StepState& step_;
    double smoothing_;
};

}  // namespace

std::unique_ptr<Loss> build_loss(Context& context, const Buffer& logits, const Buffer* gradient,
                                 const StepInput& step, double label_smoothing) {
    return std::make_unique<CrossEntropy>(context, logits, gradient, step, label_smoothing);
}

}  // namespace trainer::cuda
