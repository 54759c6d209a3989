// NCCL as the engine uses it: one communicator a device, a thread each, opened at run time.
//
// Operations are lined up in a stream, by all ranks in the same order. Whoever waits for them looks
// after the others meanwhile: a rank that fails, or that does not come within the timeout, aborts
// the communicator, and the wait throws. Not within recorded graphs: NCCL's documentation warns of
// deadlocks where one process has graphs of several GPUs.
//
// CUDA loads a kernel to a device when it is first launched there, and may wait until the device
// has nothing to do, with locks that other threads need (CUDA programming guide, "Lazy Loading",
// hazards). An operation that waits there for another rank would make that for ever; so whoever
// launches something for the first time lets each operation end before: wait_each().
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/backend.h"

struct ncclComm;

namespace trainer::cuda {

/// Why NCCL cannot be used, and what to do, in one line; nullopt where it can. Opens it, from the
/// environment variable TRAINER_NCCL (a path) or as libnccl.so.2.
std::optional<std::string> why_no_nccl();

/// E.g. "NCCL 2.28.9". REQUIRES: why_no_nccl() is nullopt, as all below.
std::string nccl_version();

struct CommunicatorOptions {
    std::string id;  ///< of Communicator::make_id(), the same for all ranks
    int rank = 0, size = 1;
    bool in_order = true;  ///< sums are taken in the order of ranks, else as NCCL likes best
    std::chrono::milliseconds timeout{30000};  ///< of its making, and of every wait
    /// Called while it waits; throws where the others are known to be lost.
    std::function<void()> look{};
};

class Communicator {
  public:
    static std::string make_id();

    /// Of the thread's current device, which no other rank has. Returns once all ranks are there.
    explicit Communicator(const CommunicatorOptions& options);
    ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    int rank() const { return options_.rank; }
    int size() const { return options_.size; }

    /// Whether it goes on: neither closed nor aborted.
    bool is_open() const { return communicator_ != nullptr; }

    /// From now on operations return once they are done, or once they are lined up.
    void wait_each(bool on) { waits_each_ = on; }

    /// Floats of the device that sum() works in, for vectors of so many.
    int64_t scratch_of(int64_t count) const { return chunk_of(count) * size(); }

    /// data[0..count) of the device <- its sum over all ranks. The order of their addition is that
    /// of ranks where `in_order`, and the same on every rank and at every run either way.
    void sum(float* data, int64_t count, float* scratch, cudaStream_t stream);

    /// data[0..count) <- rank 0's.
    void broadcast(float* data, int64_t count, cudaStream_t stream);

    /// parts[r * count .. (r + 1) * count) <- what rank r has there.
    void gather(double* parts, int64_t count, cudaStream_t stream);

    /// Return once what has been lined up before is done. Throw Error as said above.
    void wait(cudaStream_t stream);
    void wait(cudaEvent_t event);

    /// Takes leave of the others, who all do so at the same time, each in a thread of its own.
    /// Throws Error as a wait does. Nothing is to be under way.
    void close();

    /// Ends it; the others find out while they wait, or are told otherwise.
    void abort() noexcept;

  private:
    int64_t chunk_of(int64_t count) const;
    void line_up_sum(float* data, int64_t count, float* scratch, cudaStream_t stream);
    void end_one(cudaStream_t stream) {
        if (waits_each_)
            wait(stream);
    }
    void settle(int status, const char* call);
    void look_after(std::chrono::steady_clock::time_point since, const char* what);
    template <typename Done>
    void wait_until(const Done& done);

    CommunicatorOptions options_;
    ncclComm* communicator_ = nullptr;
    bool waits_each_ = false;
};

}  // namespace trainer::cuda
