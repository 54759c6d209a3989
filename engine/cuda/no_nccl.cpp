// In place of nccl.cpp, where NCCL's header was not there to build with.
#include "engine/cuda/nccl.h"
#include "engine/error.h"

namespace trainer::cuda {

namespace {

constexpr const char* why =
    "this CUDA engine was built without NCCL; install libnccl-dev and build "
    "again";

}  // namespace

std::optional<std::string> why_no_nccl() {
    return why;
}

std::string nccl_version() {
    return "without NCCL";
}

std::string Communicator::make_id() {
    throw UsageError(why);
}

Communicator::Communicator(const CommunicatorOptions& options) : options_(options) {
    throw UsageError(why);
}

Communicator::~Communicator() = default;
void Communicator::sum(float*, int64_t, float*, cudaStream_t) {}
void Communicator::broadcast(float*, int64_t, cudaStream_t) {}
void Communicator::gather(double*, int64_t, cudaStream_t) {}
void Communicator::wait(cudaStream_t) {}
void Communicator::wait(cudaEvent_t) {}
void Communicator::close() {}
void Communicator::abort() noexcept {}
int64_t Communicator::chunk_of(int64_t count) const {
    return count;
}

}  // namespace trainer::cuda
