// The backend on oneDNN: one lane a thread, each running every operation on its own samples.
#include <algorithm>

#include "engine/cpu/operations.h"

namespace trainer {

namespace {

using cpu::Context;

class CpuBackend final : public Backend {
  public:
    explicit CpuBackend(const CpuOptions& options)
        : context_(options), team_(options.threads, options.pin) {}

    std::string description() const override {
        return "oneDNN " + cpu::onednn_version() + ", " + cpu::isa_name() + ", " +
               (context_.precision == Precision::bf16 ? "bf16, " : "fp32, ") +
               std::to_string(team_.count()) + (team_.count() == 1 ? " thread" : " threads");
    }

    DType parameter_type() const override { return DType::f32; }

    Memory allocate(size_t bytes) override { return allocate_host(bytes); }

    LaneTeam& lanes() override { return team_; }

    Buffer layout(const Network& network, const Node& node) const override {
        return context_.layout(network, node);
    }

    bool sums_gradients(Kind kind) const override { return kind == Kind::batch_norm; }

    std::unique_ptr<Operation> build(const Binding& binding) override {
        const cpu::SingleThreaded guard;
        return build_operation(binding);
    }

    void add(Lane& lane, const Buffer& source, const Buffer& target, int64_t batch) override {
        cpu::add_activations(lane, source, target, batch);
    }

    std::unique_ptr<Loss> build_loss(const Buffer& logits, const Buffer* gradient,
                                     const StepInput& step, double label_smoothing) override {
        return cpu::build_loss(logits, gradient, step, label_smoothing);
    }

    void sum_slabs(std::byte* target, std::span<std::byte* const> sources, Range range) override {
        auto* const sum = reinterpret_cast<float*>(target);
        const auto* const first = reinterpret_cast<const float*>(sources[0]);
        if (sum != first)
            std::copy(first + range.first, first + range.end(), sum + range.first);
        for (const std::byte* const source : sources.subspan(1)) {
            const auto* const values = reinterpret_cast<const float*>(source);
            for (int64_t i = range.first; i < range.end(); ++i)
                sum[i] += values[i];
        }
    }

  private:
    std::unique_ptr<Operation> build_operation(const Binding& binding) {
        switch (binding.node->kind) {
            case Kind::input:
                return cpu::build_input(context_, binding);
            case Kind::convolution:
                return cpu::winograd_pays(context_, binding)
                           ? cpu::build_winograd_convolution(context_, binding)
                           : cpu::build_convolution(context_, binding);
            case Kind::batch_norm:
                return cpu::build_batch_norm(context_, binding);
            case Kind::relu:
                return cpu::build_relu(context_, binding);
            case Kind::max_pool:
                return cpu::build_max_pool(context_, binding);
            case Kind::global_average_pool:
                return cpu::build_global_average_pool(context_, binding);
            case Kind::linear:
                return cpu::build_linear(context_, binding);
            case Kind::pad_shortcut:
                return cpu::build_pad_shortcut(context_, binding);
            case Kind::dropout:
                return cpu::build_dropout(context_, binding);
        }
        check(false, "a kind of node that the CPU engine does not know");
        return nullptr;
    }

    Context context_;
    LaneTeam team_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
    if (options.precision == Precision::bf16 && !cpu::has_bf16())
        throw UsageError("precision bf16: this processor (" + cpu::isa_name() +
                         ") has no bf16 arithmetic; use precision: fp32");
    return std::make_unique<CpuBackend>(options);
}

}  // namespace trainer
