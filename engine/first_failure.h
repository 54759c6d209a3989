// FirstFailure: of the GPUs that compute together, a thread each, what the first that failed has
// thrown. The others fail because of it, with less to tell.
#pragma once

#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "engine/error.h"

namespace trainer {

class FirstFailure {
  public:
    /// Does `work` of GPU `index`; where that throws it is taken, and the others, who would wait
    /// for this one, are told by `alarm` before it goes on.
    template <typename Work, typename Alarm>
    void watch(int index, const Work& work, const Alarm& alarm) {
        try {
            work();
        } catch (...) {
            take(index);
            alarm();
            throw;
        }
    }

    /// Throws it and forgets it; an Error says which of the `count` GPUs has failed first.
    /// REQUIRES: one has failed, and no thread runs any more.
    [[noreturn]] void rethrow(int count) {
        const std::exception_ptr failure = std::exchange(failure_, nullptr);
        check(failure != nullptr, "some thread has failed");
        const std::string whose =
            "GPU " + std::to_string(index_) + " of " + std::to_string(count) + ": ";
        try {
            std::rethrow_exception(failure);
        } catch (const UsageError& error) {
            throw UsageError(whose + error.what());
        } catch (const Error& error) {
            throw Error(whose + error.what());
        }
    }

  private:
    // The exception that is being handled, unless there is one already.
    void take(int index) noexcept {
        const std::lock_guard lock(mutex_);
        if (failure_)
            return;
        failure_ = std::current_exception();
        index_ = index;
    }

    std::mutex mutex_;
    std::exception_ptr failure_;
    int index_ = 0;
};

}  // namespace trainer
