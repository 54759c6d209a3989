// EventLoop: one thread that runs what is posted to it, now or at a given time.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/emulate.h"

namespace trainer {

class EventLoop {
  public:
    /// Starts the thread; `name` (up to 15 characters) is what debuggers and top show.
    explicit EventLoop(const std::string& name);
    ~EventLoop();
    EventLoop(const EventLoop&) = delete;
    EventLoop& operator=(const EventLoop&) = delete;

    /// Runs `work` on the thread, in the order of the calls. Returns false, and drops it, once the
    /// loop is stopping. `work` must not throw.
    bool post(std::function<void()> work);

    /// The same, not before `when`; in the order of `when`. Dropped where the loop stops first.
    bool post_at(Clock::time_point when, std::function<void()> work);

    /// Runs what is posted already (but no timers), joins the thread. `last` runs as the last of
    /// it. Calls after the first do nothing. Not to be called on the thread itself.
    void stop(std::function<void()> last = nullptr);

    /// Whether this is the loop's own thread.
    bool on_thread() const;

    struct Impl;  // has the Asio context, for comm's own sources
    Impl& impl() { return *impl_; }

  private:
    std::unique_ptr<Impl> impl_;
};

}  // namespace trainer
