// A connection over one socket, as the socket transport handles it. Included by comm's .cpp only.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <memory>
#include <string>

#include "comm/transport.h"

namespace trainer {

using Socket = boost::asio::generic::stream_protocol::socket;

/// All but what Connection has is for the loop's thread.
class SocketConnection : public Connection {
  public:
    /// Begins to receive.
    virtual void start(std::shared_ptr<Receiver> receiver) = 0;

    /// The connection is over now: what is queued is dropped, the receiver told `reason`.
    virtual void end(const std::string& reason) = 0;

    /// To be called every `tick`: ends a connection that has made no progress for so many ticks.
    virtual void watch(std::chrono::milliseconds tick) = 0;

    /// Whether the socket is closed.
    virtual bool ended() const = 0;
};

/// `peer` is the other end's address for people; `accepted`: it has called this one.
std::shared_ptr<SocketConnection> make_socket_connection(std::shared_ptr<EventLoop> loop,
                                                         Socket socket, std::string peer,
                                                         const TransportOptions& options,
                                                         bool accepted);

}  // namespace trainer
