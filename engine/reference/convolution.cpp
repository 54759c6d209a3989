// Convolution: out[o, y, x] = bias[o] + sum over i, ky, kx of weight[o, i, ky, kx] *
// in[i, y * stride + ky - padding, x * stride + kx - padding], where outside the image is zero.
//
// With patch(p) the values under the window at output position p, in the order of weight[o], that
// is: out[o, p] = bias[o] + weight[o] . patch(p), dweight[o] = sum over p of dout[o, p] * patch(p),
// dpatch(p) = sum over o of dout[o, p] * weight[o].
#include <vector>

#include "engine/reference/operations.h"

namespace trainer::reference {

namespace {

// Patches are made a few at a time, so that a row of weights is read once for all of them.
constexpr int64_t tile = 16;

template <typename T>
class Convolution : public NodeOperation<T> {
  public:
    explicit Convolution(const Binding& binding)
        : NodeOperation<T>(binding),
          plane_(this->node_.shape[1] * this->node_.shape[2]),
          out_channels_(this->node_.shape[0]),
          patch_size_(this->input_shape()[0] * this->node_.kernel * this->node_.kernel),
          patches_(static_cast<size_t>(tile * patch_size_)),
          patch_gradients_(binding.training ? patches_.size() : 0) {}

    void forward(Lane&) override {
        for_each_tile([this](Range positions) {
            gather(positions);
            for (int64_t o = 0; o < out_channels_; ++o) {
                const T* weight = this->parameter(0) + o * patch_size_;
                const T bias = this->node_.has_bias ? this->parameter(1)[o] : T{0};
                for (int64_t j = 0; j < positions.count; ++j)
                    this->output(sample_of(positions.first + j))[at(o, positions.first + j)] =
                        bias + dot(weight, patch(j), patch_size_);
            }
        });
    }

    void backward(Lane&) override {
        std::fill_n(this->parameter_gradient(0), out_channels_ * patch_size_, T{0});
        if (this->node_.has_bias)
            std::fill_n(this->parameter_gradient(1), out_channels_, T{0});
        if (this->wants_input_gradient())
            for (int64_t n = 0; n < this->batch_; ++n)
                std::fill_n(this->input_gradient(n), this->input_size(), T{0});
        for_each_tile([this](Range positions) {
            gather(positions);
            add_parameter_gradients(positions);
            if (this->wants_input_gradient())
                add_input_gradients(positions);
        });
    }

  private:
    // A position counts the output pixels of all samples: [batch, height, width].
    int64_t sample_of(int64_t position) const { return position / plane_; }
    int64_t at(int64_t channel, int64_t position) const {
        return channel * plane_ + position % plane_;
    }
    T gradient(int64_t channel, int64_t position) const {
        return this->output_gradient(sample_of(position))[at(channel, position)];
    }

    T* patch(int64_t j) { return patches_.data() + j * patch_size_; }
    T* patch_gradient(int64_t j) { return patch_gradients_.data() + j * patch_size_; }

    template <typename Visit>
    void for_each_tile(Visit visit) const {
        const int64_t positions = this->batch_ * plane_;
        for (int64_t first = 0; first < positions; first += tile)
            visit(Range{first, std::min(tile, positions - first)});
    }

    /// Calls visit(to, from, count) for each run of a patch that lies within the image: its
    /// elements to, to + 1, ... are those from, from + 1, ... of the sample's input.
    template <typename Visit>
    void for_each_run(int64_t position, Visit visit) const {
        const Shape& in = this->input_shape();
        const int64_t k = this->node_.kernel, width = this->node_.shape[2];
        const int64_t pixel = position % plane_;
        const int64_t top = pixel / width * this->node_.stride - this->node_.padding;
        const int64_t left = pixel % width * this->node_.stride - this->node_.padding;
        const int64_t first = std::max<int64_t>(0, -left), end = std::min(k, in[2] - left);
        if (first >= end)
            return;
        for (int64_t i = 0; i < in[0]; ++i)
            for (int64_t ky = std::max<int64_t>(0, -top); ky < std::min(k, in[1] - top); ++ky)
                visit((i * k + ky) * k + first, (i * in[1] + top + ky) * in[2] + left + first,
                      end - first);
    }

    void gather(Range positions) {
        std::fill(patches_.begin(), patches_.end(), T{0});
        for (int64_t j = 0; j < positions.count; ++j) {
            const T* in = this->input(sample_of(positions.first + j));
            T* target = patch(j);
            for_each_run(positions.first + j, [&](int64_t to, int64_t from, int64_t count) {
                for (int64_t x = 0; x < count; ++x)
                    target[to + x] = in[from + x];
            });
        }
    }

    void add_parameter_gradients(Range positions) {
        for (int64_t o = 0; o < out_channels_; ++o)
            for (int64_t j = 0; j < positions.count; ++j) {
                const T g = gradient(o, positions.first + j);
                add_scaled(this->parameter_gradient(0) + o * patch_size_, patch(j), g, patch_size_);
                if (this->node_.has_bias)
                    this->parameter_gradient(1)[o] += g;
            }
    }

    void add_input_gradients(Range positions) {
        std::fill(patch_gradients_.begin(), patch_gradients_.end(), T{0});
        for (int64_t o = 0; o < out_channels_; ++o)
            for (int64_t j = 0; j < positions.count; ++j)
                add_scaled(patch_gradient(j), this->parameter(0) + o * patch_size_,
                           gradient(o, positions.first + j), patch_size_);
        for (int64_t j = 0; j < positions.count; ++j) {
            T* result = this->input_gradient(sample_of(positions.first + j));
            const T* source = patch_gradient(j);
            for_each_run(positions.first + j, [&](int64_t to, int64_t from, int64_t count) {
                for (int64_t x = 0; x < count; ++x)
                    result[from + x] += source[to + x];
            });
        }
    }

    int64_t plane_;  // output pixels of a sample
    int64_t out_channels_;
    int64_t patch_size_;                        // in_channels * kernel * kernel
    std::vector<T> patches_, patch_gradients_;  // [tile, patch_size]
};

}  // namespace

template <typename T>
std::unique_ptr<Operation> build_convolution(const Binding& binding) {
    return std::make_unique<Convolution<T>>(binding);
}

template std::unique_ptr<Operation> build_convolution<float>(const Binding&);
template std::unique_ptr<Operation> build_convolution<double>(const Binding&);

}  // namespace trainer::reference
