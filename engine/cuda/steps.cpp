// The steps of one executor: their input on its way to the device, graphs of what is lined up, and
// gradients on their way to the host.
//
// Gradients leave by a second stream: event behind the piece that finished them, a copy to the
// arena's page-locked slab, an event behind that for the host to wait for. Where the arena is at
// home on the device they are in place already.
//
// A team of GPUs takes the first one's weights and statistics at the start of a step, and sums
// gradients before they leave, all in the stream of what computes: so every GPU does it in the same
// order.
//
// Images come by a third stream, those of a step while the one before it computes, to one of two
// buffers; or they are made on the device of what is kept there.
#include <cstring>

#include "engine/cuda/event.h"
#include "engine/cuda/operations.h"

namespace trainer::cuda {

namespace {

// What a stream is given, recorded once and replayed. After some steps as they are, since libraries
// load their kernels when they are first used.
class Recording {
  public:
    Recording() = default;
    ~Recording() {
        if (replay_ != nullptr)
            static_cast<void>(cudaGraphExecDestroy(replay_));
    }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

    void run(cudaStream_t stream, const std::function<void()>& line_up, bool may_record) {
        if (!may_record || runs_ < plain_runs) {
            line_up();
            ++runs_;
            return;
        }
        if (replay_ == nullptr)
            record(stream, line_up);
        TRAINER_CUDA(cudaGraphLaunch(replay_, stream));
    }

  private:
    static constexpr int plain_runs = 2;

    void record(cudaStream_t stream, const std::function<void()>& line_up) {
        // Only this thread's calls are watched: others, with engines of their own, go on.
        TRAINER_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        struct End {  // where line_up throws, the stream must not stay in recording
            cudaStream_t stream;
            bool ended = false;
            ~End() {
                cudaGraph_t half = nullptr;
                if (!ended && cudaStreamEndCapture(stream, &half) == cudaSuccess)
                    static_cast<void>(cudaGraphDestroy(half));
                if (!ended)
                    static_cast<void>(cudaGetLastError());
            }
        } end{stream};
        line_up();
        cudaGraph_t graph = nullptr;
        end.ended = true;
        const cudaError_t status = cudaStreamEndCapture(stream, &graph);
        if (status != cudaSuccess) {
            static_cast<void>(cudaGetLastError());
            throw Error(std::string("CUDA: the step could not be recorded as a graph: ") +
                        cudaGetErrorString(status) + "; cuda.graphs=false does without");
        }
        const std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)> owner(graph,
                                                                              cudaGraphDestroy);
        TRAINER_CUDA(cudaGraphInstantiate(&replay_, graph, 0));
    }

    int runs_ = 0;
    cudaGraphExec_t replay_ = nullptr;
};

class Steps final : public DeviceSteps {
  public:
    Steps(Context& context, const DeviceStepsOptions& options);
    ~Steps() override;

    std::byte* gradients() override {
        return sends_ ? gradients_.data.get() : options_.parameters->address(slab::gradients);
    }
    void begin(int64_t mean_over, bool reload) override;
    void run(size_t index, const std::function<void()>& line_up, bool replay) override;
    void send(size_t index, Range range) override;
    void await(size_t index) override {
        if (team_ != nullptr)
            team_->wait(piece(index).arrived.get());
        else
            piece(index).arrived.wait();
    }
    void wait() override;
    LossSums finish() override;

  private:
    struct Piece {
        Recording recording;
        Event finished, arrived;
    };

    Piece& piece(size_t index) {
        while (pieces_.size() <= index)
            pieces_.push_back(std::make_unique<Piece>());
        return *pieces_[index];
    }
    void check_labels() const;
    bool follows() const { return team_ != nullptr && team_->rank() > 0; }
    void take_slab(const ParameterArena& arena);
    void take_slab_of_team(const ParameterArena& arena);
    void prefetch(const ParameterArena& arena);

    void take_block(int64_t mean_over);
    void take_images();
    void fetch_next_images();
    float* images(size_t which) const {
        return reinterpret_cast<float*>(images_[which].data.get());
    }
    size_t images_bytes() const { return static_cast<size_t>(options_.batch) * image_bytes_; }

    // Constants, then labels, then indices of kept images, together in one copy.
    size_t labels_at() const { return sizeof(StepConstants); }
    size_t indices_at() const {
        return labels_at() + static_cast<size_t>(options_.batch) * sizeof(int32_t);
    }
    size_t block_bytes() const {
        return indices_at() + static_cast<size_t>(options_.batch) * sizeof(int32_t);
    }

    Context& context_;
    DeviceStepsOptions options_;
    Communicator* team_;  // nullptr: this GPU has the whole batch
    size_t image_bytes_;
    Memory images_[2];
    size_t current_ = 0;       // the images of the step
    uint64_t fetched_id_ = 0;  // of those that are, or will be, in the other buffer; 0: none
    Event fetched_;
    Memory block_, sample_losses_, sample_hits_;  // of the device
    Memory host_block_, host_sums_;               // page-locked
    bool sends_;  // operations leave gradients elsewhere than in the arena
    Memory gradients_;
    Memory team_space_;  // for what the team sends, and what it sums
    StepState state_;
    bool prefetched_ = false;
    bool kernels_loaded_ = false;  // of all that is lined up; by the first step
    std::vector<std::unique_ptr<Piece>> pieces_;
};

Steps::Steps(Context& context, const DeviceStepsOptions& options)
    : context_(context),
      options_(options),
      team_(options.in_team ? context.team() : nullptr),
      image_bytes_(static_cast<size_t>(element_count(options.network->node(0).shape)) *
                   sizeof(float)),
      // A team's both at once: memory is mapped to all of its GPUs, which may have to be idle.
      images_{context.allocate(images_bytes()),
              context.allocate(team_ != nullptr ? images_bytes() : 0)},
      block_(context.allocate(block_bytes())),
      sample_losses_(context.allocate(static_cast<size_t>(options.batch) * sizeof(double))),
      sample_hits_(context.allocate(static_cast<size_t>(options.batch))),
      host_block_(Context::allocate_pinned(block_bytes())),
      host_sums_(Context::allocate_pinned(sizeof(LossSums))),
      sends_(options.training && (Context::is_copied(*options.parameters) || team_ != nullptr)),
      gradients_(context.allocate(
          sends_ ? static_cast<size_t>(options.parameters->size()) * sizeof(float) : 0)),
      team_space_(context.allocate(
          team_ == nullptr ? 0
                           : static_cast<size_t>(team_->scratch_of(std::max(
                                 options.parameters->size(), options.statistics->size()))) *
                                 sizeof(float))) {
    state_ = {.constants = reinterpret_cast<const StepConstants*>(block_.data.get()),
              .labels = reinterpret_cast<const int32_t*>(block_.data.get() + labels_at()),
              .sums = reinterpret_cast<LossSums*>(host_sums_.data.get()),
              .samples = options.batch,
              .sample_losses = reinterpret_cast<double*>(sample_losses_.data.get()),
              .sample_hits = reinterpret_cast<uint8_t*>(sample_hits_.data.get())};
    context.set_step(options.step, &state_);
}

Steps::~Steps() {
    // Work that an error has left under way still reads this memory.
    if (team_ != nullptr && cudaStreamQuery(context_.stream()) == cudaErrorNotReady)
        team_->abort();
    static_cast<void>(cudaStreamSynchronize(context_.stream()));
    static_cast<void>(cudaStreamSynchronize(context_.copy_stream()));
    static_cast<void>(cudaStreamSynchronize(context_.input_stream()));
    context_.set_step(options_.step, nullptr);
}

void Steps::check_labels() const {
    const StepInput& step = *options_.step;
    const int64_t classes = options_.network->classes();
    for (int64_t n = 0; n < step.batch; ++n)
        if (step.labels[n] < 0 || step.labels[n] >= classes)
            throw Error("label " + std::to_string(step.labels[n]) + " for a network of " +
                        std::to_string(classes) + " classes");
}

void Steps::take_slab(const ParameterArena& arena) {
    if (arena.size() > 0 && context_.keeps_copy(arena))
        return;
    if (Context::is_copied(arena))
        TRAINER_CUDA(cudaMemcpyAsync(context_.on_device(arena), arena.address(slab::weights),
                                     static_cast<size_t>(arena.size()) * sizeof(float),
                                     cudaMemcpyHostToDevice, context_.stream()));
    else if (!prefetched_)
        prefetch(arena);
}

// What NCCL works on lies in memory of the device alone.
void Steps::take_slab_of_team(const ParameterArena& arena) {
    if (arena.size() == 0)
        return;
    auto* const sent = reinterpret_cast<float*>(team_space_.data.get());
    const size_t bytes = static_cast<size_t>(arena.size()) * sizeof(float);
    if (!follows())
        TRAINER_CUDA(cudaMemcpyAsync(sent, context_.on_device(arena), bytes, cudaMemcpyDefault,
                                     context_.stream()));
    team_->broadcast(sent, arena.size(), context_.stream());
    if (follows())
        TRAINER_CUDA(cudaMemcpyAsync(context_.on_device(arena), sent, bytes, cudaMemcpyDefault,
                                     context_.stream()));
}

// Brings slabs that the host has just filled at once; page by page they would come anyway.
void Steps::prefetch(const ParameterArena& arena) {
    const size_t bytes = static_cast<size_t>(arena.size()) * sizeof(float);
    if (bytes == 0)
        return;
#if CUDART_VERSION >= 13000
    const cudaMemLocation here{cudaMemLocationTypeDevice, {context_.options().device}};
    TRAINER_CUDA(
        cudaMemPrefetchAsync(arena.address(slab::weights), bytes, here, 0, context_.stream()));
#else
    TRAINER_CUDA(cudaMemPrefetchAsync(arena.address(slab::weights), bytes,
                                      context_.options().device, context_.stream()));
#endif
}

void Steps::take_block(int64_t mean_over) {
    const StepInput& step = *options_.step;
    const StepConstants constants{.images = images(current_),
                                  .seed = step.seed,
                                  .step = step.step,
                                  .first_sample = step.first_sample,
                                  .batch = step.batch,
                                  .mean_over = mean_over};
    std::byte* const block = host_block_.data.get();
    const size_t bytes = static_cast<size_t>(step.batch) * sizeof(int32_t);
    std::memset(block, 0, block_bytes());
    std::memcpy(block, &constants, sizeof constants);
    std::memcpy(block + labels_at(), step.labels, bytes);
    if (step.kept != nullptr)
        std::memcpy(block + indices_at(), step.indices, bytes);
    TRAINER_CUDA(cudaMemcpyAsync(block_.data.get(), host_block_.data.get(), block_bytes(),
                                 cudaMemcpyHostToDevice, context_.stream()));
}

void Steps::take_images() {
    const StepInput& step = *options_.step;
    if (step.kept != nullptr)
        line_up_kept(*step.kept, reinterpret_cast<const int32_t*>(block_.data.get() + indices_at()),
                     step.epoch, step.batch, options_.batch, images(current_), context_.stream());
    else if (fetched_id_ != 0)
        fetched_.hold_back(context_.stream());
    else  // from the host, or from where they lie on the device already
        TRAINER_CUDA(cudaMemcpyAsync(images(current_), step.images, images_bytes(),
                                     cudaMemcpyDefault, context_.stream()));
}

// The other buffer is free: the step that it was for has ended.
void Steps::fetch_next_images() {
    const StepInput& step = *options_.step;
    fetched_id_ = step.kept == nullptr && step.next_images != nullptr ? step.next_images_id : 0;
    if (fetched_id_ == 0)
        return;
    Memory& other = images_[1 - current_];
    if (other.bytes == 0)
        other = context_.allocate(images_bytes());
    TRAINER_CUDA(cudaMemcpyAsync(other.data.get(), step.next_images, images_bytes(),
                                 cudaMemcpyDefault, context_.input_stream()));
    fetched_.record(context_.input_stream());
}

void Steps::begin(int64_t mean_over, bool reload) {
    context_.use();
    if (team_ != nullptr)
        team_->wait_each(!kernels_loaded_);
    check_labels();
    if (fetched_id_ != 0 && fetched_id_ == options_.step->images_id)
        current_ = 1 - current_;
    else
        fetched_id_ = 0;
    take_block(mean_over);
    take_images();
    fetch_next_images();
    if (!reload)
        return;
    for (const ParameterArena* arena : {options_.parameters, options_.statistics}) {
        if (!follows())
            take_slab(*arena);
        if (team_ != nullptr)
            take_slab_of_team(*arena);
    }
    prefetched_ = true;
}

void Steps::run(size_t index, const std::function<void()>& line_up, bool replay) {
    piece(index).recording.run(context_.stream(), line_up, replay && context_.options().graphs);
}

void Steps::send(size_t index, Range range) {
    Piece& its = piece(index);
    if (team_ != nullptr)
        team_->sum(reinterpret_cast<float*>(gradients_.data.get()) + range.first, range.count,
                   reinterpret_cast<float*>(team_space_.data.get()), context_.stream());
    if (!sends_ || follows()) {
        its.arrived.record(context_.stream());
        return;
    }
    its.finished.record(context_.stream());
    its.finished.hold_back(context_.copy_stream());
    const size_t first = static_cast<size_t>(range.first) * sizeof(float);
    TRAINER_CUDA(cudaMemcpyAsync(options_.parameters->address(slab::gradients) + first,
                                 gradients_.data.get() + first,
                                 static_cast<size_t>(range.count) * sizeof(float),
                                 cudaMemcpyDefault, context_.copy_stream()));
    its.arrived.record(context_.copy_stream());
}

void Steps::wait() {
    if (team_ != nullptr) {
        team_->wait(context_.stream());
        team_->wait(context_.copy_stream());
    } else {
        TRAINER_CUDA(cudaStreamSynchronize(context_.stream()));
        TRAINER_CUDA(cudaStreamSynchronize(context_.copy_stream()));
    }
    TRAINER_CUDA(cudaStreamSynchronize(context_.input_stream()));
}

LossSums Steps::finish() {
    const ParameterArena& statistics = *options_.statistics;
    if (options_.training && Context::is_copied(statistics))
        TRAINER_CUDA(cudaMemcpyAsync(statistics.address(slab::weights),
                                     context_.on_device(statistics),
                                     static_cast<size_t>(statistics.size()) * sizeof(float),
                                     cudaMemcpyDeviceToHost, context_.stream()));
    wait();
    kernels_loaded_ = true;
    return *state_.sums;
}

}  // namespace

std::unique_ptr<DeviceSteps> make_steps(Context& context, const DeviceStepsOptions& options) {
    return std::make_unique<Steps>(context, options);
}

}  // namespace trainer::cuda
