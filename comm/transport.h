// Transport: moves messages between peers, within this process or over sockets, with the same
// semantics either way.
//
// A Transport is one end of any number of connections and has one thread, on which every callback
// of those connections runs. There is no global state: a cluster is as many transports as it has
// ranks, each on a thread of one process or in a process of its own.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/emulate.h"
#include "comm/event_loop.h"
#include "comm/message.h"
#include "comm/tls.h"

namespace trainer {

/// Pieces of a payload that are sent one after the other from where they lie.
using Parts = std::vector<std::span<const std::byte>>;

/// Called once for a message sent: true where its payload's memory is free again because it has
/// been handed to the system (sockets) or copied by the receiver (in process); false where the
/// connection ended first. Runs on the transport's thread, the peer's, or inside send(); so it only
/// takes note and neither blocks nor calls back.
using Completion = std::function<void(bool sent)>;

/// What a connection tells about incoming messages. All on the transport's thread. An exception
/// ends the connection with its text as the reason.
class Receiver {
  public:
    virtual ~Receiver() = default;

    /// Where the payload is to go: exactly header.payload bytes, alive until received() or lost().
    /// Not called for empty payloads.
    virtual std::span<std::byte> destination(const Header& header) = 0;

    /// A message is complete; `payload` is what destination() gave.
    virtual void received(const Header& header, std::span<std::byte> payload) = 0;

    /// The connection has ended, by either side, for `reason` (e.g. "it closed the connection").
    /// The last call.
    virtual void lost(const std::string& reason) = 0;
};

/// One ordered, reliable stream of messages each way. Usable from any thread.
class Connection {
  public:
    virtual ~Connection() = default;

    /// Queues a message; header.payload must be the sum of `payload`'s sizes. Returns at once; the
    /// payload's memory stays untouched until `done` is called. Messages arrive in this order.
    virtual void send(Header header, Parts payload, Completion done) = 0;

    /// Ends the connection after what is queued has been sent (or the transport's timeout).
    /// Receiver::lost follows with `reason`.
    virtual void close(const std::string& reason) = 0;

    /// Payloads above this are refused when announced; stranger_frame_cap at first.
    virtual void allow_payload(uint64_t bytes) = 0;

    /// From now on both ends give signs of life: where nothing else goes out a beat does, four
    /// times in TransportOptions::lease, and an end from which nothing has come for that long is
    /// lost. Threads of one process need none.
    virtual void keep_alive() {}

    /// The other end as addresses go, e.g. "10.0.0.3:41412", "a process of this machine (unix)".
    virtual std::string peer() const = 0;

    /// Sends a payload that the message itself keeps alive; header.payload is set to its size.
    virtual void send_bytes(Header header, std::vector<std::byte> payload);
    void send_text(Header header, const std::string& text);
};

struct TransportOptions {
    /// For connections: how long without any progress, although there is something to send or half
    /// a message received, until the peer is given up.
    std::chrono::milliseconds timeout{30000};
    std::chrono::milliseconds lease{10000};  ///< Connection::keep_alive
    Emulation emulate{};                     ///< shapes what this end sends
    std::shared_ptr<TlsContext> tls{};  ///< sockets: encrypts all connections; no Unix sockets then
    std::string interface {
    };  ///< sockets: name of the network interface to listen on and call from
    bool local_sockets = true;  ///< sockets: whether one machine's processes take Unix sockets
    std::function<void(const std::string&)> log{};  ///< one line for people; any thread
};

/// Where a transport listens.
struct Listening {
    std::string bound;       ///< e.g. "0.0.0.0:9000", the real port where 0 was asked for
    std::string advertised;  ///< what others can call, e.g. "node1:9000"
};

class Transport {
  public:
    /// Makes the Receiver of a connection that somebody opened. On the transport's thread.
    using Accept = std::function<std::shared_ptr<Receiver>(std::shared_ptr<Connection>)>;

    /// Ends all connections (their completions and lost() are called) and joins the thread;
    /// afterwards nothing is called any more. Not to be called on that thread.
    virtual ~Transport() = default;

    /// Starts to accept connections on HOST:PORT. Throws UsageError where the address cannot be
    /// understood, Error where it cannot be had (port in use, not an address of this machine).
    virtual Listening listen(const std::string& address, Accept accept) = 0;

    /// Connects to HOST:PORT, trying again with back-off and resolving the name anew each time,
    /// until `deadline`; then throws Error. `name` is what messages call it, e.g. "server 1".
    virtual std::shared_ptr<Connection> connect(const std::string& address, const std::string& name,
                                                std::shared_ptr<Receiver> receiver,
                                                Clock::time_point deadline) = 0;

    /// The transport's thread, for timers and for work that is to run between callbacks.
    virtual EventLoop& loop() = 0;
};

/// The listeners of one process, by address; shared by the transports of one in-process cluster.
class InprocNetwork;
std::shared_ptr<InprocNetwork> make_inproc_network();

/// Transport within this process: a message is copied once, from the sender's memory into the
/// receiver's destination, by the receiver's thread. Addresses are any NAME:PORT; port 0 is
/// replaced by a free one.
std::unique_ptr<Transport> make_inproc_transport(std::shared_ptr<InprocNetwork> network,
                                                 TransportOptions options = {});

/// Transport over sockets (Boost.Asio): TCP, and Unix-domain sockets between the processes of one
/// machine where `local_sockets`. Sends from the caller's memory and receives into the receiver's
/// destination without a copy on the way, with checksums.
std::unique_ptr<Transport> make_socket_transport(TransportOptions options = {});

}  // namespace trainer
