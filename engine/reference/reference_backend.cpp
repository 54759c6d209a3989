// The reference backend: one lane, NCHW, nothing fused, nothing clever.
#include "engine/reference/operations.h"

namespace trainer {

namespace {

template <typename T>
class ReferenceBackend : public Backend {
  public:
    std::string description() const override {
        return sizeof(T) == 8 ? "reference loops, double" : "reference loops, float";
    }
    DType parameter_type() const override { return sizeof(T) == 8 ? DType::f64 : DType::f32; }
    Memory allocate(size_t bytes) override { return allocate_host(bytes); }
    LaneTeam& lanes() override { return lanes_; }

    Buffer layout(const Network&, const Node& node) const override {
        return {.data = nullptr,
                .shape = node.shape,
                .type = parameter_type(),
                .channels = node.shape[0],
                .sample_bytes = element_count(node.shape) * static_cast<int64_t>(sizeof(T))};
    }

    bool sums_gradients(Kind) const override { return false; }

    std::unique_ptr<Operation> build(const Binding& binding) override {
        check(binding.output_gradients.size() <= 1, "the reference sums no output gradients");
        switch (binding.node->kind) {
            case Kind::input:
                return reference::build_input<T>(binding);
            case Kind::convolution:
                return reference::build_convolution<T>(binding);
            case Kind::batch_norm:
                return reference::build_batch_norm<T>(binding);
            case Kind::relu:
                return reference::build_relu<T>(binding);
            case Kind::max_pool:
                return reference::build_max_pool<T>(binding);
            case Kind::global_average_pool:
                return reference::build_global_average_pool<T>(binding);
            case Kind::linear:
                return reference::build_linear<T>(binding);
            case Kind::pad_shortcut:
                return reference::build_pad_shortcut<T>(binding);
            case Kind::dropout:
                return reference::build_dropout<T>(binding);
        }
        check(false, "a kind of layer that the reference does not know");
        return nullptr;
    }

    void add(Lane&, const Buffer& source, const Buffer& target, int64_t batch) override {
        const int64_t count = batch * element_count(source.shape);
        reference::add_scaled(target.sample<T>(0), source.sample<T>(0), T{1}, count);
    }

    std::unique_ptr<Loss> build_loss(const Buffer& logits, const Buffer* gradient,
                                     const StepInput& step, double label_smoothing) override {
        return reference::build_loss<T>(logits, gradient, step, label_smoothing);
    }

    void sum_slabs(std::byte* target, std::span<std::byte* const> sources, Range range) override {
        T* to = reinterpret_cast<T*>(target);
        for (int64_t i = range.first; i < range.end(); ++i) {
            T sum = reinterpret_cast<const T*>(sources[0])[i];
            for (const std::byte* source : sources.subspan(1))
                sum += reinterpret_cast<const T*>(source)[i];
            to[i] = sum;
        }
    }

  private:
    LaneTeam lanes_{1, false};
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(DType type) {
    check(type != DType::bf16, "the reference computes in float or double");
    if (type == DType::f64)
        return std::make_unique<ReferenceBackend<double>>();
    return std::make_unique<ReferenceBackend<float>>();
}

}  // namespace trainer
