// A Collective between the GPUs of several workers, by NCCL, in a stream of its own. What is summed
// goes through memory of the device, wherever the slab lies.
#include "engine/cuda/operations.h"

namespace trainer::cuda {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

class Group final : public Collective {
  public:
    Group(Context& context, const GroupOptions& options)
        : context_(context),
          communicator_({.id = options.id,
                         .rank = options.rank,
                         .size = options.size,
                         .in_order = context.options().deterministic,
                         .timeout = options.timeout,
                         .look = options.look}),
          sent_(context.allocate(bytes_of(options.elements))),
          scratch_(context.allocate(bytes_of(communicator_.scratch_of(options.elements)))) {
        TRAINER_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }
    ~Group() override {
        static_cast<void>(cudaSetDevice(context_.options().device));
        if (cudaStreamQuery(stream_) == cudaErrorNotReady)
            communicator_.abort();
        static_cast<void>(cudaStreamSynchronize(stream_));
        static_cast<void>(cudaStreamDestroy(stream_));
    }

    int rank() const override { return communicator_.rank(); }
    int size() const override { return communicator_.size(); }

    void sum(float* slab, Range range) override {
        context_.use();
        communicator_.wait_each(rounds_ < careful_rounds);
        if (!under_way_)
            since_ = Clock::now();
        under_way_ = true;
        float* const values = slab + range.first;
        auto* const sent = reinterpret_cast<float*>(sent_.data.get());
        const size_t bytes = bytes_of(range.count);
        TRAINER_CUDA(cudaMemcpyAsync(sent, values, bytes, cudaMemcpyDefault, stream_));
        communicator_.sum(sent, range.count, reinterpret_cast<float*>(scratch_.data.get()),
                          stream_);
        TRAINER_CUDA(cudaMemcpyAsync(values, sent, bytes, cudaMemcpyDefault, stream_));
        counters_.sent_bytes += static_cast<int64_t>(bytes);
        counters_.received_bytes += static_cast<int64_t>(bytes);
    }

    void wait() override {
        if (!std::exchange(under_way_, false))
            return;
        const auto start = Clock::now();
        communicator_.wait(stream_);
        counters_.wait_s += seconds_since(start);
        counters_.travel_s += seconds_since(since_);
        ++rounds_;
    }

    void close() override {
        context_.use();
        wait();
        communicator_.close();
    }
    void abort(const std::string& /*why*/) override { communicator_.abort(); }
    CollectiveCounters counters() const override { return counters_; }

  private:
    // Those beside which kernels are loaded, and graphs recorded (steps.cpp), by what computes.
    static constexpr int careful_rounds = 4;

    static size_t bytes_of(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

    Context& context_;
    Communicator communicator_;
    Memory sent_, scratch_;
    cudaStream_t stream_ = nullptr;
    bool under_way_ = false;
    int rounds_ = 0;  // whose sums have been waited for
    Clock::time_point since_;
    CollectiveCounters counters_;
};

}  // namespace

std::unique_ptr<Collective> join_group(Context& context, const GroupOptions& options) {
    context.use();
    return std::make_unique<Group>(context, options);
}

}  // namespace trainer::cuda
