// The backend on CUDA: one lane, whose operations line work up for one device.
#include "engine/cuda/cuda_backend.h"

#include "engine/cuda/operations.h"
#include "engine/slab_math.h"

namespace trainer::cuda {

namespace {

class CudaBackend final : public Backend {
  public:
    explicit CudaBackend(const CudaOptions& options)
        : context_(options),
          slab_math_(context_.has_managed_memory() ? make_slab_math(context_) : nullptr) {}

    std::string description() const override {
        const CudaOptions& options = context_.options();
        return context_.device_name() + " (cuda:" + std::to_string(options.device) + "), " +
               library_versions() + ", " +
               (options.precision == Precision::bf16 ? "bf16"
                : options.tf32                       ? "tf32"
                                                     : "fp32") +
               (options.deterministic ? ", deterministic" : "") +
               (options.graphs ? "" : ", without graphs") +
               (context_.has_managed_memory() ? "" : ", without managed memory");
    }

    DType parameter_type() const override { return DType::f32; }
    Memory allocate(size_t bytes) override { return context_.allocate(bytes); }
    Memory allocate_slabs(size_t bytes, SlabHome home) override {
        return context_.allocate_slabs(bytes, home);
    }

    void read(std::byte* to, const std::byte* from, size_t bytes) override {
        copy(to, from, bytes, cudaMemcpyDeviceToHost);
    }
    void write(std::byte* to, const std::byte* from, size_t bytes) override {
        copy(to, from, bytes, cudaMemcpyHostToDevice);
    }

    std::optional<size_t> free_memory() const override {
        context_.use();
        size_t free = 0, total = 0;
        TRAINER_CUDA(cudaMemGetInfo(&free, &total));
        // Workspaces are taken with the first operations.
        return free > context_.workspace_bytes() ? free - context_.workspace_bytes() : 0;
    }

    LaneTeam& lanes() override { return team_; }
    Buffer layout(const Network& network, const Node& node) const override {
        return context_.layout(network, node);
    }
    bool sums_gradients(Kind kind) const override { return kind == Kind::batch_norm; }

    std::unique_ptr<DeviceSteps> make_steps(const DeviceStepsOptions& options) override {
        context_.use();
        return cuda::make_steps(context_, options);
    }
    SlabMath* slab_math() override { return slab_math_.get(); }

    std::unique_ptr<Operation> build(const Binding& binding) override;

    void add(Lane&, const Buffer& source, const Buffer& target, int64_t batch) override {
        line_up_add(tensor_of(source, batch), tensor_of(target, batch), context_.stream());
    }
    std::unique_ptr<Loss> build_loss(const Buffer& logits, const Buffer* gradient,
                                     const StepInput& step, double label_smoothing) override {
        return cuda::build_loss(context_, logits, gradient, step, label_smoothing);
    }
    void sum_slabs(std::byte*, std::span<std::byte* const>, Range) override {
        check(false, "one lane has one slab of gradients");
    }

  private:
    void copy(std::byte* to, const std::byte* from, size_t bytes, cudaMemcpyKind kind) {
        context_.use();
        TRAINER_CUDA(cudaMemcpyAsync(to, from, bytes, kind, context_.stream()));
        TRAINER_CUDA(cudaStreamSynchronize(context_.stream()));
    }

    Context context_;
    std::unique_ptr<SlabMath> slab_math_;
    LaneTeam team_{1, false};
};

std::unique_ptr<Operation> CudaBackend::build(const Binding& binding) {
    context_.use();
    check(binding.gradients.size() <= 1, "the CUDA engine has one lane");
    switch (binding.node->kind) {
        case Kind::input:
            return build_input(context_, binding);
        case Kind::convolution:
            return build_convolution(context_, binding);
        case Kind::batch_norm:
            return build_batch_norm(context_, binding);
        case Kind::relu:
            return build_relu(context_, binding);
        case Kind::max_pool:
            return build_max_pool(context_, binding);
        case Kind::global_average_pool:
            return build_global_average_pool(context_, binding);
        case Kind::linear:
            return build_linear(context_, binding);
        case Kind::pad_shortcut:
            return build_pad_shortcut(context_, binding);
        case Kind::dropout:
            return build_dropout(context_, binding);
    }
    check(false, "a kind of node that the CUDA engine does not know");
    return nullptr;
}

std::string dotted(int version, int major_step, int minor_step) {
    return std::to_string(version / major_step) + "." +
           std::to_string(version % major_step / minor_step);
}

}  // namespace

std::string library_versions() {
    int runtime = 0;
    TRAINER_CUDA(cudaRuntimeGetVersion(&runtime));
    return "CUDA " + dotted(runtime, 1000, 10) + ", cuDNN " +
           dotted(static_cast<int>(cudnnGetVersion()), 10000, 100);
}

std::unique_ptr<Backend> make_backend(const CudaOptions& options) {
    return std::make_unique<CudaBackend>(options);
}

}  // namespace trainer::cuda
