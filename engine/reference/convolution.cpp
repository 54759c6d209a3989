// Convolution: out[o, y, x] = bias[o] + sum over i, ky, kx of weight[o, i, ky, kx] *
// in[i, y * stride + ky - padding, x * stride + kx - padding], where outside the image is zero.
#include <utility>

#include "engine/reference/operations.h"

namespace trainer::reference {

namespace {

template <typename T>
class Convolution : public NodeOperation<T> {
  public:
    explicit Convolution(const Binding& binding)
        : NodeOperation<T>(binding),
          in_channels_(this->input_shape()[0]),
          in_height_(this->input_shape()[1]),
          in_width_(this->input_shape()[2]),
          out_channels_(this->node_.shape[0]),
          out_height_(this->node_.shape[1]),
          out_width_(this->node_.shape[2]),
          kernel_(this->node_.kernel),
          stride_(this->node_.stride),
          padding_(this->node_.padding) {
        if (kernel_ == 1 && stride_ == 1 && padding_ == 0) {
            // The same sums over an image of one long row.
            in_width_ *= std::exchange(in_height_, 1);
            out_width_ *= std::exchange(out_height_, 1);
        }
    }

    void forward(Lane&) override {
        const T* weight = this->parameter(0);
        for (int64_t n = 0; n < this->batch_; ++n) {
            const T* in = this->input(n);
            T* out = this->output(n);
            for (int64_t o = 0; o < out_channels_; ++o)
                std::fill_n(out + o * out_plane(), out_plane(),
                            this->node_.has_bias ? this->parameter(1)[o] : T{0});
            for_each_row([&](int64_t w, int64_t to, int64_t from, int64_t count) {
                if (stride_ == 1) {
                    add_scaled(out + to, in + from, weight[w], count);
                } else {
                    for (int64_t x = 0; x < count; ++x)
                        out[to + x] += weight[w] * in[from + x * stride_];
                }
            });
        }
    }

    void backward(Lane&) override {
        T* weight_gradient = this->parameter_gradient(0);
        std::fill_n(weight_gradient, out_channels_ * in_channels_ * kernel_ * kernel_, T{0});
        if (this->node_.has_bias)
            std::fill_n(this->parameter_gradient(1), out_channels_, T{0});
        for (int64_t n = 0; n < this->batch_; ++n) {
            add_weight_gradient(n, weight_gradient);
            if (this->node_.has_bias)
                add_bias_gradient(n, this->parameter_gradient(1));
            if (this->wants_input_gradient())
                write_input_gradient(n);
        }
    }

  private:
    int64_t out_plane() const { return out_height_ * out_width_; }

    void add_weight_gradient(int64_t n, T* weight_gradient) const {
        const T* in = this->input(n);
        const T* gradient = this->output_gradient(n);
        for_each_row([&](int64_t w, int64_t to, int64_t from, int64_t count) {
            weight_gradient[w] += stride_ == 1 ? dot(gradient + to, in + from, count)
                                               : dot(gradient + to, in + from, count, stride_);
        });
    }

    void add_bias_gradient(int64_t n, T* bias_gradient) const {
        const T* gradient = this->output_gradient(n);
        for (int64_t o = 0; o < out_channels_; ++o)
            for (int64_t i = 0; i < out_plane(); ++i)
                bias_gradient[o] += gradient[o * out_plane() + i];
    }

    void write_input_gradient(int64_t n) const {
        const T* weight = this->parameter(0);
        const T* gradient = this->output_gradient(n);
        T* result = this->input_gradient(n);
        std::fill_n(result, this->input_size(), T{0});
        for_each_row([&](int64_t w, int64_t to, int64_t from, int64_t count) {
            if (stride_ == 1) {
                add_scaled(result + from, gradient + to, weight[w], count);
            } else {
                for (int64_t x = 0; x < count; ++x)
                    result[from + x * stride_] += weight[w] * gradient[to + x];
            }
        });
    }

    /// Output positions along an axis of `outputs`, whose window element `tap` falls inside the
    /// `inputs` positions of the image.
    Range inside(int64_t outputs, int64_t inputs, int64_t tap) const {
        const int64_t shift = padding_ - tap;  // position p reads p * stride - shift
        const int64_t first = shift > 0 ? (shift + stride_ - 1) / stride_ : 0;
        const int64_t last = inputs - 1 + shift < 0 ? -1 : (inputs - 1 + shift) / stride_;
        return {first, std::max<int64_t>(0, std::min(last + 1, outputs) - first)};
    }

    /// Calls visit(w, to, from, count) for all terms of the sum: weight element w ties the outputs
    /// to, to + 1, ... to the inputs from, from + stride, ..., count of them, in one row.
    template <typename Visit>
    void for_each_row(Visit visit) const {
        int64_t w = 0;
        for (int64_t o = 0; o < out_channels_; ++o)
            for (int64_t i = 0; i < in_channels_; ++i)
                for (int64_t ky = 0; ky < kernel_; ++ky)
                    for (int64_t kx = 0; kx < kernel_; ++kx, ++w) {
                        const Range rows = inside(out_height_, in_height_, ky);
                        const Range columns = inside(out_width_, in_width_, kx);
                        for (int64_t y = rows.first; y < rows.end(); ++y) {
                            const int64_t in_y = y * stride_ + ky - padding_;
                            const int64_t in_x = columns.first * stride_ + kx - padding_;
                            visit(w, (o * out_height_ + y) * out_width_ + columns.first,
                                  (i * in_height_ + in_y) * in_width_ + in_x, columns.count);
                        }
                    }
    }

    int64_t in_channels_, in_height_, in_width_;
    int64_t out_channels_, out_height_, out_width_;
    int64_t kernel_, stride_, padding_;
};

}  // namespace

template <typename T>
std::unique_ptr<Operation> build_convolution(const Binding& binding) {
    return std::make_unique<Convolution<T>>(binding);
}

template std::unique_ptr<Operation> build_convolution<float>(const Binding&);
template std::unique_ptr<Operation> build_convolution<double>(const Binding&);

}  // namespace trainer::reference
