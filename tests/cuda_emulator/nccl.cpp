// NCCL's interface between emulated devices of one process, as far as the engine uses it.
//
// An operation runs once all ranks that it is between have come to it in their streams, whichever
// thread waits; until then nothing of any rank's is touched. Sums are taken from the last rank to
// the first, so that whoever relies on an order sees that there is none.
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "tests/cuda_emulator/machine.h"

namespace {

using namespace cuda_emulator;

// One rank's call of an operation between all.
struct Call {
    std::string what;
    size_t count = 0;
    const void* from = nullptr;
    void* to = nullptr;
    bool lined_up = false, arrived = false;
};

// One rank's group of sends and receives.
struct Exchange {
    bool arrived = false;
};
struct Message {
    std::shared_ptr<Exchange> exchange;  // nullptr: that end has not called yet
    const void* from = nullptr;
    void* to = nullptr;
    size_t count = 0;
};
// What goes from one rank to another, in order: both ends of each.
struct Channel {
    struct Both {
        Message sent, received;
        bool moved = false;
    };
    std::vector<Both> messages;
    size_t sends = 0, receives = 0;
};

struct Clique {
    explicit Clique(int ranks)
        : size(ranks), members(static_cast<size_t>(ranks)), called(static_cast<size_t>(ranks), 0) {}

    int size;
    struct Member {
        bool joined = false, finalized = false;
        int device = -1;
        Stream* stream = nullptr;  // of its last call
    };
    std::vector<Member> members;
    std::vector<size_t> called;  // operations between all, by rank
    struct Operation {
        std::vector<Call> calls;
        bool done = false;
    };
    std::deque<Operation> operations;
    std::map<std::pair<int, int>, Channel> channels;

    bool all_joined() const {
        return std::all_of(members.begin(), members.end(),
                           [](const Member& m) { return m.joined; });
    }
    bool all_finalized() const {
        return std::all_of(members.begin(), members.end(),
                           [](const Member& m) { return m.finalized; });
    }
};

std::atomic<int> aborts{0};

std::map<std::string, std::shared_ptr<Clique>>& cliques() {
    static std::map<std::string, std::shared_ptr<Clique>> by_id;
    return by_id;
}

}  // namespace

struct ncclComm {
    std::shared_ptr<Clique> clique;
    int rank = 0;
    std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);

    Clique::Member& member() const { return clique->members[static_cast<size_t>(rank)]; }
};

namespace {

// Sends and receives of this thread's group; the communicator of all is one.
struct Group {
    int depth = 0;
    ncclComm* communicator = nullptr;
    cudaStream_t stream = nullptr;
    std::shared_ptr<Exchange> exchange;
    std::vector<std::function<Channel::Both&()>> messages;
    std::vector<int> peers;
};

Group& group() {
    thread_local Group open;
    return open;
}

void check_buffer(const ncclComm& communicator, const void* address, size_t bytes) {
    Machine& machine = Machine::get();
    const Block* const block = machine.find(address);
    if (block == nullptr || block->type != cudaMemoryTypeDevice)
        refuse("NCCL: a buffer that is not memory of a device alone");
    if (block->device != communicator.member().device)
        refuse("NCCL: a buffer of another device");
    machine.check_addressable(address, bytes, "NCCL");
}

Stream& stream_for(const ncclComm& communicator, cudaStream_t handle) {
    Stream& stream = Machine::get().stream_of(handle);
    if (stream.recording)
        refuse("NCCL: an operation while a graph is recorded");
    if (communicator.member().finalized)
        refuse("NCCL: an operation after the end");
    communicator.member().stream = &stream;
    return stream;
}

/// Whether that rank comes to what sets `arrived`, being brought there where it can be.
bool brought(const Clique& clique, int rank, const bool& arrived) {
    Stream* const stream = clique.members[static_cast<size_t>(rank)].stream;
    while (!arrived && stream != nullptr && Machine::get().advance(*stream)) {
    }
    return arrived;
}

template <typename T>
void add_up(const Clique::Operation& operation) {
    const size_t count = operation.calls[0].count;
    std::vector<T> sum(count, T(0));
    for (auto call = operation.calls.rbegin(); call != operation.calls.rend(); ++call)
        for (size_t i = 0; i < count; ++i)
            sum[i] += static_cast<const T*>(call->from)[i];
    for (const Call& call : operation.calls)
        std::memcpy(call.to, sum.data(), count * sizeof(T));
}

void carry_out(const Clique::Operation& operation, size_t element) {
    const Call& first = operation.calls[0];
    const size_t bytes = first.count * element;
    if (first.what == "sum")
        return add_up<float>(operation);
    if (first.what == "broadcast") {
        for (const Call& call : operation.calls)
            if (call.to != first.from)
                std::memcpy(call.to, first.from, bytes);
        return;
    }
    std::vector<char> all(bytes * operation.calls.size());
    for (size_t rank = 0; rank < operation.calls.size(); ++rank)
        std::memcpy(all.data() + rank * bytes, operation.calls[rank].from, bytes);
    for (const Call& call : operation.calls)
        std::memcpy(call.to, all.data(), all.size());
}

ncclResult_t call_all(ncclComm* communicator, Call call, size_t element, size_t received,
                      cudaStream_t handle) {
    Machine& machine = Machine::get();
    const auto held = machine.lock();
    check_buffer(*communicator, call.from, call.count * element);
    check_buffer(*communicator, call.to, received * element);
    Stream& stream = stream_for(*communicator, handle);
    const auto clique = communicator->clique;
    const auto rank = static_cast<size_t>(communicator->rank);
    const size_t number = clique->called[rank]++;
    if (clique->operations.size() <= number) {
        clique->operations.emplace_back();
        clique->operations.back().calls.resize(static_cast<size_t>(clique->size));
    }
    Clique::Operation& operation = clique->operations[number];  // a deque's stay where they are
    for (const Call& other : operation.calls)
        if (other.lined_up && (other.what != call.what || other.count != call.count))
            refuse("NCCL: ranks call " + other.what + " of " + std::to_string(other.count) +
                   " and " + call.what + " of " + std::to_string(call.count));
    call.lined_up = true;
    operation.calls[rank] = call;
    const auto aborted = communicator->aborted;
    machine.line_up(
        stream,
        {[=, &operation] {
             if (*aborted || std::exchange(operation.done, true))
                 return;
             carry_out(operation, element);
         },
         [=, &operation] {
             operation.calls[rank].arrived = true;
             if (*aborted || operation.done)
                 return true;
             for (int other = 0; other < clique->size; ++other)
                 if (!brought(*clique, other, operation.calls[static_cast<size_t>(other)].arrived))
                     return false;
             return true;
         },
         true});
    return ncclSuccess;
}

/// Notes one end of the next message from one rank to another.
ncclResult_t call_pair(ncclComm* communicator, int from, int to, bool sends, const void* source,
                       void* target, size_t count, cudaStream_t handle) {
    Group& open = group();
    if (open.depth == 0)
        refuse("NCCL: a send or receive outside a group");
    const auto held = Machine::get().lock();
    check_buffer(*communicator, sends ? source : target, count * sizeof(float));
    Channel& channel = communicator->clique->channels[{from, to}];
    const size_t number = sends ? channel.sends++ : channel.receives++;
    if (channel.messages.size() <= number)
        channel.messages.resize(number + 1);
    if (!open.exchange)
        open.exchange = std::make_shared<Exchange>();
    open.communicator = communicator;
    open.stream = handle;
    Message& mine = sends ? channel.messages[number].sent : channel.messages[number].received;
    mine = {open.exchange, source, target, count};
    open.messages.push_back(
        [&channel, number]() -> Channel::Both& { return channel.messages[number]; });
    open.peers.push_back(sends ? to : from);
    return ncclSuccess;
}

/// Whether both ends of a message have come to it.
bool both_arrived(const Clique& clique, int peer, const Channel::Both& message) {
    for (const Message* end : {&message.sent, &message.received}) {
        if (!end->exchange)
            return false;
        const auto kept = end->exchange;
        if (!kept->arrived && !brought(clique, peer, kept->arrived))
            return false;
    }
    return true;
}

void move(Channel::Both& message) {
    if (message.sent.count != message.received.count)
        refuse("NCCL: " + std::to_string(message.sent.count) + " elements sent, " +
               std::to_string(message.received.count) + " received");
    if (!std::exchange(message.moved, true))
        std::memmove(message.received.to, message.sent.from, message.sent.count * sizeof(float));
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static std::atomic<int> last{0};
    std::memset(id->internal, 0, sizeof id->internal);
    const int number = ++last;
    std::memcpy(id->internal, &number, sizeof number);
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId id,
                                             int rank, ncclConfig_t* config) {
    if (config->blocking != 0)
        refuse("NCCL: a communicator that waits for the others without looking after them");
    const auto held = Machine::get().lock();
    auto& clique = cliques()[std::string(id.internal, sizeof id.internal)];
    if (!clique)
        clique = std::make_shared<Clique>(size);
    for (const auto& member : clique->members)
        if (member.joined && member.device == Machine::current_device())
            return ncclInvalidUsage;  // a device is one rank only
    *communicator = new ncclComm{clique, rank};
    (*communicator)->member().joined = true;
    (*communicator)->member().device = Machine::current_device();
    return ncclInProgress;
}

EXPORTED ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
    const auto held = Machine::get().lock();
    const Clique& clique = *communicator->clique;
    const bool done =
        communicator->member().finalized ? clique.all_finalized() : clique.all_joined();
    *error = done ? ncclSuccess : ncclInProgress;
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
    const auto held = Machine::get().lock();
    if (std::exchange(communicator->member().finalized, true))
        refuse("NCCL: a communicator ends twice");
    return ncclInProgress;
}

EXPORTED ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
    const auto held = Machine::get().lock();
    if (!communicator->clique->all_finalized())
        refuse("NCCL: a communicator is destroyed while ranks are not done with it");
    delete communicator;
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommAbort(ncclComm_t communicator) {
    const auto held = Machine::get().lock();
    ++aborts;
    *communicator->aborted = true;
    delete communicator;
    return ncclSuccess;
}

EXPORTED const char* ncclGetErrorString(ncclResult_t result) {
    return result == ncclInvalidUsage ? "invalid usage" : "an error of the emulated NCCL";
}

EXPORTED const char* ncclGetLastError(ncclComm_t) {
    return "";
}

EXPORTED ncclResult_t ncclGroupStart() {
    ++group().depth;
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclGroupEnd() {
    Group& open = group();
    if (--open.depth > 0 || !open.exchange)
        return ncclSuccess;
    Machine& machine = Machine::get();
    const auto held = machine.lock();
    const Group all = std::exchange(open, {});
    const auto clique = all.communicator->clique;
    const auto aborted = all.communicator->aborted;
    machine.line_up(stream_for(*all.communicator, all.stream),
                    {[=] {
                         for (const auto& message : all.messages)
                             if (!*aborted)
                                 move(message());
                     },
                     [=] {
                         all.exchange->arrived = true;
                         for (size_t i = 0; i < all.messages.size() && !*aborted; ++i)
                             if (!both_arrived(*clique, all.peers[i], all.messages[i]()))
                                 return false;
                         return true;
                     },
                     true});
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t, int peer,
                               ncclComm_t communicator, cudaStream_t stream) {
    return call_pair(communicator, communicator->rank, peer, true, from, nullptr, count, stream);
}

EXPORTED ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t, int peer,
                               ncclComm_t communicator, cudaStream_t stream) {
    return call_pair(communicator, peer, communicator->rank, false, nullptr, to, count, stream);
}

EXPORTED ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t,
                                    ncclRedOp_t, ncclComm_t communicator, cudaStream_t stream) {
    return call_all(communicator, {.what = "sum", .count = count, .from = from, .to = to},
                    sizeof(float), count, stream);
}

EXPORTED ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t, int,
                                    ncclComm_t communicator, cudaStream_t stream) {
    return call_all(communicator, {.what = "broadcast", .count = count, .from = from, .to = to},
                    sizeof(float), count, stream);
}

EXPORTED ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t,
                                    ncclComm_t communicator, cudaStream_t stream) {
    return call_all(communicator, {.what = "gather", .count = count, .from = from, .to = to},
                    sizeof(double), count * static_cast<size_t>(communicator->clique->size),
                    stream);
}

/// For tests: communicators that have been aborted so far.
EXPORTED int emulated_nccl_aborts() {
    return aborts;
}
