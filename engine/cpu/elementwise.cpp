// Operations whose outputs depend on one input element each: input, ReLU, padded shortcut,
// dropout; and the sum of two activations.
#include <cstring>

#include "engine/cpu/operations.h"
#include "engine/random.h"

namespace trainer::cpu {

namespace {

// Elements of one sample as stored.
template <typename T>
int64_t stored_elements(const Buffer& buffer) {
    return buffer.sample_bytes / static_cast<int64_t>(sizeof(T));
}

/// Takes the step's images over: nothing is moved where they lie as the readers want them.
template <typename T, int B>
class Input final : public PlainOperation {
  public:
    using PlainOperation::PlainOperation;

    void forward(Lane& lane) override {
        Buffer& output = *binding_.output;
        const bool blocked = is_blocked(context_, output);
        if (!blocked && output.type == DType::f32) {
            if (lane.index() == 0)
                output.data =
                    reinterpret_cast<std::byte*>(const_cast<float*>(binding_.step->images));
            lane.barrier();
            return;
        }
        const int64_t size = element_count(node_.shape);
        const Range part = samples(lane);
        for (int64_t n = part.first; n < part.end(); ++n) {
            const float* const from = binding_.step->images + n * size;
            if (blocked)
                block_channels(from, output.sample<T>(n));
            else
                for (int64_t i = 0; i < size; ++i)
                    assign(output.sample<T>(n)[i], from[i]);
        }
    }

    void backward(Lane&) override {}

  private:
    void block_channels(const float* from, T* to) const {
        const int64_t positions = node_.shape[1] * node_.shape[2];
        std::memset(to, 0, static_cast<size_t>(binding_.output->sample_bytes));
        for (int64_t c = 0; c < node_.shape[0]; ++c)
            for (int64_t i = 0; i < positions; ++i)
                assign(to[(c / B * positions + i) * B + c % B], from[c * positions + i]);
    }
};

template <typename T>
class Relu final : public PlainOperation {
  public:
    using PlainOperation::PlainOperation;

    void forward(Lane& lane) override {
        const Range part = samples(lane);
        const T* const x = binding_.inputs[0]->sample<T>(part.first);
        T* const y = binding_.output->sample<T>(part.first);
        const int64_t count = part.count * stored_elements<T>(*binding_.output);
        for (int64_t i = 0; i < count; ++i) {
            const float value = to_float(x[i]);
            assign(y[i], value < 0 ? 0.0f : value);  // a NaN stays one
        }
    }

    void backward(Lane& lane) override {
        if (!wants_input_gradient())
            return;
        const Range part = samples(lane);
        const T* const y = binding_.output->sample<T>(part.first);
        const T* const dy = binding_.output_gradients[0]->sample<T>(part.first);
        T* const dx = binding_.input_gradients[0]->sample<T>(part.first);
        const int64_t count = part.count * stored_elements<T>(*binding_.output);
        for (int64_t i = 0; i < count; ++i)
            assign(dx[i], to_float(y[i]) <= 0 ? 0.0f : to_float(dy[i]));
    }
};

/// The parameterless shortcut (option A) of He et al., arXiv 1512.03385: every stride-th row and
/// column of the input; the channels that the output has more, behind the others, are zero.
template <typename T, int B>
class PadShortcut final : public PlainOperation {
  public:
    PadShortcut(Context& context, const Binding& binding)
        : PlainOperation(context, binding), in_(binding.inputs[0]->shape) {}

    void forward(Lane& lane) override {
        const Range part = samples(lane);
        const auto block_bytes = static_cast<size_t>(out_plane() * B) * sizeof(T);
        for (int64_t n = part.first; n < part.end(); ++n)
            for (int64_t b = 0; b < binding_.output->channels / B; ++b) {
                T* const to = binding_.output->sample<T>(n) + b * out_plane() * B;
                if (b * B >= in_[0])
                    std::memset(to, 0, block_bytes);
                else
                    gather(binding_.inputs[0]->sample<T>(n) + b * in_plane() * B, to);
            }
    }

    void backward(Lane& lane) override {
        if (!wants_input_gradient())
            return;
        const Range part = samples(lane);
        const Buffer& gradient = *binding_.input_gradients[0];
        for (int64_t n = part.first; n < part.end(); ++n) {
            if (node_.stride > 1)
                std::memset(gradient.sample<T>(n), 0, static_cast<size_t>(gradient.sample_bytes));
            for (int64_t b = 0; b < gradient.channels / B; ++b)
                spread(binding_.output_gradients[0]->sample<T>(n) + b * out_plane() * B,
                       std::min<int64_t>(B, in_[0] - b * B),
                       gradient.sample<T>(n) + b * in_plane() * B);
        }
    }

  private:
    int64_t in_plane() const { return in_[1] * in_[2]; }
    int64_t out_plane() const { return node_.shape[1] * node_.shape[2]; }
    /// Element of the input's block that element 0 of an output position copies.
    int64_t source(int64_t row, int64_t column) const {
        return (row * in_[2] + column) * node_.stride * B;
    }

    void gather(const T* x, T* y) const {
        for (int64_t row = 0; row < node_.shape[1]; ++row)
            for (int64_t column = 0; column < node_.shape[2]; ++column, y += B)
                std::memcpy(y, x + source(row, column), sizeof(T) * B);
    }

    /// The first `channels` of each position: behind them the input has its padding.
    void spread(const T* dy, int64_t channels, T* dx) const {
        for (int64_t row = 0; row < node_.shape[1]; ++row)
            for (int64_t column = 0; column < node_.shape[2]; ++column, dy += B) {
                T kept[B] = {};
                for (int64_t j = 0; j < B; ++j)
                    kept[j] = j < channels ? dy[j] : T{};
                std::memcpy(dx + source(row, column), kept, sizeof kept);
            }
    }

    const Shape in_;
};

/// In training zeroes each element with probability `drop` and scales the others by
/// 1 / (1 - drop) (arXiv 1207.0580, scaled at training time); a copy in inference. The mask is a
/// pure function of seed, step, sample and node, drawn in C, H, W order.
template <typename T>
class Dropout final : public PlainOperation {
  public:
    Dropout(Context& context, const Binding& binding)
        : PlainOperation(context, binding),
          index_(static_cast<uint64_t>(binding.node - binding.network->nodes().data())),
          block_(node_.shape.size() == 3 ? context.block : 1),
          stored_(stored_elements<T>(*binding.output)),
          kept_(static_cast<size_t>(binding.training ? binding.batch * stored_ : 0)) {}

    void forward(Lane& lane) override {
        const Range part = samples(lane);
        if (!binding_.training) {
            std::memcpy(binding_.output->sample<T>(part.first),
                        binding_.inputs[0]->sample<T>(part.first),
                        static_cast<size_t>(part.count * binding_.output->sample_bytes));
            return;
        }
        for (int64_t n = part.first; n < part.end(); ++n) {
            draw(n);
            apply(n, *binding_.inputs[0], *binding_.output);
        }
    }

    void backward(Lane& lane) override {
        if (!wants_input_gradient())
            return;
        const Range part = samples(lane);
        for (int64_t n = part.first; n < part.end(); ++n)
            apply(n, *binding_.output_gradients[0], *binding_.input_gradients[0]);
    }

  private:
    void draw(int64_t n) {
        const StepInput& step = *binding_.step;
        Random random{step.seed, static_cast<uint64_t>(RandomPurpose::dropout),
                      static_cast<uint64_t>(step.step),
                      static_cast<uint64_t>(step.first_sample + n), index_};
        uint8_t* const kept = kept_.data() + n * stored_;
        const int64_t positions = element_count(node_.shape) / node_.shape[0];
        for (int64_t c = 0; c < node_.shape[0]; ++c)
            for (int64_t i = 0; i < positions; ++i)
                kept[(c / block_ * positions + i) * block_ + c % block_] =
                    random.uniform() >= node_.drop;
    }

    void apply(int64_t n, const Buffer& from, const Buffer& to) const {
        const uint8_t* const kept = kept_.data() + n * stored_;
        const T* const x = from.sample<T>(n);
        T* const y = to.sample<T>(n);
        const auto scale = static_cast<float>(1 / (1 - node_.drop));
        for (int64_t i = 0; i < stored_; ++i)
            assign(y[i], kept[i] ? to_float(x[i]) * scale : 0.0f);
    }

    uint64_t index_;  // of the node in its network
    int64_t block_, stored_;
    std::vector<uint8_t> kept_;  // [batch, stored elements]; 0 in the padding
};

template <typename T>
void add(const T* source, T* target, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        assign(target[i], to_float(target[i]) + to_float(source[i]));
}

}  // namespace

std::unique_ptr<Operation> build_input(Context& context, const Binding& binding) {
    return for_element_and_block(context, [&]<typename T, int B>() -> std::unique_ptr<Operation> {
        return std::make_unique<Input<T, B>>(context, binding);
    });
}

std::unique_ptr<Operation> build_relu(Context& context, const Binding& binding) {
    if (context.precision == Precision::bf16)
        return std::make_unique<Relu<Bf16>>(context, binding);
    return std::make_unique<Relu<float>>(context, binding);
}

std::unique_ptr<Operation> build_pad_shortcut(Context& context, const Binding& binding) {
    return for_element_and_block(context, [&]<typename T, int B>() -> std::unique_ptr<Operation> {
        return std::make_unique<PadShortcut<T, B>>(context, binding);
    });
}

std::unique_ptr<Operation> build_dropout(Context& context, const Binding& binding) {
    if (context.precision == Precision::bf16)
        return std::make_unique<Dropout<Bf16>>(context, binding);
    return std::make_unique<Dropout<float>>(context, binding);
}

void add_activations(Lane& lane, const Buffer& source, const Buffer& target, int64_t batch) {
    const Range part = lane.part(batch);
    const int64_t elements =
        part.count * target.sample_bytes / static_cast<int64_t>(size_of(target.type));
    if (target.type == DType::bf16)
        add(source.sample<Bf16>(part.first), target.sample<Bf16>(part.first), elements);
    else
        add(source.sample<float>(part.first), target.sample<float>(part.first), elements);
}

}  // namespace trainer::cpu
