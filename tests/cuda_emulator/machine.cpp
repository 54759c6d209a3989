#include "tests/cuda_emulator/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace cuda_emulator {

namespace {

constexpr size_t page = 4096;

size_t whole_pages(size_t bytes) {
    return (bytes + page - 1) / page * page;
}

}  // namespace

void refuse(const std::string& what) {
    std::fprintf(stderr, "emulated device: %s\n", what.c_str());
    std::abort();
}

class Machine::Open {
  public:
    explicit Open(Machine& machine) : machine_(machine) {
        if (machine_.open_++ == 0)
            protect(PROT_READ | PROT_WRITE);
    }
    ~Open() {
        if (--machine_.open_ == 0)
            protect(PROT_NONE);
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

  private:
    void protect(int how) const {
        if (machine_.heap_used_ > 0 && mprotect(machine_.heap_, machine_.heap_used_, how) != 0)
            refuse("mprotect failed");
    }
    Machine& machine_;
};

Machine& Machine::get() {
    static Machine machine;
    return machine;
}

int Machine::device_count() {
    const char* const listed = std::getenv("TRAINER_FAKE_GPUS");
    if (listed == nullptr || *listed == '\0')
        return 0;
    return 1 + static_cast<int>(std::count(listed, listed + std::strlen(listed), ','));
}

size_t Machine::heap_bytes() {
    static const size_t bytes = [] {
        const char* const mib = std::getenv("TRAINER_EMULATED_MIB");
        return mib == nullptr ? size_t{1} << 42 : std::strtoul(mib, nullptr, 10) << 20;
    }();
    return bytes;
}

int& Machine::current_device() {
    thread_local int device = 0;
    return device;
}

bool& Machine::thread_records() {
    thread_local bool records = false;
    return records;
}

Stream& Machine::stream_of(cudaStream_t handle) {
    const auto found = streams_.find(handle);
    if (found == streams_.end())
        refuse("a stream is used that there is not");
    return found->second;
}

cudaStream_t Machine::make_stream() {
    auto* const handle = reinterpret_cast<cudaStream_t>(new char);
    streams_[handle].device = current_device();
    return handle;
}

void Machine::destroy_stream(cudaStream_t handle) {
    streams_.erase(handle);
    delete reinterpret_cast<char*>(handle);
}

void Machine::line_up(Stream& stream, Work work) {
    if (stream.recording)
        stream.recorded.push_back(std::move(work));
    else
        stream.work.push_back(std::move(work));
    changed_.notify_all();
}

void Machine::load(const Stream& stream, const void* code) {
    if (!loaded_.emplace(stream.device, code).second)
        return;
    for (const auto& [handle, other] : streams_)
        if (other.device == stream.device &&
            std::any_of(other.work.begin(), other.work.end(),
                        [](const Work& work) { return work.waits_for_others; }))
            refuse("a kernel is loaded to a device where another waits for other devices");
}

bool Machine::advance(Stream& stream) {
    if (stream.work.empty())
        return false;
    const Open open(*this);
    if (stream.work.front().ready && !stream.work.front().ready())
        return false;
    const Work work = std::move(stream.work.front());
    stream.work.pop_front();
    work.run();
    changed_.notify_all();
    return true;
}

void Machine::drain(std::unique_lock<std::mutex>& held, Stream& stream) {
    while (!stream.work.empty()) {
        {
            const Open open(*this);  // once for all of it
            while (advance(stream)) {
            }
        }
        if (!stream.work.empty() &&
            changed_.wait_for(held, std::chrono::seconds(60)) == std::cv_status::timeout)
            refuse("work waits for something that nobody lines up");
    }
}

void Machine::drain_all(std::unique_lock<std::mutex>& held, int device) {
    std::vector<cudaStream_t> handles;
    for (const auto& [handle, stream] : streams_)
        if (stream.device == device)
            handles.push_back(handle);
    for (const cudaStream_t handle : handles)
        if (const auto found = streams_.find(handle); found != streams_.end())
            drain(held, found->second);
}

bool Machine::reach(const Event& event, uint64_t mark) {
    while (event.reached < mark) {
        if (event.stream->work.empty())
            refuse("an event is waited for that nothing brings");
        if (!advance(*event.stream))
            return false;
    }
    return true;
}

void Machine::await(std::unique_lock<std::mutex>& held, const Event& event, uint64_t mark) {
    while (!reach(event, mark))
        if (changed_.wait_for(held, std::chrono::seconds(60)) == std::cv_status::timeout)
            refuse("an event waits for something that nobody lines up");
}

void* Machine::allocate(size_t bytes, cudaMemoryType type) {
    if (heap_ == nullptr) {
        void* const reserved = mmap(nullptr, heap_bytes(), PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (reserved == MAP_FAILED)
            refuse("the system has no addresses for a heap");
        heap_ = static_cast<char*>(reserved);
    }
    char* address = nullptr;
    if (type == cudaMemoryTypeDevice) {
        if (bytes > heap_left() || whole_pages(bytes) + page > heap_left())
            return nullptr;
        const Open open(*this);
        address = heap_ + heap_used_;
        heap_used_ += whole_pages(bytes) + page;  // an address is not given again soon
        mprotect(address, whole_pages(bytes), PROT_READ | PROT_WRITE);
        std::memset(address, 0xee, std::min(bytes, 16 * page));
    } else {
        address = static_cast<char*>(std::aligned_alloc(page, whole_pages(bytes)));
        if (address == nullptr)
            return nullptr;
        std::memset(address, 0xdd, bytes);
    }
    blocks_[address] = {bytes, type, current_device()};
    return address;
}

void Machine::free(void* address) {
    const auto found = blocks_.find(static_cast<char*>(address));
    if (found == blocks_.end())
        refuse("memory is freed that was never given");
    if (found->second.type == cudaMemoryTypeDevice)
        madvise(address, whole_pages(found->second.bytes), MADV_DONTNEED);
    else
        std::free(address);
    blocks_.erase(found);
    const auto on_device = [](const auto& entry) {
        return entry.second.type == cudaMemoryTypeDevice;
    };
    if (std::none_of(blocks_.begin(), blocks_.end(), on_device)) {  // start over: less to protect
        mprotect(heap_, heap_used_, PROT_NONE);
        heap_used_ = 0;
        loaded_.clear();  // each test loads its kernels
    }
}

const Block* Machine::find(const void* address) const {
    const auto* const at = static_cast<const char*>(address);
    const auto after = blocks_.upper_bound(at);
    if (after == blocks_.begin())
        return nullptr;
    const auto& [first, block] = *std::prev(after);
    return at < first + block.bytes ? &block : nullptr;
}

void Machine::check_addressable(const void* address, size_t bytes, const char* what) const {
    const auto* const at = static_cast<const char*>(address);
    const auto after = blocks_.upper_bound(at);
    if (after == blocks_.begin() ||
        at + bytes > std::prev(after)->first + std::prev(after)->second.bytes)
        refuse(std::string(what) + ": not, or not all, in memory that the device addresses");
}

void Machine::fill(void* address, int value, size_t bytes) const {
    const Block* const block = find(address);
    const size_t pages = bytes / page * page;
    if (value != 0 || block == nullptr || block->type != cudaMemoryTypeDevice ||
        reinterpret_cast<uintptr_t>(address) % page != 0 || pages == 0) {
        std::memset(address, value, bytes);
        return;
    }
    madvise(address, pages, MADV_DONTNEED);
    std::memset(static_cast<char*>(address) + pages, 0, bytes - pages);
}

void line_up(cudaStream_t stream, const void* code, std::function<void()> run) {
    Machine& machine = Machine::get();
    const auto held = machine.lock();
    machine.load(machine.stream_of(stream), code);
    machine.line_up(machine.stream_of(stream), {std::move(run)});
}

}  // namespace cuda_emulator
