// The Asio side of EventLoop. Included by comm's .cpp files only.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <mutex>
#include <thread>
#include <utility>  // Boost 1.74's Asio forgets it

#include "comm/event_loop.h"

namespace trainer {

struct EventLoop::Impl {
    boost::asio::io_context context{1};
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{
        context.get_executor()};
    std::mutex mutex;
    bool stopping = false;  // under mutex
    // The loop's thread only:
    std::list<boost::asio::steady_timer> timers;  // running ones
    bool over = false;                            // no further one starts
    std::thread thread;

    void start_timer(Clock::time_point when, std::function<void()> work_then);
};

}  // namespace trainer
