// One socket's connection: bytes move with sendmsg and recvmsg once Asio says that the socket is
// ready, straight from the sender's memory and into the receiver's, a chunk at a time, which is
// still in the cache when its checksum is computed.
#include "comm/socket_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/error.h"

namespace trainer {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

constexpr size_t chunk_bytes = 256 << 10;      // moved and hashed at once
constexpr size_t turn_bytes = 4 << 20;         // until other connections get their turn
constexpr size_t inline_bytes = 32 << 10;      // messages up to this leave on the sender's thread
constexpr size_t staging_bytes = 16 << 10;     // read ahead: headers and small messages
constexpr size_t tls_record_bytes = 16 << 10;  // the largest of TLS
constexpr std::chrono::seconds handshake_time{10};
constexpr std::chrono::seconds linger_time{1};  // for the other end to read our last words

/// The time so long ago, e.g. "14:03:59".
std::string time_of_day(milliseconds ago) {
    const auto then = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now() - ago);
    std::tm local{};
    localtime_r(&then, &local);
    char text[16];
    return {text, std::strftime(text, sizeof text, "%T", &local)};
}

/// A message being sent.
struct Outgoing {
    std::array<std::byte, header_bytes> header;
    std::array<std::byte, checksum_bytes> trailer;
    Parts parts;  // header, the payload's parts, trailer
    Completion done;
    uint64_t total;
    uint64_t sent = 0;
    Clock::time_point start{};  // when its first byte leaves an emulated link

    Outgoing(const Header& a_header, const Parts& payload, Completion a_done)
        : header(encode(a_header)),
          done(std::move(a_done)),
          total(header_bytes + a_header.payload + checksum_bytes),
          crc_(checksum_of_header(header)) {
        parts.reserve(payload.size() + 2);
        parts.push_back(header);
        for (const auto part : payload)
            if (!part.empty())
                parts.push_back(part);
        parts.push_back(trailer);
    }
    Outgoing(const Outgoing&) = delete;  // parts point into it
    Outgoing& operator=(const Outgoing&) = delete;

    /// The next at most `limit` bytes, hashed; returns how many entries of `pieces` it filled.
    template <size_t most>
    size_t gather(std::array<iovec, most>& pieces, uint64_t limit) {
        size_t count = 0;
        uint64_t at = sent;
        size_t offset = offset_;
        for (size_t p = part_; p < parts.size() && count < most && limit > 0; ++p, offset = 0) {
            auto piece = parts[p].subspan(offset);
            piece = piece.first(std::min<uint64_t>(piece.size(), limit));
            if (p + 1 == parts.size())
                put<uint32_t>(trailer.data(), crc_.value());
            else if (p > 0 && at + piece.size() > hashed_) {
                crc_.add(piece.subspan(hashed_ > at ? hashed_ - at : 0));
                hashed_ = at + piece.size();
            }
            pieces[count++] = {const_cast<std::byte*>(piece.data()), piece.size()};
            at += piece.size();
            limit -= piece.size();
        }
        return count;
    }

    void advance(size_t bytes) {
        sent += bytes;
        while (bytes > 0) {
            const size_t step = std::min(bytes, parts[part_].size() - offset_);
            offset_ += step;
            bytes -= step;
            if (offset_ == parts[part_].size()) {
                ++part_;
                offset_ = 0;
            }
        }
    }

  private:
    Crc32c crc_;
    uint64_t hashed_ = header_bytes;  // bytes of the message whose checksum is in crc_
    size_t part_ = 0;                 // the next byte to send is parts[part_][offset_]
    size_t offset_ = 0;
};

class StreamConnection final : public SocketConnection,
                               public std::enable_shared_from_this<StreamConnection> {
  public:
    StreamConnection(std::shared_ptr<EventLoop> loop, Socket socket, std::string peer,
                     const TransportOptions& options, bool accepted)
        : loop_(std::move(loop)),
          peer_name_(std::move(peer)),
          timeout_(options.timeout),
          lease_(options.lease),
          accepted_(accepted),
          shaper_(options.emulate),
          shaped_(options.emulate.active()),
          socket_(std::move(socket)),
          fd_(socket_->native_handle()),
          tls_(options.tls == nullptr ? nullptr : make_tls_stream(*options.tls, fd_, accepted)),
          sending_(tls_ != nullptr) {
        if (tls_ != nullptr)
            socket_->native_non_blocking(true);
    }

    void start(std::shared_ptr<Receiver> receiver) override {
        receiver_ = std::move(receiver);
        if (tls_ != nullptr)
            shake_hands();
        else
            await_readable();
    }

    void send(Header header, Parts payload, Completion done) override {
        std::unique_lock lock(mutex_);
        if (!open_ || saying_goodbye_) {
            lock.unlock();
            done(false);
            return;
        }
        Outgoing& message = queue_.emplace_back(header, payload, std::move(done));
        quiet_for_ = milliseconds(0);
        if (shaped_)
            message.start = shaper_.book(Clock::now(), message.total);
        if (sending_)
            return;
        sending_ = true;
        if (message.total <= inline_bytes && !shaped_ && tls_ == nullptr)
            send_on(std::move(lock), Caller::sender);
        else
            loop_->post([self = shared_from_this()] { self->resume_sending(); });
    }

    void close(const std::string& reason) override {
        loop_->post([self = shared_from_this(), reason] { self->say_goodbye(reason); });
    }

    void allow_payload(uint64_t bytes) override { cap_ = bytes; }
    void keep_alive() override { alive_ = true; }
    std::string peer() const override { return peer_name_; }

    void end(const std::string& reason) override {
        std::deque<Outgoing> unsent;
        {
            // Senders use the descriptor under the mutex only, this thread is here.
            const std::lock_guard lock(mutex_);
            open_ = false;
            fd_ = -1;
            unsent.swap(queue_);
            socket_.reset();
        }
        for (Outgoing& message : unsent)
            message.done(false);
        lose(reason);
    }

    // Counted in ticks, not by the clock: a thread that was held up has not seen what arrived.
    void watch(milliseconds tick) override {
        bool blocked = false;
        bool drained = false;
        bool quiet = false;
        {
            const std::lock_guard lock(mutex_);
            quiet = alive_ && open_ && !sending_ && (quiet_for_ += tick) >= lease_ / 4;
            blocked = blocked_ && (unsent_for_ += tick) > timeout_;
            drained = saying_goodbye_ && !sending_;
        }
        if (drained && (lingered_ += tick) > linger_time)
            return end("it is closed");
        const std::string time = seconds_of(timeout_);
        if (blocked)
            end("it has taken no data for " + time + " although it has to");
        else if (alive_ && receiver_ != nullptr && (silent_for_ += tick) > lease_)
            end("it has given no sign of life for " + seconds_of(lease_) + ", the last at " +
                time_of_day(silent_for_));
        else if (receiver_ != nullptr && in_message() && (unread_for_ += tick) > timeout_)
            end("it stopped in the middle of a message for " + time);
        else if (shaking_hands_ &&
                 (lingered_ += tick) > std::min(timeout_, milliseconds(handshake_time)))
            end("it did not finish the TLS handshake");
        else if (quiet)
            send_beat();
    }

    bool ended() const override { return !socket_; }

  private:
    enum class Caller { loop, sender };

    void send_beat() {
        Header header;
        header.kind = MessageKind::beat;
        send(header, {}, [](bool) {});
    }

    // --- sending -------------------------------------------------------------------------------

    void resume_sending() { send_on(std::unique_lock(mutex_), Caller::loop); }

    /// Sends what may leave now, and sees to it that it is called again for the rest. `sending_` is
    /// set by whoever starts it; so there is one at a time.
    void send_on(std::unique_lock<std::mutex> lock, Caller caller) {
        size_t budget = turn_bytes;
        while (open_ && !queue_.empty()) {
            Outgoing& message = queue_.front();
            uint64_t limit = std::min<uint64_t>(message.total - message.sent, chunk_bytes);
            if (shaped_) {
                limit = std::min(limit, shaper_.quantum());
                const auto ready = shaper_.arrival(message.start, message.sent + limit);
                if (Clock::now() < ready) {
                    loop_->post_at(ready, [self = shared_from_this()] { self->resume_sending(); });
                    return;
                }
            }
            const bool big_for_sender =
                caller == Caller::sender && message.total > inline_bytes;  // queued meanwhile
            if (budget < limit || big_for_sender) {
                loop_->post([self = shared_from_this()] { self->resume_sending(); });
                return;
            }
            const int fd = fd_;
            if (caller == Caller::loop)  // the descriptor is closed by this thread only
                lock.unlock();
            std::array<iovec, 16> pieces;
            msghdr parcel{};
            parcel.msg_iov = pieces.data();
            parcel.msg_iovlen = message.gather(pieces, limit);
            const ssize_t count = transmit(fd, parcel);
            const int error = errno;
            if (caller == Caller::loop)
                lock.lock();

            if (count < 0 && error == EINTR)
                continue;
            if (count < 0 && (error == EAGAIN || error == EWOULDBLOCK)) {
                blocked_ = true;
                lock.unlock();
                await_writable(caller);
                return;
            }
            if (count < 0)
                return stop_sending(std::move(lock));
            blocked_ = false;
            unsent_for_ = milliseconds(0);
            message.advance(static_cast<size_t>(count));
            budget -= static_cast<size_t>(count);
            if (message.sent == message.total) {
                const Completion done = std::move(message.done);
                queue_.pop_front();
                lock.unlock();
                done(true);
                lock.lock();
            }
        }
        sending_ = false;
        if (saying_goodbye_ && open_)
            ::shutdown(fd_, SHUT_WR);
    }

    /// The other end takes nothing more. What it said before is still read: it may say why.
    void stop_sending(std::unique_lock<std::mutex> lock) {
        std::deque<Outgoing> unsent;
        unsent.swap(queue_);
        open_ = false;
        blocked_ = true;
        lock.unlock();
        for (Outgoing& message : unsent)
            message.done(false);
    }

    void await_writable(Caller caller) {
        if (caller == Caller::sender) {
            loop_->post([self = shared_from_this()] { self->await_writable(Caller::loop); });
            return;
        }
        if (socket_)
            socket_->async_wait(Socket::wait_write, [self = shared_from_this()](error_code error) {
                if (!error)
                    self->resume_sending();
            });
    }

    /// Bytes of the parcel that the system has taken; else -1 and errno.
    ssize_t transmit(int fd, const msghdr& parcel) {
        if (tls_ == nullptr)
            return ::sendmsg(fd, &parcel, MSG_NOSIGNAL | MSG_DONTWAIT);
        // Small pieces, a header and what follows, go in one record.
        std::array<std::byte, tls_record_bytes> record;
        size_t size = 0;
        for (size_t i = 0; i < parcel.msg_iovlen && size < record.size(); ++i) {
            const iovec& piece = parcel.msg_iov[i];
            if (size == 0 && piece.iov_len >= record.size())
                return tls_->write({static_cast<const std::byte*>(piece.iov_base), piece.iov_len});
            const size_t count = std::min(piece.iov_len, record.size() - size);
            std::memcpy(record.data() + size, piece.iov_base, count);
            size += count;
        }
        return tls_->write(std::span(record).first(size));
    }

    /// Before the first message, of a connection with TLS; what is to be sent waits.
    void shake_hands() {
        if (!socket_)
            return;
        shaking_hands_ = true;
        const auto again = [self = shared_from_this()](error_code error) {
            if (!error)
                self->shake_hands();
        };
        try {
            switch (tls_->handshake()) {
                case TlsStream::Progress::wants_read:
                    return socket_->async_wait(Socket::wait_read, again);
                case TlsStream::Progress::wants_write:
                    return socket_->async_wait(Socket::wait_write, again);
                case TlsStream::Progress::done:
                    break;
            }
        } catch (const Error& error) {
            return refuse_handshake(error.what());
        }
        shaking_hands_ = false;
        lingered_ = milliseconds(0);
        resume_sending();
        receive();
    }

    /// Ends as a goodbye does, so that the alert, which says why, is read at the other end.
    void refuse_handshake(const std::string& reason) {
        std::deque<Outgoing> unsent;
        {
            const std::lock_guard lock(mutex_);
            unsent.swap(queue_);
            saying_goodbye_ = true;
            sending_ = false;
            ::shutdown(fd_, SHUT_WR);
        }
        for (Outgoing& message : unsent)
            message.done(false);
        shaking_hands_ = false;
        lingered_ = milliseconds(0);
        tls_.reset();  // what still comes is thrown away
        lose(reason);
        await_readable();
    }

    // --- receiving, all on the loop's thread -----------------------------------------------------

    void await_readable() {
        if (socket_)
            socket_->async_wait(Socket::wait_read, [self = shared_from_this()](error_code error) {
                if (!error)
                    self->receive();
            });
    }

    void receive() {
        try {
            size_t budget = turn_bytes;
            while (socket_) {
                std::array<iovec, 2> pieces;
                msghdr parcel{};
                parcel.msg_iov = pieces.data();
                size_t wanted = 0;
                const auto add = [&](std::span<std::byte> room) {
                    pieces[parcel.msg_iovlen++] = {room.data(), room.size()};
                    wanted += room.size();
                };
                size_t direct = 0;  // bytes that go to the destination itself
                if (state_ == State::payload && receiver_ != nullptr) {
                    direct = std::min(destination_.size() - filled_, chunk_bytes);
                    add(destination_.subspan(filled_, direct));
                }
                if (direct < chunk_bytes)
                    add(std::span(staging_).subspan(staged_end_));

                const ssize_t count = tls_ == nullptr
                                          ? ::recvmsg(fd_, &parcel, MSG_DONTWAIT)
                                          : tls_->read({static_cast<std::byte*>(pieces[0].iov_base),
                                                        pieces[0].iov_len});
                if (count == 0)
                    return end((in_message() ? "it closed the connection in the middle of a message"
                                             : "it closed the connection") +
                               advice());
                if (count < 0 && errno == EINTR)
                    continue;
                if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
                    return await_readable();
                if (count < 0)
                    return end("the connection broke: " + (tls_ != nullptr && errno == EPROTO
                                                               ? tls_->error()
                                                               : std::strerror(errno) + advice()));
                unread_for_ = silent_for_ = milliseconds(0);
                take(static_cast<size_t>(count), direct);

                const auto got = static_cast<size_t>(count);
                if (got < wanted && tls_ == nullptr)  // that was all: save a call that says so
                    return await_readable();
                if (budget < got) {
                    loop_->post([self = shared_from_this()] { self->receive(); });
                    return;
                }
                budget -= got;
            }
        } catch (const std::exception& error) {
            Header header;
            header.kind = MessageKind::error;
            send_text(header, error.what());
            say_goodbye(error.what());
            await_readable();
        }
    }

    /// For a connection that has ended before anything was understood: what it may have been.
    std::string advice() const {
        if (accepted_ || understood_ || receiver_ == nullptr)
            return "";
        return tls_ == nullptr ? "; if it wants TLS, set comm.tls"
                               : "; it may not take the certificate in comm.tls.cert";
    }

    /// `count` bytes have arrived, the first `direct` of them at the destination.
    void take(size_t count, size_t direct) {
        if (receiver_ == nullptr)
            return;  // after the goodbye nothing is listened to
        const size_t straight = std::min(count, direct);
        if (straight > 0)
            took_payload(straight);
        staged_end_ += count - straight;
        while (receiver_ != nullptr && take_staged()) {
        }
        if (staged_begin_ > 0) {  // what is left is less than a header
            std::memmove(staging_.data(), staging_.data() + staged_begin_,
                         staged_end_ - staged_begin_);
            staged_end_ -= staged_begin_;
            staged_begin_ = 0;
        }
    }

    /// Takes the next header, payload or checksum out of the staged bytes; false where it needs
    /// more of them.
    bool take_staged() {
        const auto staged = std::span(staging_).subspan(staged_begin_, staged_end_ - staged_begin_);
        switch (state_) {
            case State::header: {
                if (staged.size() < header_bytes)
                    return false;
                const auto bytes = staged.first<header_bytes>();
                header_ = parse_header(bytes, cap_);
                understood_ = true;
                crc_ = checksum_of_header(bytes);
                staged_begin_ += header_bytes;
                filled_ = 0;
                destination_ = {};
                state_ = State::checksum;
                if (header_.payload > 0) {
                    if (header_.kind == MessageKind::beat)
                        throw Error("it sent a beat with a payload");
                    destination_ = receiver_->destination(header_);
                    check(destination_.size() == header_.payload, "destination of another size");
                    state_ = State::payload;
                }
                return true;
            }
            case State::payload: {
                const size_t count = std::min(staged.size(), destination_.size() - filled_);
                if (count == 0)
                    return false;
                std::memcpy(destination_.data() + filled_, staged.data(), count);
                staged_begin_ += count;
                took_payload(count);
                return true;
            }
            case State::checksum: {
                if (staged.size() < checksum_bytes)
                    return false;
                if (get<uint32_t>(staged.data()) != crc_.value())
                    throw Error("a " + std::string(name_of(header_.kind)) +
                                " arrived damaged (its checksum does not hold)");
                staged_begin_ += checksum_bytes;
                state_ = State::header;
                if (header_.kind != MessageKind::beat)
                    receiver_->received(header_, destination_);
                return true;
            }
        }
        return false;
    }

    void took_payload(size_t count) {
        crc_.add(destination_.subspan(filled_, count));
        filled_ += count;
        if (filled_ == destination_.size())
            state_ = State::checksum;
    }

    bool in_message() const { return state_ != State::header || staged_end_ > staged_begin_; }

    // --- ending, on the loop's thread
    // --------------------------------------------------------------

    /// Listens no longer, lets the queue drain, then waits a little for the other end to close: to
    /// close with bytes unread would make the system throw away what the other end has not read.
    void say_goodbye(const std::string& reason) {
        if (receiver_ == nullptr || !socket_)
            return;
        {
            const std::lock_guard lock(mutex_);
            saying_goodbye_ = true;
            if (!sending_ && open_)
                ::shutdown(fd_, SHUT_WR);
        }
        staged_begin_ = staged_end_ = 0;
        lose(reason);
    }

    void lose(const std::string& reason) {
        if (const auto receiver = std::exchange(receiver_, nullptr))
            receiver->lost(reason);
    }

    const std::shared_ptr<EventLoop> loop_;
    const std::string peer_name_;
    const milliseconds timeout_, lease_;
    const bool accepted_;
    std::atomic<uint64_t> cap_{stranger_frame_cap};
    std::atomic<bool> alive_{false};

    std::mutex mutex_;  // over all down to the next blank line
    std::deque<Outgoing> queue_;
    bool open_ = true;             // takes messages to send
    bool saying_goodbye_ = false;  // ends when the queue is empty
    bool blocked_ = false;         // the other end takes nothing at present,
    milliseconds unsent_for_{0};   // and has not for so long
    milliseconds quiet_for_{0};    // since a message was queued
    LinkShaper shaper_;
    const bool shaped_;

    // The loop's thread only; it changes socket_ and fd_ under the mutex, for senders read fd_.
    std::optional<Socket> socket_;
    int fd_;
    std::unique_ptr<TlsStream> tls_;  // nullptr: none, or not to be had; the loop's thread only
    bool sending_;  // somebody sends, or waits until it can go on; under the mutex
    bool shaking_hands_ = false;
    std::shared_ptr<Receiver> receiver_;
    enum class State { header, payload, checksum } state_ = State::header;
    Header header_;
    std::span<std::byte> destination_;
    size_t filled_ = 0;
    Crc32c crc_;
    std::array<std::byte, staging_bytes> staging_;
    size_t staged_begin_ = 0;
    size_t staged_end_ = 0;
    bool understood_ = false;     // a header has come
    milliseconds unread_for_{0};  // since bytes came, while some were missing
    milliseconds silent_for_{0};  // since bytes came
    milliseconds lingered_{0};    // since the last was sent
};

}  // namespace

std::shared_ptr<SocketConnection> make_socket_connection(std::shared_ptr<EventLoop> loop,
                                                         Socket socket, std::string peer,
                                                         const TransportOptions& options,
                                                         bool accepted) {
    return std::make_shared<StreamConnection>(std::move(loop), std::move(socket), std::move(peer),
                                              options, accepted);
}

}  // namespace trainer
