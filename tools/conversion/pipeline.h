// Work on many items by several threads, whose results are taken in order.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace trainer::convert {

/// Calls make(thread, i) for i in [first, last) on `threads` threads, and take(i, result) for each
/// in order on the calling thread. No thread runs ahead of take by more than a few results a
/// thread. Ends early, returning false, once `stop` holds. What make or take throws ends it all.
template <typename Result>
bool in_order(int64_t first, int64_t last, int threads,
              const std::function<Result(int, int64_t)>& make,
              const std::function<void(int64_t, Result)>& take, const std::function<bool()>& stop) {
    struct Outcome {
        Result result{};
        std::exception_ptr error;
    };
    std::mutex mutex;
    std::condition_variable changed;
    std::map<int64_t, Outcome> ready;
    int64_t next = first, taken = first;
    bool ending = false;
    const int64_t window = int64_t{8} * threads;

    const auto work = [&](int thread) {
        std::unique_lock lock(mutex);
        while (true) {
            changed.wait(lock, [&] { return ending || next >= last || next < taken + window; });
            if (ending || next >= last)
                return;
            const int64_t item = next++;
            lock.unlock();
            Outcome outcome;
            try {
                outcome.result = make(thread, item);
            } catch (...) {
                outcome.error = std::current_exception();
            }
            lock.lock();
            ready.emplace(item, std::move(outcome));
            changed.notify_all();
        }
    };
    std::vector<std::jthread> team;
    for (int thread = 0; thread < threads; ++thread)
        team.emplace_back(work, thread);
    const auto end = [&] {
        const std::lock_guard lock(mutex);
        ending = true;
        changed.notify_all();
    };
    try {
        for (int64_t item = first; item < last; ++item) {
            Outcome outcome;
            {
                std::unique_lock lock(mutex);
                changed.wait(lock, [&] { return ready.contains(item); });
                outcome = std::move(ready.extract(item).mapped());
                taken = item + 1;
                changed.notify_all();
            }
            if (outcome.error)
                std::rethrow_exception(outcome.error);
            if (stop()) {
                end();
                return false;
            }
            take(item, std::move(outcome.result));
        }
    } catch (...) {
        end();
        throw;
    }
    return true;
}

/// A bar on standard error, where that is a terminal.
class Progress {
  public:
    Progress(std::string what, int64_t total);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    /// `done` of the total; `note` is said behind.
    void show(int64_t done, const std::string& note = "");

  private:
    std::string what_;
    int64_t total_, first_ = -1;
    bool terminal_;
    double started_ = 0, drawn_ = 0;  // seconds
};

}  // namespace trainer::convert
