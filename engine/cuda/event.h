// An event of a stream: what it marks has happened once all that was lined up before it has run.
#pragma once

#include "engine/cuda/check.h"

namespace trainer::cuda {

class Event {
  public:
    Event() { TRAINER_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
    ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    void record(cudaStream_t stream) { TRAINER_CUDA(cudaEventRecord(event_, stream)); }
    void hold_back(cudaStream_t stream) { TRAINER_CUDA(cudaStreamWaitEvent(stream, event_, 0)); }
    void wait() { TRAINER_CUDA(cudaEventSynchronize(event_)); }
    cudaEvent_t get() const { return event_; }

  private:
    cudaEvent_t event_ = nullptr;
};

}  // namespace trainer::cuda
