// The backend on CUDA: one lane, whose operations line work up for one device.
#include "engine/cuda/cuda_backend.h"

#include <atomic>

#include "engine/cuda/operations.h"
#include "engine/first_failure.h"
#include "engine/slab_math.h"

namespace trainer::cuda {

namespace {

class CudaBackend final : public Backend {
  public:
    explicit CudaBackend(const CudaOptions& options)
        : context_(options), slab_math_(make_slab_math(context_)) {}
    ~CudaBackend() override;

    /// Makes this the first of those GPUs.
    void lead(std::vector<std::unique_ptr<Backend>> followers);

    std::string description() const override {
        const CudaOptions& options = context_.options();
        return context_.device_name() + " (cuda:" + std::to_string(options.device) + "), " +
               library_versions() + ", " +
               (options.precision == Precision::bf16 ? "bf16"
                : options.tf32                       ? "tf32"
                                                     : "fp32") +
               (options.deterministic ? ", deterministic" : "") +
               (options.graphs ? "" : ", without graphs") +
               (followers_.empty() ? ""
                                   : ", with " + std::to_string(followers_.size()) + " more by " +
                                         nccl_version()) +
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

    std::unique_ptr<DeviceImages> keep_images(const ImageSet& set) override {
        context_.use();
        return cuda::keep_images(context_, set);
    }
    std::unique_ptr<DeviceSteps> make_steps(const DeviceStepsOptions& options) override {
        context_.use();
        return cuda::make_steps(context_, options);
    }
    SlabMath* slab_math() override {
        return context_.has_managed_memory() ? slab_math_.get() : nullptr;
    }
    std::shared_ptr<DeviceExchange> make_exchange(const ParameterArena& arena) override {
        context_.use();
        return cuda::make_exchange(context_, *slab_math_, arena);
    }

    std::span<const std::unique_ptr<Backend>> followers() const override { return followers_; }
    void abandon_team() noexcept override {
        if (abandoned_)
            *abandoned_ = true;
    }
    std::string make_group_id() override { return Communicator::make_id(); }
    std::unique_ptr<Collective> join(const GroupOptions& options) override {
        return join_group(context_, options);
    }

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

    void join_team(const CommunicatorOptions& options);
    CudaBackend& member(int rank);
    template <typename Work>
    void run_members(const Work& work);

    Context context_;
    std::unique_ptr<SlabMath> slab_math_;
    LaneTeam team_{1, false};
    // Of the team's first: whether one of them has failed; nullptr: there is no team.
    std::shared_ptr<std::atomic<bool>> abandoned_;
    std::vector<std::unique_ptr<Backend>> followers_;
};

CudaBackend& CudaBackend::member(int rank) {
    return rank == 0 ? *this
                     : static_cast<CudaBackend&>(*followers_[static_cast<size_t>(rank - 1)]);
}

// work(rank) for each member at the same time; of those that fail the first is told.
template <typename Work>
void CudaBackend::run_members(const Work& work) {
    FirstFailure failure;
    LaneTeam threads(static_cast<int>(followers_.size()) + 1, false);
    try {
        threads.run([&](Lane& lane) {
            failure.watch(
                lane.index(), [&] { work(lane.index()); }, [this] { abandon_team(); });
        });
    } catch (...) {
        failure.rethrow(threads.count());
    }
}

void CudaBackend::join_team(const CommunicatorOptions& options) {
    context_.use();
    context_.set_team(std::make_unique<Communicator>(options));
}

void CudaBackend::lead(std::vector<std::unique_ptr<Backend>> followers) {
    followers_ = std::move(followers);
    abandoned_ = std::make_shared<std::atomic<bool>>(false);
    const CommunicatorOptions options{.id = Communicator::make_id(),
                                      .size = static_cast<int>(followers_.size()) + 1,
                                      .in_order = context_.options().deterministic,
                                      .timeout = context_.options().timeout,
                                      .look = [abandoned = abandoned_] {
                                          if (*abandoned)
                                              throw Error("another GPU of this worker has failed");
                                      }};
    run_members([&](int rank) {
        CommunicatorOptions own = options;
        own.rank = rank;
        member(rank).join_team(own);
    });
}

// A team parts in good order where all are still together; else each has ended, or ends, alone.
CudaBackend::~CudaBackend() {
    const auto is_open = [this](int rank) {
        const Communicator* const team = member(rank).context_.team();
        return team != nullptr && team->is_open();
    };
    bool together = !followers_.empty() && !*abandoned_;
    for (int rank = 0; together && rank <= static_cast<int>(followers_.size()); ++rank)
        together = is_open(rank);
    if (!together)
        return;
    try {
        run_members([this](int rank) {
            Context& context = member(rank).context_;
            context.use();
            context.team()->close();
        });
    } catch (const std::exception&) {  // no result depends on it any more
    }
}

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
    if (options.gpus == 1)
        return std::make_unique<CudaBackend>(options);
    CudaOptions own = options;
    own.graphs = false;
    auto first = std::make_unique<CudaBackend>(own);
    std::vector<std::unique_ptr<Backend>> followers;
    while (static_cast<int>(followers.size()) + 1 < options.gpus) {
        ++own.device;
        followers.push_back(std::make_unique<CudaBackend>(own));
    }
    first->lead(std::move(followers));
    return first;
}

}  // namespace trainer::cuda
