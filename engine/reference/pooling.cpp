// Max pooling over windows, and average pooling over whole planes.
#include <cmath>
#include <limits>
#include <vector>

#include "engine/reference/operations.h"

namespace trainer::reference {

namespace {

/// Padding never wins. Of equal values the first in row order takes the gradient; a NaN wins, so
/// that it is seen further on. Both as in PyTorch.
template <typename T>
class MaxPool : public NodeOperation<T> {
  public:
    explicit MaxPool(const Binding& binding)
        : NodeOperation<T>(binding),
          winners_(static_cast<size_t>(binding.batch * this->output_size())) {}

    void forward(Lane&) override {
        const Shape& shape = this->node_.shape;
        const int64_t in_plane = this->input_shape()[1] * this->input_shape()[2];
        for (int64_t n = 0; n < this->batch_; ++n) {
            const T* in = this->input(n);
            int64_t at = 0;
            for (int64_t c = 0; c < shape[0]; ++c)
                for (int64_t y = 0; y < shape[1]; ++y)
                    for (int64_t x = 0; x < shape[2]; ++x, ++at) {
                        const int64_t best = c * in_plane + winner(in + c * in_plane, y, x);
                        winners(n)[at] = best;
                        this->output(n)[at] = in[best];
                    }
        }
    }

    void backward(Lane&) override {
        if (!this->wants_input_gradient())
            return;
        for (int64_t n = 0; n < this->batch_; ++n) {
            T* result = this->input_gradient(n);
            std::fill_n(result, this->input_size(), T{0});
            for (int64_t i = 0; i < this->output_size(); ++i)
                result[winners(n)[i]] += this->output_gradient(n)[i];
        }
    }

  private:
    int64_t* winners(int64_t n) { return winners_.data() + n * this->output_size(); }

    /// Index within the plane [height, width] of the largest value in the window of output y, x.
    int64_t winner(const T* plane, int64_t y, int64_t x) const {
        const int64_t height = this->input_shape()[1], width = this->input_shape()[2];
        const int64_t top = y * this->node_.stride - this->node_.padding;
        const int64_t left = x * this->node_.stride - this->node_.padding;
        int64_t best = std::max<int64_t>(top, 0) * width + std::max<int64_t>(left, 0);
        for (int64_t i = std::max<int64_t>(top, 0); i < std::min(top + this->node_.kernel, height);
             ++i)
            for (int64_t j = std::max<int64_t>(left, 0);
                 j < std::min(left + this->node_.kernel, width); ++j) {
                const T value = plane[i * width + j];
                if (value > plane[best] || std::isnan(value))
                    best = i * width + j;
            }
        return best;
    }

    std::vector<int64_t> winners_;  // [batch, output size]: which element of the sample's input
};

template <typename T>
class GlobalAveragePool : public NodeOperation<T> {
  public:
    explicit GlobalAveragePool(const Binding& binding)
        : NodeOperation<T>(binding), plane_(this->input_size() / this->output_size()) {}

    void forward(Lane&) override {
        for (int64_t n = 0; n < this->batch_; ++n)
            for (int64_t c = 0; c < this->output_size(); ++c) {
                double sum = 0;
                for (int64_t i = c * plane_; i < (c + 1) * plane_; ++i)
                    sum += static_cast<double>(this->input(n)[i]);
                this->output(n)[c] = static_cast<T>(sum / static_cast<double>(plane_));
            }
    }

    void backward(Lane&) override {
        if (!this->wants_input_gradient())
            return;
        for (int64_t n = 0; n < this->batch_; ++n)
            for (int64_t c = 0; c < this->output_size(); ++c)
                std::fill_n(this->input_gradient(n) + c * plane_, plane_,
                            this->output_gradient(n)[c] / static_cast<T>(plane_));
    }

  private:
    int64_t plane_;
};

}  // namespace

template <typename T>
std::unique_ptr<Operation> build_max_pool(const Binding& binding) {
    return std::make_unique<MaxPool<T>>(binding);
}

template <typename T>
std::unique_ptr<Operation> build_global_average_pool(const Binding& binding) {
    return std::make_unique<GlobalAveragePool<T>>(binding);
}

template std::unique_ptr<Operation> build_max_pool<float>(const Binding&);
template std::unique_ptr<Operation> build_max_pool<double>(const Binding&);
template std::unique_ptr<Operation> build_global_average_pool<float>(const Binding&);
template std::unique_ptr<Operation> build_global_average_pool<double>(const Binding&);

}  // namespace trainer::reference
