// Softmax cross entropy with label smoothing s over K classes (arXiv 1512.00567, section 7):
// loss = -(1 - s) log p[label] - (s / K) sum over k of log p[k], p = softmax(logits), whose
// gradient is p - target, target = (1 - s) [k is label] + s / K.
#include <algorithm>
#include <cmath>

#include "engine/reference/operations.h"

namespace trainer::reference {

namespace {

template <typename T>
class CrossEntropy : public Loss {
  public:
    CrossEntropy(const Buffer& logits, const Buffer* gradient, const StepInput& step,
                 double smoothing)
        : logits_(logits),
          gradient_(gradient),
          step_(step),
          classes_(element_count(logits.shape)),
          smoothing_(smoothing) {}

    LossSums run(Lane&, int64_t mean_over) override {
        LossSums sums;
        for (int64_t n = 0; n < step_.batch; ++n) {
            const T* z = logits_.sample<T>(n);
            const int32_t label = step_.labels[n];
            if (label < 0 || label >= classes_)
                throw Error("label " + std::to_string(label) + " for a network of " +
                            std::to_string(classes_) + " classes");
            const double log_sum = log_sum_exp(z);
            sums.loss += loss_of(z, label, log_sum);
            count_hits(z, label, sums);
            if (gradient_)
                write_gradient(n, label, log_sum, mean_over);
        }
        return sums;
    }

  private:
    double log_sum_exp(const T* z) const {
        const double largest = static_cast<double>(*std::max_element(z, z + classes_));
        double sum = 0;
        for (int64_t k = 0; k < classes_; ++k)
            sum += std::exp(static_cast<double>(z[k]) - largest);
        return largest + std::log(sum);
    }

    double loss_of(const T* z, int32_t label, double log_sum) const {
        double mean = 0;  // of -log p[k] over all classes
        for (int64_t k = 0; k < classes_; ++k)
            mean += (log_sum - static_cast<double>(z[k])) / static_cast<double>(classes_);
        const double exact = log_sum - static_cast<double>(z[label]);
        return smoothing_ == 0 ? exact : (1 - smoothing_) * exact + smoothing_ * mean;
    }

    /// Of equal logits the lower class goes first. Where any is NaN the sample counts as wrong.
    void count_hits(const T* z, int32_t label, LossSums& sums) const {
        ++sums.samples;
        if (std::any_of(z, z + classes_, [](T value) { return std::isnan(value); }))
            return;
        int64_t rank = 0;
        for (int64_t k = 0; k < classes_; ++k)
            rank += z[k] > z[label] || (z[k] == z[label] && k < label);
        sums.top1 += rank < 1;
        sums.top5 += rank < 5;
    }

    void write_gradient(int64_t n, int32_t label, double log_sum, int64_t mean_over) const {
        const T* z = logits_.sample<T>(n);
        T* result = gradient_->sample<T>(n);
        for (int64_t k = 0; k < classes_; ++k) {
            const double target =
                (k == label ? 1 - smoothing_ : 0) + smoothing_ / static_cast<double>(classes_);
            const double p = std::exp(static_cast<double>(z[k]) - log_sum);
            result[k] = static_cast<T>((p - target) / static_cast<double>(mean_over));
        }
    }

    const Buffer& logits_;
    const Buffer* gradient_;  // nullptr for evaluation
    const StepInput& step_;
    int64_t classes_;
    double smoothing_;
};

}  // namespace

template <typename T>
std::unique_ptr<Loss> build_loss(const Buffer& logits, const Buffer* gradient,
                                 const StepInput& step, double label_smoothing) {
    return std::make_unique<CrossEntropy<T>>(logits, gradient, step, label_smoothing);
}

template std::unique_ptr<Loss> build_loss<float>(const Buffer&, const Buffer*, const StepInput&,
                                                 double);
template std::unique_ptr<Loss> build_loss<double>(const Buffer&, const Buffer*, const StepInput&,
                                                  double);

}  // namespace trainer::reference
