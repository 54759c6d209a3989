#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "tools/conversion/pipeline.h"

namespace trainer::convert {

namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

Progress::Progress(std::string what, int64_t total)
    : what_(std::move(what)), total_(total), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
    if (drawn_ > 0)
        std::fputs("\r\033[K", stderr);
}

void Progress::show(int64_t done, const std::string& note) {
    const double time = now();
    if (first_ < 0) {
        first_ = done;
        started_ = time;
    }
    if (!terminal_ || time - drawn_ < 0.1)
        return;
    drawn_ = time;
    winsize window{};
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
    const size_t columns = known ? window.ws_col : 80;
    const double speed = static_cast<double>(done - first_) / std::max(time - started_, 1e-9);
    const double left = speed > 0 ? static_cast<double>(total_ - done) / speed : 0;
    char after[160];
    std::snprintf(after, sizeof after, "] %ld/%ld  %.0f images/s  ETA %ld:%02ld  %s", done, total_,
                  speed, static_cast<long>(left) / 60, static_cast<long>(left) % 60, note.c_str());
    std::string line = what_ + " [";
    const size_t used = line.size() + std::string(after).size() + 1;
    const size_t width = columns > used ? std::min<size_t>(columns - used, 30) : 0;
    const size_t filled =
        width * static_cast<size_t>(done) / static_cast<size_t>(std::max<int64_t>(total_, 1));
    line += std::string(filled, '=') + std::string(width - filled, ' ') + after;
    line.resize(std::min(line.size(), columns - 1));
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
    std::fflush(stderr);
}

}  // namespace trainer::convert
