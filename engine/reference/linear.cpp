// Linear layer: y = W x + b with W [out, in], x a sample's [c, h, w] in that order.
#include "engine/reference/operations.h"

namespace trainer::reference {

namespace {

// Rows of W stand in the outer loops, so that a large W is read once a pass and not once a sample.
template <typename T>
class Linear : public NodeOperation<T> {
  public:
    explicit Linear(const Binding& binding)
        : NodeOperation<T>(binding), in_(this->input_size()), out_(this->output_size()) {}

    void forward(Lane&) override {
        for (int64_t o = 0; o < out_; ++o) {
            const T* row = this->parameter(0) + o * in_;
            for (int64_t n = 0; n < this->batch_; ++n)
                this->output(n)[o] = this->parameter(1)[o] + dot(row, this->input(n), in_);
        }
    }

    void backward(Lane&) override {
        if (this->wants_input_gradient())
            for (int64_t n = 0; n < this->batch_; ++n)
                std::fill_n(this->input_gradient(n), in_, T{0});
        for (int64_t o = 0; o < out_; ++o) {
            const T* row = this->parameter(0) + o * in_;
            T* row_gradient = this->parameter_gradient(0) + o * in_;
            T& bias_gradient = this->parameter_gradient(1)[o];
            std::fill_n(row_gradient, in_, T{0});
            bias_gradient = 0;
            for (int64_t n = 0; n < this->batch_; ++n) {
                const T gradient = this->output_gradient(n)[o];
                bias_gradient += gradient;
                add_scaled(row_gradient, this->input(n), gradient, in_);
                if (this->wants_input_gradient())
                    add_scaled(this->input_gradient(n), row, gradient, in_);
            }
        }
    }

  private:
    int64_t in_, out_;
};

}  // namespace

template <typename T>
std::unique_ptr<Operation> build_linear(const Binding& binding) {
    return std::make_unique<Linear<T>>(binding);
}

template std::unique_ptr<Operation> build_linear<float>(const Binding&);
template std::unique_ptr<Operation> build_linear<double>(const Binding&);

}  // namespace trainer::reference
