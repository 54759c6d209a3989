// Operations whose outputs depend on one input element each: input, ReLU, padded shortcut, dropout.
#include "engine/random.h"
#include "engine/reference/operations.h"

namespace trainer::reference {

namespace {

/// Takes the step's images over: float to T.
template <typename T>
class Input : public NodeOperation<T> {
  public:
    using NodeOperation<T>::NodeOperation;

    void forward(Lane&) override {
        const int64_t size = this->output_size();
        for (int64_t n = 0; n < this->batch_; ++n)
            std::copy_n(this->binding_.step->images + n * size, size, this->output(n));
    }
    void backward(Lane&) override {}
};

template <typename T>
class Relu : public NodeOperation<T> {
  public:
    using NodeOperation<T>::NodeOperation;

    void forward(Lane&) override {
        for (int64_t n = 0; n < this->batch_; ++n)
            for (int64_t i = 0; i < this->output_size(); ++i) {
                const T x = this->input(n)[i];
                this->output(n)[i] = x < 0 ? T{0} : x;  // a NaN stays one
            }
    }

    void backward(Lane&) override {
        if (!this->wants_input_gradient())
            return;
        for (int64_t n = 0; n < this->batch_; ++n)
            for (int64_t i = 0; i < this->output_size(); ++i)
                this->input_gradient(n)[i] =
                    this->output(n)[i] <= 0 ? T{0} : this->output_gradient(n)[i];
    }
};

/// The parameterless shortcut (option A) of He et al., arXiv 1512.03385: every stride-th row and
/// column of the input; the channels that the output has more, behind the others, are zero.
template <typename T>
class PadShortcut : public NodeOperation<T> {
  public:
    using NodeOperation<T>::NodeOperation;

    void forward(Lane&) override {
        for (int64_t n = 0; n < this->batch_; ++n) {
            std::fill_n(this->output(n), this->output_size(), T{0});
            for_each_pair(
                [&](int64_t to, int64_t from) { this->output(n)[to] = this->input(n)[from]; });
        }
    }

    void backward(Lane&) override {
        if (!this->wants_input_gradient())
            return;
        for (int64_t n = 0; n < this->batch_; ++n) {
            std::fill_n(this->input_gradient(n), this->input_size(), T{0});
            for_each_pair([&](int64_t to, int64_t from) {
                this->input_gradient(n)[from] = this->output_gradient(n)[to];
            });
        }
    }

  private:
    /// Calls visit(output element, the input element it copies).
    template <typename Visit>
    void for_each_pair(Visit visit) const {
        const Shape& in = this->input_shape();
        const Shape& out = this->node_.shape;
        for (int64_t c = 0; c < in[0]; ++c)
            for (int64_t y = 0; y < out[1]; ++y)
                for (int64_t x = 0; x < out[2]; ++x)
                    visit((c * out[1] + y) * out[2] + x,
                          (c * in[1] + y * this->node_.stride) * in[2] + x * this->node_.stride);
    }
};

/// In training zeroes each element with probability `drop` and scales the others by
/// 1 / (1 - drop) (arXiv 1207.0580, scaled at training time); a copy in inference. The mask is a
/// pure function of seed, step, sample and node, drawn again in backward.
template <typename T>
class Dropout : public NodeOperation<T> {
  public:
    explicit Dropout(const Binding& binding)
        : NodeOperation<T>(binding),
          index_(static_cast<uint64_t>(binding.node - binding.network->nodes().data())) {}

    void forward(Lane&) override {
        for (int64_t n = 0; n < this->batch_; ++n) {
            if (this->binding_.training)
                mask(n, this->input(n), this->output(n));
            else
                std::copy_n(this->input(n), this->output_size(), this->output(n));
        }
    }

    void backward(Lane&) override {
        if (!this->wants_input_gradient())
            return;
        for (int64_t n = 0; n < this->batch_; ++n)
            mask(n, this->output_gradient(n), this->input_gradient(n));
    }

  private:
    void mask(int64_t n, const T* from, T* to) const {
        const StepInput& step = *this->binding_.step;
        Random random{step.seed, static_cast<uint64_t>(RandomPurpose::dropout),
                      static_cast<uint64_t>(step.step),
                      static_cast<uint64_t>(step.first_sample + n), index_};
        const double drop = this->node_.drop;
        const T scale = static_cast<T>(1 / (1 - drop));
        for (int64_t i = 0; i < this->output_size(); ++i)
            to[i] = random.uniform() < drop ? T{0} : from[i] * scale;
    }

    uint64_t index_;  // of the node in its network
};

}  // namespace

template <typename T>
std::unique_ptr<Operation> build_input(const Binding& binding) {
    return std::make_unique<Input<T>>(binding);
}

template <typename T>
std::unique_ptr<Operation> build_relu(const Binding& binding) {
    return std::make_unique<Relu<T>>(binding);
}

template <typename T>
std::unique_ptr<Operation> build_pad_shortcut(const Binding& binding) {
    return std::make_unique<PadShortcut<T>>(binding);
}

template <typename T>
std::unique_ptr<Operation> build_dropout(const Binding& binding) {
    return std::make_unique<Dropout<T>>(binding);
}

template std::unique_ptr<Operation> build_input<float>(const Binding&);
template std::unique_ptr<Operation> build_input<double>(const Binding&);
template std::unique_ptr<Operation> build_relu<float>(const Binding&);
template std::unique_ptr<Operation> build_relu<double>(const Binding&);
template std::unique_ptr<Operation> build_pad_shortcut<float>(const Binding&);
template std::unique_ptr<Operation> build_pad_shortcut<double>(const Binding&);
template std::unique_ptr<Operation> build_dropout<float>(const Binding&);
template std::unique_ptr<Operation> build_dropout<double>(const Binding&);

}  // namespace trainer::reference
