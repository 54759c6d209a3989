#include "comm/emulate.h"

#include <algorithm>

namespace trainer {
namespace {

std::chrono::nanoseconds duration_of(uint64_t bytes, double bytes_per_second) {
    if (bytes_per_second <= 0)
        return std::chrono::nanoseconds(0);
    return std::chrono::nanoseconds(
        static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_second * 1e9));
}

}  // namespace

Clock::time_point LinkShaper::book(Clock::time_point now, uint64_t bytes) {
    const Clock::time_point start = std::max(now, free_at_);
    free_at_ =
        start + duration_of(bytes, emulation_.bytes_per_second) + std::chrono::nanoseconds(1);
    return start;
}

Clock::time_point LinkShaper::arrival(Clock::time_point start, uint64_t bytes) const {
    return start + emulation_.latency + duration_of(bytes, emulation_.bytes_per_second);
}

uint64_t LinkShaper::quantum() const {
    if (emulation_.bytes_per_second <= 0)
        return UINT64_MAX;
    return static_cast<uint64_t>(std::clamp(emulation_.bytes_per_second * 1e-3, 1e3, 1e7));
}

}  // namespace trainer
