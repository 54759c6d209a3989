// Softmax cross entropy with label smoothing s over K classes (arXiv 1512.00567, section 7):
// loss = -(1 - s) log p[label] - (s / K) sum over k of log p[k], p = softmax(logits), whose
// gradient is p - target, target = (1 - s) [k is label] + s / K. In double, logits are few.
#include <algorithm>
#include <cmath>
#include <string>

#include "engine/cpu/operations.h"

namespace trainer::cpu {

namespace {

class CrossEntropy final : public Loss {
  public:
    CrossEntropy(const Buffer& logits, const Buffer* gradient, const StepInput& step,
                 double smoothing)
        : logits_(logits),
          gradient_(gradient),
          step_(step),
          classes_(element_count(logits.shape)),
          smoothing_(smoothing) {
        check(logits.type == DType::f32, "logits are float");
    }

    LossSums run(Lane& lane, int64_t mean_over) override {
        check_labels();
        // Of a batch with padding a lane's part is another than the layers had.
        lane.barrier();
        LossSums sums;
        const Range part = lane.part(step_.batch);
        for (int64_t n = part.first; n < part.end(); ++n) {
            const float* const z = logits_.sample<float>(n);
            const int32_t label = step_.labels[n];
            const double log_sum = log_sum_exp(z);
            sums.loss += loss_of(z, label, log_sum);
            count_hits(z, label, sums);
            if (gradient_)
                write_gradient(n, label, log_sum, mean_over);
        }
        return sums;
    }

  private:
    /// Every lane looks at every label: where one is wrong all throw, and none waits for another.
    void check_labels() const {
        for (int64_t n = 0; n < step_.batch; ++n)
            if (step_.labels[n] < 0 || step_.labels[n] >= classes_)
                throw Error("label " + std::to_string(step_.labels[n]) + " for a network of " +
                            std::to_string(classes_) + " classes");
    }

    double log_sum_exp(const float* z) const {
        const auto largest = static_cast<double>(*std::max_element(z, z + classes_));
        double sum = 0;
        for (int64_t k = 0; k < classes_; ++k)
            sum += std::exp(static_cast<double>(z[k]) - largest);
        return largest + std::log(sum);
    }

    double loss_of(const float* z, int32_t label, double log_sum) const {
        const double exact = log_sum - static_cast<double>(z[label]);
        if (smoothing_ == 0)
            return exact;
        double mean = 0;  // of -log p[k] over all classes
        for (int64_t k = 0; k < classes_; ++k)
            mean += (log_sum - static_cast<double>(z[k])) / static_cast<double>(classes_);
        return (1 - smoothing_) * exact + smoothing_ * mean;
    }

    /// Of equal logits the lower class goes first. Where any is NaN the sample counts as wrong.
    void count_hits(const float* z, int32_t label, LossSums& sums) const {
        ++sums.samples;
        if (std::any_of(z, z + classes_, [](float value) { return std::isnan(value); }))
            return;
        int64_t rank = 0;
        for (int64_t k = 0; k < classes_; ++k)
            rank += z[k] > z[label] || (z[k] == z[label] && k < label);
        sums.top1 += rank < 1;
        sums.top5 += rank < 5;
    }

    void write_gradient(int64_t n, int32_t label, double log_sum, int64_t mean_over) const {
        const float* const z = logits_.sample<float>(n);
        float* const result = gradient_->sample<float>(n);
        for (int64_t k = 0; k < classes_; ++k) {
            const double target =
                (k == label ? 1 - smoothing_ : 0) + smoothing_ / static_cast<double>(classes_);
            const double p = std::exp(static_cast<double>(z[k]) - log_sum);
            result[k] = static_cast<float>((p - target) / static_cast<double>(mean_over));
        }
    }

    const Buffer& logits_;
    const Buffer* gradient_;  // nullptr for evaluation
    const StepInput& step_;
    int64_t classes_;
    double smoothing_;
};

}  // namespace

std::unique_ptr<Loss> build_loss(const Buffer& logits, const Buffer* gradient,
                                 const StepInput& step, double label_smoothing) {
    return std::make_unique<CrossEntropy>(logits, gradient, step, label_smoothing);
}

}  // namespace trainer::cpu
