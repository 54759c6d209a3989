#include "engine/cuda/nccl.h"

#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/cuda/check.h"
#include "engine/cuda/kernels.h"
#include "engine/error.h"

namespace trainer::cuda {

namespace {

using Clock = std::chrono::steady_clock;

// The functions that are used, under their own names without "nccl".
struct Library {
    std::string problem;  // empty: all are there
    decltype(&ncclGetVersion) GetVersion = nullptr;
    decltype(&ncclGetUniqueId) GetUniqueId = nullptr;
    decltype(&ncclCommInitRankConfig) CommInitRankConfig = nullptr;
    decltype(&ncclCommFinalize) CommFinalize = nullptr;
    decltype(&ncclCommDestroy) CommDestroy = nullptr;
    decltype(&ncclCommAbort) CommAbort = nullptr;
    decltype(&ncclCommGetAsyncError) CommGetAsyncError = nullptr;
    decltype(&ncclGetErrorString) GetErrorString = nullptr;
    decltype(&ncclGetLastError) GetLastError = nullptr;
    decltype(&ncclGroupStart) GroupStart = nullptr;
    decltype(&ncclGroupEnd) GroupEnd = nullptr;
    decltype(&ncclAllReduce) AllReduce = nullptr;
    decltype(&ncclBroadcast) Broadcast = nullptr;
    decltype(&ncclAllGather) AllGather = nullptr;
    decltype(&ncclSend) Send = nullptr;
    decltype(&ncclRecv) Recv = nullptr;

    Library() {
        const char* const path = std::getenv("TRAINER_NCCL");
        void* const library =
            dlopen(path == nullptr ? "libnccl.so.2" : path, RTLD_NOW | RTLD_LOCAL);  // never closed
        if (library == nullptr) {
            problem = std::string("NCCL cannot be opened (") + dlerror() +
                      "); install libnccl2, or set TRAINER_NCCL to its path";
            return;
        }
        const auto take = [&](auto& function, const char* name) {
            function =
                reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
            if (function == nullptr && problem.empty())
                problem = std::string("the NCCL here has no ") + name + "; install 2.18 or newer";
        };
        take(GetVersion, "ncclGetVersion");
        take(GetUniqueId, "ncclGetUniqueId");
        take(CommInitRankConfig, "ncclCommInitRankConfig");
        take(CommFinalize, "ncclCommFinalize");
        take(CommDestroy, "ncclCommDestroy");
        take(CommAbort, "ncclCommAbort");
        take(CommGetAsyncError, "ncclCommGetAsyncError");
        take(GetErrorString, "ncclGetErrorString");
        take(GetLastError, "ncclGetLastError");
        take(GroupStart, "ncclGroupStart");
        take(GroupEnd, "ncclGroupEnd");
        take(AllReduce, "ncclAllReduce");
        take(Broadcast, "ncclBroadcast");
        take(AllGather, "ncclAllGather");
        take(Send, "ncclSend");
        take(Recv, "ncclRecv");
    }
};

const Library& library() {
    static const Library opened;
    return opened;
}

void check_status(ncclResult_t status, const char* call, ncclComm_t communicator) {
    if (status == ncclSuccess || status == ncclInProgress)
        return;
    const char* const more = library().GetLastError(communicator);
    throw Error(std::string("NCCL: ") + call + " failed: " + library().GetErrorString(status) +
                (more != nullptr && *more != '\0' ? std::string(", ") + more : std::string()));
}

}  // namespace

std::optional<std::string> why_no_nccl() {
    const std::string& problem = library().problem;
    return problem.empty() ? std::nullopt : std::optional(problem);
}

std::string nccl_version() {
    int version = 0;
    check_status(library().GetVersion(&version), "ncclGetVersion", nullptr);
    return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
           "." + std::to_string(version % 100);
}

std::string Communicator::make_id() {
    ncclUniqueId id;
    check_status(library().GetUniqueId(&id), "ncclGetUniqueId", nullptr);
    return {id.internal, sizeof id.internal};
}

Communicator::Communicator(const CommunicatorOptions& options) : options_(options) {
    ncclUniqueId id;
    if (options.id.size() != sizeof id.internal)
        throw Error("NCCL: an id of " + std::to_string(options.id.size()) +
                    " bytes: is every process of one build?");
    std::memcpy(id.internal, options.id.data(), sizeof id.internal);
    // Calls return at once, so that a rank that does not come is not waited for for ever.
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    settle(library().CommInitRankConfig(&communicator_, options.size, id, options.rank, &config),
           "ncclCommInitRankConfig");
}

// One that has not been closed ends with an error: the others may be gone, or never come.
Communicator::~Communicator() {
    abort();
}

void Communicator::close() {
    if (communicator_ == nullptr)
        return;
    const Library& nccl = library();
    // In progress until all ranks have done so; then there is nothing left to wait for.
    settle(nccl.CommFinalize(communicator_), "ncclCommFinalize");
    check_status(nccl.CommDestroy(std::exchange(communicator_, nullptr)), "ncclCommDestroy",
                 nullptr);
}

void Communicator::abort() noexcept {
    if (communicator_ != nullptr)
        static_cast<void>(library().CommAbort(communicator_));
    communicator_ = nullptr;
}

// Until the call has done its part; what it has lined up goes on.
void Communicator::settle(int status, const char* call) {
    const auto since = Clock::now();
    try {
        auto now = static_cast<ncclResult_t>(status);
        check_status(now, call, communicator_);
        while (now == ncclInProgress) {
            check_status(library().CommGetAsyncError(communicator_, &now), call, communicator_);
            check_status(now, call, communicator_);
            if (now == ncclInProgress)
                look_after(since, call);
        }
    } catch (...) {
        abort();
        throw;
    }
}

void Communicator::look_after(Clock::time_point since, const char* what) {
    if (options_.look)
        options_.look();
    if (Clock::now() - since > options_.timeout) {
        char seconds[32];
        std::snprintf(seconds, sizeof seconds, "%.1f s",
                      std::chrono::duration<double>(options_.timeout).count());
        throw Error(std::string("NCCL: ") + what + " of GPU " + std::to_string(rank()) + " of " +
                    std::to_string(size()) + " has waited for the others for " + seconds +
                    ": one hangs, or is lost; see the logs, or raise comm.timeout");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

int64_t Communicator::chunk_of(int64_t count) const {
    constexpr int64_t vector = 4;  // 16 bytes
    return ((count + size() - 1) / size() + vector - 1) / vector * vector;
}

void Communicator::sum(float* data, int64_t count, float* scratch, cudaStream_t stream) {
    check(communicator_ != nullptr, "a communicator that has ended sums no more");
    if (options_.in_order)
        line_up_sum(data, count, scratch, stream);
    else
        settle(library().AllReduce(data, data, static_cast<size_t>(count), ncclFloat, ncclSum,
                                   communicator_, stream),
               "ncclAllReduce");
    end_one(stream);
}

// In the order of ranks.
void Communicator::line_up_sum(float* data, int64_t count, float* scratch, cudaStream_t stream) {
    const Library& nccl = library();
    // Each rank adds up one part of the vector, which all send it, and sends all the sum.
    const int64_t chunk = chunk_of(count);
    const auto first = [&](int r) { return std::min(chunk * r, count); };
    const auto part = [&](int r) { return static_cast<size_t>(first(r + 1) - first(r)); };
    const auto all_to_all = [&](const auto& send_of, const auto& receive_of) {
        settle(nccl.GroupStart(), "ncclGroupStart");
        try {
            for (int r = 0; r < size(); ++r) {
                send_of(r);
                receive_of(r);
            }
        } catch (...) {
            // An open group would swallow this thread's later calls, the abort's among them.
            static_cast<void>(nccl.GroupEnd());
            abort();
            throw;
        }
        settle(nccl.GroupEnd(), "ncclGroupEnd");
    };
    const auto send = [&](const float* from, size_t elements, int to) {
        if (elements > 0)
            check_status(nccl.Send(from, elements, ncclFloat, to, communicator_, stream),
                         "ncclSend", communicator_);
    };
    const auto receive = [&](float* to, size_t elements, int from) {
        if (elements > 0)
            check_status(nccl.Recv(to, elements, ncclFloat, from, communicator_, stream),
                         "ncclRecv", communicator_);
    };
    float* const mine = data + first(rank());
    all_to_all([&](int r) { send(data + first(r), part(r), r); },
               [&](int r) { receive(scratch + chunk * r, part(rank()), r); });
    end_one(stream);
    line_up_sum_of_parts(scratch, chunk, size(), mine, static_cast<int64_t>(part(rank())), stream);
    all_to_all(
        [&](int r) {
            if (r != rank())
                send(mine, part(rank()), r);
        },
        [&](int r) {
            if (r != rank())
                receive(data + first(r), part(r), r);
        });
}

void Communicator::broadcast(float* data, int64_t count, cudaStream_t stream) {
    check(communicator_ != nullptr, "a communicator that has ended sends no more");
    settle(library().Broadcast(data, data, static_cast<size_t>(count), ncclFloat, 0, communicator_,
                               stream),
           "ncclBroadcast");
    end_one(stream);
}

void Communicator::gather(double* parts, int64_t count, cudaStream_t stream) {
    check(communicator_ != nullptr, "a communicator that has ended gathers no more");
    settle(library().AllGather(parts + count * rank(), parts, static_cast<size_t>(count),
                               ncclDouble, communicator_, stream),
           "ncclAllGather");
    end_one(stream);
}

template <typename Done>
void Communicator::wait_until(const Done& done) {
    const auto since = Clock::now();
    constexpr std::chrono::microseconds spin{100};
    while (true) {
        const cudaError_t status = done();
        if (status == cudaSuccess)
            return;
        try {
            if (status != cudaErrorNotReady)
                check_call(status, "waiting", __FILE__, __LINE__);
            if (Clock::now() - since < spin)
                continue;
            check(communicator_ != nullptr, "a communicator that has ended is waited for no more");
            ncclResult_t asynchronous = ncclSuccess;
            check_status(library().CommGetAsyncError(communicator_, &asynchronous),
                         "ncclCommGetAsyncError", communicator_);
            check_status(asynchronous, "an operation", communicator_);
            look_after(since, "an operation");
        } catch (...) {
            abort();
            throw;
        }
    }
}

void Communicator::wait(cudaStream_t stream) {
    wait_until([&] { return cudaStreamQuery(stream); });
}

void Communicator::wait(cudaEvent_t event) {
    wait_until([&] { return cudaEventQuery(event); });
}

}  // namespace trainer::cuda
