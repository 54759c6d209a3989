// The CUDA runtime's interface, as far as the engine uses it.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/cuda_emulator/machine.h"

namespace {

using namespace cuda_emulator;

// What a thread that records a graph must not do.
#define NOT_WHILE_RECORDING()      \
    if (Machine::thread_records()) \
    return cudaErrorStreamCaptureUnsupported

Event& event_of(cudaEvent_t handle) {
    return *reinterpret_cast<Event*>(handle);
}

struct Graph {
    std::vector<Work> work;
};

// What copies from and to each kind of memory, as cudaMemcpyAsync requires.
void check_copy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    const Machine& machine = Machine::get();
    const auto type_of = [&](const void* address) {
        const Block* const block = machine.find(address);
        return block == nullptr ? cudaMemoryTypeUnregistered : block->type;
    };
    const auto lies_on_device = [&](const void* address) {
        return type_of(address) == cudaMemoryTypeDevice ||
               type_of(address) == cudaMemoryTypeManaged;
    };
    if (kind == cudaMemcpyHostToDevice && !lies_on_device(to))
        refuse("a copy to the device that ends elsewhere");
    if (kind == cudaMemcpyHostToDevice && type_of(from) == cudaMemoryTypeDevice)
        refuse("a copy from the host that starts on the device");
    if (kind == cudaMemcpyDeviceToHost && !lies_on_device(from))
        refuse("a copy from the device that starts elsewhere");
    if (kind == cudaMemcpyDeviceToHost && type_of(to) == cudaMemoryTypeDevice)
        refuse("a copy to the host that ends on the device");
    for (const void* const end : {to, from})
        if (machine.find(end) != nullptr)
            machine.check_addressable(end, bytes, "copy");
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    *count = Machine::device_count();
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= Machine::device_count())
        return cudaErrorInvalidDevice;
    Machine::current_device() = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
    *device = Machine::current_device();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    *properties = {};
    std::strcpy(properties->name, "emulated device, no GPU");
    properties->major = 9;
    properties->managedMemory = 1;
    properties->concurrentManagedAccess =
        std::getenv("TRAINER_EMULATED_WITHOUT_MANAGED_MEMORY") == nullptr ? 1 : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError() {
    return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation           ? "out of memory"
           : error == cudaErrorNoDevice                 ? "no device"
           : error == cudaErrorStreamCaptureUnsupported ? "not while a graph is recorded"
                                                        : "an emulated error";
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    const auto held = Machine::get().lock();
    *stream = Machine::get().make_stream();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    auto held = Machine::get().lock();
    Machine::get().drain(held, Machine::get().stream_of(stream));
    Machine::get().destroy_stream(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    NOT_WHILE_RECORDING();
    auto held = Machine::get().lock();
    Machine::get().drain(held, Machine::get().stream_of(stream));
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
    Machine& machine = Machine::get();
    const auto held = machine.lock();
    const Event& event = event_of(handle);
    machine.line_up(
        machine.stream_of(stream),
        {[] {}, [&machine, &event, mark = event.asked] { return machine.reach(event, mark); }});
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = reinterpret_cast<cudaEvent_t>(new Event);
    return cudaSuccess;
}

// Like a device, which lets an event live until what waits for it has run.
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    auto held = Machine::get().lock();
    if (const Stream* const stream = event_of(handle).stream)
        Machine::get().drain_all(held, stream->device);
    delete &event_of(handle);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
    Machine& machine = Machine::get();
    const auto held = machine.lock();
    Event& event = event_of(handle);
    event.stream = &machine.stream_of(stream);
    machine.line_up(*event.stream, {[&event, mark = ++event.asked] { event.reached = mark; }});
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    NOT_WHILE_RECORDING();
    auto held = Machine::get().lock();
    const Event& event = event_of(handle);
    Machine::get().await(held, event, event.asked);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    Machine& machine = Machine::get();
    const auto held = machine.lock();
    Stream& its = machine.stream_of(stream);
    while (machine.advance(its)) {
    }
    return its.work.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
    Machine& machine = Machine::get();
    const auto held = machine.lock();
    const Event& event = event_of(handle);
    return machine.reach(event, event.asked) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaMalloc(void** address, size_t bytes) {
    NOT_WHILE_RECORDING();
    const auto held = Machine::get().lock();
    *address = Machine::get().allocate(bytes, cudaMemoryTypeDevice);
    return *address != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
    NOT_WHILE_RECORDING();
    const auto held = Machine::get().lock();
    *address = Machine::get().allocate(bytes, cudaMemoryTypeHost);
    return *address != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned) {
    NOT_WHILE_RECORDING();
    const auto held = Machine::get().lock();
    *address = Machine::get().allocate(bytes, cudaMemoryTypeManaged);
    return *address != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

// Waits for the device, as the real one does.
cudaError_t cudaFree(void* address) {
    auto held = Machine::get().lock();
    if (const Block* const block = Machine::get().find(address))
        Machine::get().drain_all(held, block->device);
    Machine::get().free(address);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void* address) {
    return cudaFree(address);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    const auto held = Machine::get().lock();
    *total = Machine::heap_bytes();
    *free = Machine::get().heap_left();
    return cudaSuccess;
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise, cudaMemLocation) {
    const auto held = Machine::get().lock();
    Machine::get().check_addressable(address, bytes, "cudaMemAdvise");
    return cudaSuccess;
}
cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, cudaMemLocation, unsigned,
                                 cudaStream_t) {
    const auto held = Machine::get().lock();
    Machine::get().check_addressable(address, bytes, "cudaMemPrefetchAsync");
    return cudaSuccess;
}
#else
cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise, int) {
    const auto held = Machine::get().lock();
    Machine::get().check_addressable(address, bytes, "cudaMemAdvise");
    return cudaSuccess;
}
cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, int, cudaStream_t) {
    const auto held = Machine::get().lock();
    Machine::get().check_addressable(address, bytes, "cudaMemPrefetchAsync");
    return cudaSuccess;
}
#endif

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    const auto held = Machine::get().lock();
    const Block* const block = Machine::get().find(address);
    *attributes = {};
    attributes->type = block != nullptr ? block->type : cudaMemoryTypeUnregistered;
    attributes->device = block != nullptr ? block->device : 0;
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
    Machine& machine = Machine::get();
    const auto held = machine.lock();
    machine.check_addressable(address, bytes, "cudaMemsetAsync");
    machine.line_up(machine.stream_of(stream),
                    {[&machine, address, value, bytes] { machine.fill(address, value, bytes); }});
    return cudaSuccess;
}

// From pageable memory what is there now, as the real one takes it over at once; to such memory it
// waits.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    Machine& machine = Machine::get();
    auto held = machine.lock();
    check_copy(to, from, bytes, kind);
    const bool pageable = machine.find(to) == nullptr || machine.find(from) == nullptr;
    if (pageable && Machine::thread_records())
        return cudaErrorStreamCaptureUnsupported;
    Stream& its = machine.stream_of(stream);
    if (machine.find(from) == nullptr) {
        const auto* const first = static_cast<const char*>(from);
        const auto staged = std::make_shared<std::vector<char>>(first, first + bytes);
        machine.line_up(its, {[=] { std::memcpy(to, staged->data(), bytes); }});
    } else {
        machine.line_up(its, {[=] { std::memcpy(to, from, bytes); }});
    }
    if (machine.find(to) == nullptr)
        machine.drain(held, its);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    const auto held = Machine::get().lock();
    Stream& its = Machine::get().stream_of(stream);
    its.recording = true;
    its.recorded.clear();
    Machine::thread_records() = true;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    const auto held = Machine::get().lock();
    Stream& its = Machine::get().stream_of(stream);
    its.recording = false;
    Machine::thread_records() = false;
    *graph = reinterpret_cast<cudaGraph_t>(new Graph{std::move(its.recorded)});
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* copy, cudaGraph_t graph, unsigned long long) {
    *copy = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete reinterpret_cast<Graph*>(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete reinterpret_cast<Graph*>(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    Machine& machine = Machine::get();
    const auto held = machine.lock();
    for (const Work& work : reinterpret_cast<const Graph*>(graph)->work)
        machine.line_up(machine.stream_of(stream), work);
    return cudaSuccess;
}
}
