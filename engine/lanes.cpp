// Threads of a team wait on one word each way (spin, then futex through std::atomic::wait).
#include "engine/lanes.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "engine/error.h"

namespace trainer {

namespace {

// About 20 microseconds: longer than lanes of equal work differ, shorter than a time slice.
constexpr int spins = 400;

void wait_while_equal(std::atomic<uint32_t>& word, uint32_t value) {
    for (int i = 0; i < spins; ++i) {
        if (word.load(std::memory_order_acquire) != value)
            return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    while (word.load(std::memory_order_acquire) == value)
        word.wait(value, std::memory_order_acquire);
}

std::vector<int> usable_processors() {
    cpu_set_t set;
    std::vector<int> result;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int i = 0; i < CPU_SETSIZE; ++i)
            if (CPU_ISSET(i, &set))
                result.push_back(i);
    return result;
}

void pin_thread(pthread_t thread, int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    // A machine that forbids it only runs a little slower.
    pthread_setaffinity_np(thread, sizeof set, &set);
}

}  // namespace

struct LaneTeam::State {
    // Barrier: the last to arrive opens the next round.
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<uint32_t> round{0};
    // Work: a new number in `job` starts the threads, `pending` counts those that have not ended.
    alignas(64) std::atomic<uint32_t> job{0};
    alignas(64) std::atomic<uint32_t> pending{0};
    const std::function<void(Lane&)>* work = nullptr;
    std::atomic<bool> stop{false};
    std::vector<std::exception_ptr> errors;
    std::vector<std::thread> threads;
    // Of the thread that made the team, where it was pinned.
    std::optional<cpu_set_t> processors_before;
    pthread_t maker = pthread_self();
};

void Lane::barrier() {
    if (count_ > 1)
        team_->barrier();
}

void LaneTeam::barrier() {
    const uint32_t round = state_->round.load(std::memory_order_relaxed);
    if (state_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
        state_->arrived.store(0, std::memory_order_relaxed);
        state_->round.store(round + 1, std::memory_order_release);
        state_->round.notify_all();
    } else {
        wait_while_equal(state_->round, round);
    }
}

LaneTeam::LaneTeam(int count, bool pin) : count_(count), state_(std::make_unique<State>()) {
    check(count >= 1, "a team has at least one lane");
    state_->errors.resize(static_cast<size_t>(count));
    const std::vector<int> processors = usable_processors();
    const bool enough = static_cast<int>(processors.size()) >= count;
    for (int index = 1; index < count; ++index) {
        state_->threads.emplace_back([this, index] {
            Lane lane(*this, index, count_);
            uint32_t seen = 0;
            while (true) {
                wait_while_equal(state_->job, seen);
                ++seen;
                if (state_->stop.load(std::memory_order_acquire))
                    return;
                try {
                    (*state_->work)(lane);
                } catch (...) {
                    state_->errors[static_cast<size_t>(index)] = std::current_exception();
                }
                if (state_->pending.fetch_sub(1, std::memory_order_acq_rel) == 1)
                    state_->pending.notify_one();
            }
        });
        if (pin && enough)
            pin_thread(state_->threads.back().native_handle(),
                       processors[static_cast<size_t>(index)]);
    }
    if (pin && enough && count > 1) {
        cpu_set_t before;
        if (sched_getaffinity(0, sizeof before, &before) == 0)
            state_->processors_before = before;
        pin_thread(pthread_self(), processors[0]);
    }
}

LaneTeam::~LaneTeam() {
    state_->stop.store(true, std::memory_order_release);
    state_->job.fetch_add(1, std::memory_order_release);
    state_->job.notify_all();
    for (std::thread& thread : state_->threads)
        thread.join();
    // Else a team that this thread makes later would find one processor.
    if (state_->processors_before && pthread_equal(state_->maker, pthread_self()) != 0)
        pthread_setaffinity_np(pthread_self(), sizeof(cpu_set_t), &*state_->processors_before);
}

void LaneTeam::run(const std::function<void(Lane&)>& work) {
    Lane self(*this, 0, count_);
    if (count_ == 1) {
        work(self);
        return;
    }
    state_->work = &work;
    state_->pending.store(static_cast<uint32_t>(count_ - 1), std::memory_order_relaxed);
    state_->job.fetch_add(1, std::memory_order_release);
    state_->job.notify_all();
    try {
        work(self);
    } catch (...) {
        state_->errors[0] = std::current_exception();
    }
    for (uint32_t left; (left = state_->pending.load(std::memory_order_acquire)) != 0;)
        wait_while_equal(state_->pending, left);
    std::exception_ptr first;
    for (std::exception_ptr& error : state_->errors) {
        if (error && !first)
            first = error;
        error = nullptr;
    }
    if (first)
        std::rethrow_exception(first);
}

}  // namespace trainer
