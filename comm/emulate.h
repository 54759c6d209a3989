// Emulation of a slower network: what a link would do, computed, so that the sender waits for it.
#pragma once

#include <chrono>
#include <cstdint>

namespace trainer {

/// The clock of every wait.
using Clock = std::chrono::steady_clock;

/// What every link of a run is made to look like, each direction of each link by itself.
struct Emulation {
    double bytes_per_second = 0;          ///< 0: as fast as it goes
    std::chrono::nanoseconds latency{0};  ///< from one end to the other

    bool active() const { return bytes_per_second > 0 || latency.count() > 0; }
};

/// One direction of one link: bytes leave one after the other at the link's bandwidth and arrive
/// its latency later. A token bucket without burst, as arithmetic on time points.
class LinkShaper {
  public:
    explicit LinkShaper(Emulation emulation) : emulation_(emulation) {}

    /// Books a message of `bytes` handed over at `now`, behind those booked before, and returns
    /// when its first byte leaves. Later bookings leave strictly later.
    Clock::time_point book(Clock::time_point now, uint64_t bytes);

    /// When the first `bytes` of a message that leaves at `start` have arrived.
    Clock::time_point arrival(Clock::time_point start, uint64_t bytes) const;

    /// How many bytes it is worth waking up for: about a millisecond's.
    uint64_t quantum() const;

  private:
    Emulation emulation_;
    Clock::time_point free_at_{};  // when the last booked byte has left
};

}  // namespace trainer
