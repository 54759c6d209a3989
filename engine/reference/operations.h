// The reference backend's operations: plain loops over [channels, height, width], in float or
// double. They are what every other backend is checked against, so they are written to be read.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/backend.h"

namespace trainer::reference {

/// A node's buffers and parameters as arrays of T. All pointers are to one sample's first element,
/// in C, H, W order, or to a tensor as PyTorch lays it out.
template <typename T>
class NodeOperation : public Operation {
  public:
    explicit NodeOperation(const Binding& binding)
        : binding_(binding),
          node_(*binding.node),
          batch_(binding.batch),
          weights_(binding.parameters->slab<T>(slab::weights).data()),
          statistics_(binding.statistics->slab<T>(slab::weights).data()) {}

  protected:
    const T* input(int64_t sample, size_t index = 0) const {
        return binding_.inputs[index]->template sample<T>(sample);
    }
    T* output(int64_t sample) const { return binding_.output->sample<T>(sample); }
    const T* output_gradient(int64_t sample) const {
        return binding_.output_gradients.at(0)->template sample<T>(sample);
    }

    bool wants_input_gradient(size_t index = 0) const {
        return index < binding_.input_gradients.size() && binding_.input_gradients[index];
    }
    T* input_gradient(int64_t sample, size_t index = 0) const {
        return binding_.input_gradients[index]->template sample<T>(sample);
    }

    const T* parameter(size_t index) const { return weights_ + parameter_offset(index); }
    T* parameter_gradient(size_t index) const {
        return reinterpret_cast<T*>(binding_.gradients.at(0)) + parameter_offset(index);
    }
    T* statistic(size_t index) const {
        return statistics_ + binding_.statistics->table()[node_.statistics[index]].offset;
    }

    const Shape& input_shape() const { return binding_.network->node(node_.inputs[0]).shape; }
    /// Elements of one sample's input and output.
    int64_t input_size() const { return element_count(input_shape()); }
    int64_t output_size() const { return element_count(node_.shape); }

    const Binding binding_;
    const Node& node_;
    const int64_t batch_;

  private:
    int64_t parameter_offset(size_t index) const {
        return binding_.parameters->table()[node_.parameters[index]].offset;
    }

    const T* weights_;
    T* statistics_;
};

/// Sum of a[i] * b[i]. Many partial sums, since one alone would run at the latency of an addition.
template <typename T>
T dot(const T* a, const T* b, int64_t count) {
    constexpr int64_t width = 16;
    T partial[width] = {};
    int64_t i = 0;
    for (; i + width <= count; i += width)
        for (int64_t j = 0; j < width; ++j)
            partial[j] += a[i + j] * b[i + j];
    T sum = 0;
    for (; i < count; ++i)
        sum += a[i] * b[i];
    for (const T part : partial)
        sum += part;
    return sum;
}

/// target[i] += factor * source[i].
template <typename T>
void add_scaled(T* target, const T* source, T factor, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        target[i] += factor * source[i];
}

// One builder a kind; each is defined for float and double in the file named after it.

template <typename T>
std::unique_ptr<Operation> build_input(const Binding& binding);
template <typename T>
std::unique_ptr<Operation> build_convolution(const Binding& binding);
/// Throws UsageError where training would see a single value a channel.
template <typename T>
std::unique_ptr<Operation> build_batch_norm(const Binding& binding);
template <typename T>
std::unique_ptr<Operation> build_relu(const Binding& binding);
template <typename T>
std::unique_ptr<Operation> build_max_pool(const Binding& binding);
template <typename T>
std::unique_ptr<Operation> build_global_average_pool(const Binding& binding);
template <typename T>
std::unique_ptr<Operation> build_linear(const Binding& binding);
template <typename T>
std::unique_ptr<Operation> build_pad_shortcut(const Binding& binding);
template <typename T>
std::unique_ptr<Operation> build_dropout(const Binding& binding);

/// As Backend::build_loss.
template <typename T>
std::unique_ptr<Loss> build_loss(const Buffer& logits, const Buffer* gradient,
                                 const StepInput& step, double label_smoothing);

}  // namespace trainer::reference
