#include "tools/trainer/signals.h"

#include <atomic>
#include <iterator>
#include <type_traits>

namespace trainer {
namespace {

constexpr int stop_signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

// What a handler may touch: the one thing here that belongs to the whole process. The system takes
// any of its threads for the handler.
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

void note(int number) {
    if (received != 0) {
        std::signal(number, SIG_DFL);
        std::raise(number);
    }
    received = number;
}

}  // namespace

StopSignals::StopSignals() {
    static_assert(std::size(stop_signals) == std::extent_v<decltype(before_)>);
    received = 0;
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    for (size_t i = 0; i < std::size(stop_signals); ++i) {
        sigaction(stop_signals[i], &action, &before_[i]);
        if (stop_signals[i] == SIGHUP && before_[i].sa_handler == SIG_IGN)
            sigaction(SIGHUP, &before_[i], nullptr);
    }
    // A limit on the size of files is an error where a file is written, not the end.
    action.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &action, &file_size_before_);
}

StopSignals::~StopSignals() {
    for (size_t i = 0; i < std::size(stop_signals); ++i)
        sigaction(stop_signals[i], &before_[i], nullptr);
    sigaction(SIGXFSZ, &file_size_before_, nullptr);
}

int StopSignals::number() const {
    return received;
}

}  // namespace trainer
