// Transport between threads of one process.
//
// A message travels as a closure posted to the receiving transport's thread, which asks for the
// destination and copies. Nothing else is shared than the two ends' pointers to each other.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/transport.h"
#include "engine/error.h"

namespace trainer {
namespace {

/// A message on its way. Whoever drops it undelivered tells the sender by that.
class Delivery {
  public:
    const Header header;

    Delivery(const Header& a_header, Parts payload, Completion done)
        : header(a_header), payload_(std::move(payload)), done_(std::move(done)) {}
    Delivery(const Delivery&) = delete;
    Delivery& operator=(const Delivery&) = delete;
    ~Delivery() { cancel(); }

    /// Copies the payload; false where the sender has gone and its memory with it.
    bool copy_to(std::span<std::byte> destination) {
        const std::lock_guard lock(mutex_);
        if (done_ == nullptr)
            return false;
        std::byte* to = destination.data();
        for (const std::span<const std::byte> part : payload_)
            if (!part.empty()) {
                std::memcpy(to, part.data(), part.size());
                to += part.size();
            }
        std::exchange(done_, nullptr)(true);
        return true;
    }

    /// After this the sender's memory is not read any more.
    void cancel() {
        const std::lock_guard lock(mutex_);
        if (done_ != nullptr)
            std::exchange(done_, nullptr)(false);
    }

  private:
    std::mutex mutex_;
    const Parts payload_;
    Completion done_;
};

class InprocEnd final : public Connection, public std::enable_shared_from_this<InprocEnd> {
  public:
    InprocEnd(std::shared_ptr<EventLoop> loop, const TransportOptions& options, std::string peer)
        : loop_(std::move(loop)),
          peer_name_(std::move(peer)),
          shaper_(options.emulate),
          shaped_(options.emulate.active()) {}

    /// Joins two ends, before anything else.
    static void join(const std::shared_ptr<InprocEnd>& a, const std::shared_ptr<InprocEnd>& b) {
        a->other_ = b;
        b->other_ = a;
    }

    /// On the thread of this end, before anything arrives.
    void set_receiver(std::shared_ptr<Receiver> receiver) { receiver_ = std::move(receiver); }

    void send(Header header, Parts payload, Completion done) override {
        send(std::make_shared<Delivery>(header, std::move(payload), std::move(done)), true);
    }

    /// Has memory of its own, so it arrives even where its sender has gone: the last words do.
    void send_bytes(Header header, std::vector<std::byte> payload) override {
        const auto keep = std::make_shared<const std::vector<std::byte>>(std::move(payload));
        header.payload = keep->size();
        send(std::make_shared<Delivery>(header, Parts{std::span(*keep)}, [keep](bool) {}), false);
    }

    void close(const std::string& reason) override {
        loop_->post([self = shared_from_this(), reason] { self->end(reason); });
    }

    void allow_payload(uint64_t bytes) override { cap_ = bytes; }
    std::string peer() const override { return peer_name_; }

    /// On this end's thread: the connection is over, for both ends.
    void end(const std::string& reason) {
        {
            const std::lock_guard lock(mutex_);
            if (other_ != nullptr)
                post_to_other(0, [other = other_] { other->end("it closed the connection"); });
            other_.reset();
        }
        if (const auto receiver = std::exchange(receiver_, nullptr))
            receiver->lost(reason);
    }

    /// The transport goes away: what is still on its way from here does not arrive.
    void cancel_outgoing() {
        std::deque<std::weak_ptr<Delivery>> outgoing;
        {
            const std::lock_guard lock(mutex_);
            outgoing.swap(outgoing_);
        }
        for (const auto& each : outgoing)
            if (const auto delivery = each.lock())
                delivery->cancel();
    }

  private:
    void send(const std::shared_ptr<Delivery>& delivery, bool cancellable) {
        const uint64_t bytes = header_bytes + delivery->header.payload + checksum_bytes;
        const std::lock_guard lock(mutex_);
        if (cancellable) {
            while (!outgoing_.empty() && outgoing_.front().expired())
                outgoing_.pop_front();
            outgoing_.push_back(delivery);
        }
        if (other_ != nullptr)
            post_to_other(bytes, [other = other_, delivery] { other->deliver(*delivery); });
    }

    /// Under the mutex, so that messages arrive in the order of the bookings.
    void post_to_other(uint64_t bytes, std::function<void()> work) {
        if (!shaped_) {
            other_->loop_->post(std::move(work));
            return;
        }
        const Clock::time_point start = shaper_.book(Clock::now(), bytes);
        other_->loop_->post_at(shaper_.arrival(start, bytes), std::move(work));
    }

    void deliver(Delivery& delivery) {
        if (receiver_ == nullptr)
            return;
        const auto receiver = receiver_;
        try {
            // The same checks as on the wire, so that what works here works there.
            const Header header = parse_header(encode(delivery.header), cap_);
            std::span<std::byte> destination;
            if (header.payload > 0)
                destination = receiver->destination(header);
            check(destination.size() == header.payload, "destination of another size");
            if (!delivery.copy_to(destination))
                return;
            receiver->received(header, destination);
        } catch (const std::exception& error) {
            end(error.what());
        }
    }

    const std::shared_ptr<EventLoop> loop_;
    const std::string peer_name_;
    std::shared_ptr<Receiver> receiver_;  // this end's thread only
    std::atomic<uint64_t> cap_{stranger_frame_cap};

    std::mutex mutex_;
    std::shared_ptr<InprocEnd> other_;  // null once ended
    std::deque<std::weak_ptr<Delivery>> outgoing_;
    LinkShaper shaper_;
    const bool shaped_;
};

}  // namespace

class InprocNetwork {
  public:
    struct Listener {
        std::shared_ptr<EventLoop> loop;
        TransportOptions options;
        std::function<void(std::shared_ptr<InprocEnd>)> opened;  // on the loop's thread
    };

    std::string listen(const std::string& address, Listener listener) {
        const std::lock_guard lock(mutex_);
        std::string bound = address;
        if (address.ends_with(":0"))
            bound = address.substr(0, address.size() - 1) + std::to_string(++last_port_);
        if (!listeners_.emplace(bound, std::move(listener)).second)
            throw Error("cannot listen on " + bound + ": it is in use in this process");
        changed_.notify_all();
        return bound;
    }

    void close(const EventLoop* loop) {
        const std::lock_guard lock(mutex_);
        std::erase_if(listeners_,
                      [&](const auto& entry) { return entry.second.loop.get() == loop; });
    }

    /// The listener of that address, once there is one; nothing at the deadline.
    std::optional<Listener> find(const std::string& address, Clock::time_point deadline) {
        std::unique_lock lock(mutex_);
        const auto there = [&] { return listeners_.contains(address); };
        if (!changed_.wait_until(lock, deadline, there))
            return std::nullopt;
        return listeners_.at(address);
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, Listener> listeners_;
    int last_port_ = 0;
};

std::shared_ptr<InprocNetwork> make_inproc_network() {
    return std::make_shared<InprocNetwork>();
}

namespace {

class InprocTransport final : public Transport {
  public:
    InprocTransport(std::shared_ptr<InprocNetwork> network, TransportOptions options)
        : network_(std::move(network)), options_(std::move(options)) {}

    ~InprocTransport() override {
        network_->close(loop_.get());
        loop_->stop([this] {
            for (const auto& end : ends_) {
                end->end("this end has shut down");
                end->cancel_outgoing();
            }
        });
    }

    Listening listen(const std::string& address, Accept accept) override {
        const auto opened = [this, accept](const std::shared_ptr<InprocEnd>& end) {
            ends_.push_back(end);
            end->set_receiver(accept(end));
        };
        const std::string bound = network_->listen(address, {loop_, options_, opened});
        return {bound, bound};
    }

    std::shared_ptr<Connection> connect(const std::string& address, const std::string& name,
                                        std::shared_ptr<Receiver> receiver,
                                        Clock::time_point deadline) override {
        while (const auto listener = network_->find(address, deadline)) {
            const auto ours = std::make_shared<InprocEnd>(loop_, options_, address);
            const auto theirs = std::make_shared<InprocEnd>(listener->loop, listener->options,
                                                            "a thread of this process");
            InprocEnd::join(ours, theirs);
            loop_->post([this, ours, receiver] {
                ends_.push_back(ours);
                ours->set_receiver(receiver);
            });
            if (listener->loop->post([opened = listener->opened, theirs] { opened(theirs); }))
                return ours;
            // It is just shutting down. The receiver never hears of this end.
            loop_->post([this, ours] {
                std::erase(ends_, ours);
                ours->set_receiver(nullptr);
                ours->end("it closed the connection");
            });
        }
        throw Error("cannot reach " + name + " at " + address +
                    ": nothing in this process listens there");
    }

    EventLoop& loop() override { return *loop_; }

  private:
    const std::shared_ptr<InprocNetwork> network_;
    const TransportOptions options_;
    std::vector<std::shared_ptr<InprocEnd>> ends_;  // the loop's thread only
    const std::shared_ptr<EventLoop> loop_ = std::make_shared<EventLoop>("comm");
};

}  // namespace

std::unique_ptr<Transport> make_inproc_transport(std::shared_ptr<InprocNetwork> network,
                                                 TransportOptions options) {
    return std::make_unique<InprocTransport>(std::move(network), std::move(options));
}

void Connection::send_bytes(Header header, std::vector<std::byte> payload) {
    const auto keep = std::make_shared<const std::vector<std::byte>>(std::move(payload));
    header.payload = keep->size();
    send(header, {std::span(*keep)}, [keep](bool) {});
}

void Connection::send_text(Header header, const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    send_bytes(header, {bytes.begin(), bytes.end()});
}

}  // namespace trainer
