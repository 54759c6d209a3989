// The machine that the emulator pretends to have: devices with memory, and streams of work.
//
// Work that is lined up runs when somebody waits for it, and no sooner, on the waiting thread. So a
// wait that is missing shows at once, and not now and then: what would have been copied has not
// been, and what has been overwritten meanwhile is what gets copied. Memory of a device is out of
// the program's reach but for while work runs: who touches it dies as by a wild pointer.
//
// One mutex is around all. Functions of the C interfaces take it; nothing else does.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace cuda_emulator {

/// Ends the process with one line: the program did what a real device would punish, or would not,
/// as it happens.
[[noreturn]] void refuse(const std::string& what);

struct Work {
    std::function<void()> run;
    /// Whether it may run now, having brought about what it needs where it can; empty: yes. Where
    /// not, another thread has to line something up first.
    std::function<bool()> ready = {};
    bool waits_for_others = false;  ///< on the device, until other devices come to it
};

struct Stream {
    int device = 0;
    std::deque<Work> work;
    bool recording = false;
    std::vector<Work> recorded;
};

struct Event {
    Stream* stream = nullptr;  ///< where it was recorded last
    uint64_t asked = 0, reached = 0;
};

struct Block {
    size_t bytes = 0;
    cudaMemoryType type = cudaMemoryTypeUnregistered;
    int device = 0;
};

class Machine {
  public:
    /// The one that the C interfaces, which know no object, work on.
    static Machine& get();
    /// What each function of theirs holds.
    std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

    /// As TRAINER_FAKE_GPUS lists them, like the fake driver's.
    static int device_count();
    /// Of the calling thread.
    static int& current_device();
    /// Whether the calling thread records a graph, while which it may neither wait nor allocate.
    static bool& thread_records();

    Stream& stream_of(cudaStream_t handle);
    cudaStream_t make_stream();
    void destroy_stream(cudaStream_t handle);

    void line_up(Stream& stream, Work work);
    /// What comes before each launch of `code`: loads it, where it is new to the stream's device. A
    /// real one may have to be idle for that, so refuses it where something waits there for others.
    void load(const Stream& stream, const void* code);
    /// Runs the next of the stream's work, if there is any and it is ready.
    bool advance(Stream& stream);
    /// Runs all of it. Waits for other threads where they have to line something up.
    void drain(std::unique_lock<std::mutex>& held, Stream& stream);
    /// All streams of a device.
    void drain_all(std::unique_lock<std::mutex>& held, int device);
    /// Runs what comes before `mark` of an event; false where some of it isn't ready.
    bool reach(const Event& event, uint64_t mark);
    void await(std::unique_lock<std::mutex>& held, const Event& event, uint64_t mark);

    /// nullptr where the heap is full. Filled with bytes that are no number.
    void* allocate(size_t bytes, cudaMemoryType type);
    void free(void* address);
    /// The block that an address lies in; nullptr for plain memory of the host.
    const Block* find(const void* address) const;
    /// Refuses memory that a device cannot address, or that ends before address + bytes.
    void check_addressable(const void* address, size_t bytes, const char* what) const;
    /// memset, which gives zeroed pages of a device back to the system instead of touching them.
    void fill(void* address, int value, size_t bytes) const;
    size_t heap_left() const { return heap_bytes() - heap_used_; }
    /// TRAINER_EMULATED_MIB, or more than anybody takes.
    static size_t heap_bytes();

  private:
    // While one is alive the memory of devices is within reach.
    class Open;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<cudaStream_t, Stream> streams_;
    std::map<const char*, Block> blocks_;
    std::set<std::pair<int, const void*>> loaded_;  // to which device what has been
    char* heap_ = nullptr;
    size_t heap_used_ = 0;
    int open_ = 0;
};

/// Lines up `run`, a launch of `code`, in a stream.
void line_up(cudaStream_t stream, const void* code, std::function<void()> run);

}  // namespace cuda_emulator
