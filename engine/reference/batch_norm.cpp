// Batch normalisation (arXiv 1502.03167), with an optional residual and ReLU:
// y = relu(gamma * (x - mean) / sqrt(var + epsilon) + beta + residual).
#include <cmath>
#include <vector>

#include "engine/reference/operations.h"

namespace trainer::reference {

namespace {

template <typename T>
class BatchNorm : public NodeOperation<T> {
  public:
    explicit BatchNorm(const Binding& binding)
        : NodeOperation<T>(binding),
          channels_(this->node_.shape[0]),
          plane_(this->node_.shape[1] * this->node_.shape[2]),
          has_residual_(this->node_.inputs.size() > 1),
          mean_(static_cast<size_t>(channels_)),
          inverse_std_(static_cast<size_t>(channels_)) {
        if (binding.training && this->batch_ * plane_ < 2)
            throw UsageError(this->node_.name +
                             ": batch norm needs more than one value a channel to train on; take a "
                             "batch of two or more, or larger images");
    }

    void forward(Lane&) override {
        for (int64_t c = 0; c < channels_; ++c) {
            if (this->binding_.training)
                take_batch_statistics(c);
            else
                take_running_statistics(c);
            for (int64_t n = 0; n < this->batch_; ++n)
                normalise(n, c);
        }
    }

    // With g the gradient of what the ReLU took, xhat = (x - mean) * inverse_std and m values a
    // channel: dbeta = sum g, dgamma = sum g * xhat,
    // dx = gamma * inverse_std * (g - dbeta / m - xhat * dgamma / m).
    void backward(Lane&) override {
        for (int64_t c = 0; c < channels_; ++c) {
            double sum = 0, sum_xhat = 0;
            for (int64_t n = 0; n < this->batch_; ++n)
                for (int64_t i = c * plane_; i < (c + 1) * plane_; ++i) {
                    const T g = masked_gradient(n, i);
                    sum += static_cast<double>(g);
                    sum_xhat += static_cast<double>(g * xhat(n, i, c));
                }
            this->parameter_gradient(0)[c] = static_cast<T>(sum_xhat);
            this->parameter_gradient(1)[c] = static_cast<T>(sum);
            for (int64_t n = 0; n < this->batch_; ++n)
                write_input_gradients(n, c, static_cast<T>(sum / count()),
                                      static_cast<T>(sum_xhat / count()));
        }
    }

  private:
    double count() const { return static_cast<double>(this->batch_ * plane_); }

    T& mean(int64_t c) { return mean_[static_cast<size_t>(c)]; }
    T& inverse_std(int64_t c) { return inverse_std_[static_cast<size_t>(c)]; }
    T xhat(int64_t n, int64_t i, int64_t c) {
        return (this->input(n)[i] - mean(c)) * inverse_std(c);
    }

    T masked_gradient(int64_t n, int64_t i) const {
        return this->node_.relu && this->output(n)[i] <= 0 ? T{0} : this->output_gradient(n)[i];
    }

    void set_statistics(int64_t c, double new_mean, double variance) {
        mean(c) = static_cast<T>(new_mean);
        inverse_std(c) = static_cast<T>(1 / std::sqrt(variance + this->node_.epsilon));
    }

    void take_running_statistics(int64_t c) {
        set_statistics(c, static_cast<double>(this->statistic(0)[c]),
                       static_cast<double>(this->statistic(1)[c]));
    }

    /// Normalises with the biased variance, and as PyTorch keeps the unbiased one running.
    void take_batch_statistics(int64_t c) {
        double sum = 0, squares = 0;
        for_each_value(c, [&](double x) { sum += x; });
        const double batch_mean = sum / count();
        for_each_value(c, [&](double x) { squares += (x - batch_mean) * (x - batch_mean); });
        set_statistics(c, batch_mean, squares / count());
        update_running(this->statistic(0)[c], batch_mean);
        update_running(this->statistic(1)[c], squares / (count() - 1));
    }

    void update_running(T& running, double value) const {
        const double momentum = this->node_.momentum;
        running = static_cast<T>((1 - momentum) * static_cast<double>(running) + momentum * value);
    }

    template <typename Visit>
    void for_each_value(int64_t c, Visit visit) const {
        for (int64_t n = 0; n < this->batch_; ++n) {
            const T* x = this->input(n) + c * plane_;
            for (int64_t i = 0; i < plane_; ++i)
                visit(static_cast<double>(x[i]));
        }
    }

    void normalise(int64_t n, int64_t c) {
        const T gamma = this->parameter(0)[c], beta = this->parameter(1)[c];
        const T* residual = has_residual_ ? this->input(n, 1) : nullptr;
        T* y = this->output(n);
        for (int64_t i = c * plane_; i < (c + 1) * plane_; ++i) {
            T value = gamma * xhat(n, i, c) + beta;
            if (residual)
                value += residual[i];
            y[i] = this->node_.relu && value < 0 ? T{0} : value;  // a NaN stays one
        }
    }

    void write_input_gradients(int64_t n, int64_t c, T mean_g, T mean_g_xhat) {
        const T scale = this->parameter(0)[c] * inverse_std(c);
        T* dx = this->wants_input_gradient(0) ? this->input_gradient(n, 0) : nullptr;
        T* dresidual = this->wants_input_gradient(1) ? this->input_gradient(n, 1) : nullptr;
        for (int64_t i = c * plane_; i < (c + 1) * plane_; ++i) {
            const T g = masked_gradient(n, i);
            if (dx)
                dx[i] = scale * (g - mean_g - xhat(n, i, c) * mean_g_xhat);
            if (dresidual)
                dresidual[i] = g;
        }
    }

    int64_t channels_, plane_;
    bool has_residual_;
    std::vector<T> mean_, inverse_std_;  // [channels], of the last forward pass
};

}  // namespace

template <typename T>
std::unique_ptr<Operation> build_batch_norm(const Binding& binding) {
    return std::make_unique<BatchNorm<T>>(binding);
}

template std::unique_ptr<Operation> build_batch_norm<float>(const Binding&);
template std::unique_ptr<Operation> build_batch_norm<double>(const Binding&);

}  // namespace trainer::reference
