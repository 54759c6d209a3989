#include "comm/event_loop.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <boost/asio/post.hpp>
#include <csignal>

#include "comm/event_loop_impl.h"

namespace trainer {

EventLoop::EventLoop(const std::string& name) : impl_(std::make_unique<Impl>()) {
    impl_->thread = std::thread([impl = impl_.get(), name] {
        pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
        sigset_t broken_pipes;  // OpenSSL writes in the way that raises them
        sigemptyset(&broken_pipes);
        sigaddset(&broken_pipes, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &broken_pipes, nullptr);
        prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // emulated links are timed to 1 us
        impl->context.run();
    });
}

EventLoop::~EventLoop() {
    stop();
}

bool EventLoop::post(std::function<void()> work) {
    std::lock_guard lock(impl_->mutex);
    if (impl_->stopping)
        return false;
    boost::asio::post(impl_->context, std::move(work));
    return true;
}

bool EventLoop::post_at(Clock::time_point when, std::function<void()> work) {
    return post([impl = impl_.get(), when, work = std::move(work)]() mutable {
        impl->start_timer(when, std::move(work));
    });
}

void EventLoop::Impl::start_timer(Clock::time_point when, std::function<void()> work_then) {
    if (over)
        return;
    const auto timer = timers.emplace(timers.end(), context, when);
    timer->async_wait([this, timer, run = std::move(work_then)](boost::system::error_code error) {
        timers.erase(timer);
        if (!error)
            run();
    });
}

void EventLoop::stop(std::function<void()> last) {
    {
        std::lock_guard lock(impl_->mutex);
        if (impl_->stopping)
            return;
        impl_->stopping = true;
        boost::asio::post(impl_->context, [impl = impl_.get(), last = std::move(last)] {
            if (last)
                last();
            // What the thread itself has posted last may come after this.
            impl->over = true;
            for (auto& timer : impl->timers)
                timer.cancel();
            impl->work.reset();
        });
    }
    impl_->thread.join();
}

bool EventLoop::on_thread() const {
    return std::this_thread::get_id() == impl_->thread.get_id();
}

}  // namespace trainer
