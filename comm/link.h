// Link: what a worker sees of the servers.
//
// A push or pull names a range of the slab of all parameters; the link knows which server has which
// part, and gives a ticket that can be waited for. Every wait is timed. An Error, from whichever
// call, is the end of the link: the servers are told, nothing of the caller's memory is used any
// more, and every further call throws it again.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/buffer_pool.h"
#include "comm/hello.h"
#include "comm/secret.h"
#include "comm/shards.h"
#include "comm/transport.h"
#include "engine/error.h"

namespace trainer {

struct LinkOptions {
    std::vector<std::string> servers;  ///< HOST:PORT, in the order of their shards
    int wished_rank = -1;              ///< -1: as server 0 hands out
    Cuts cuts;                         ///< between the servers, in elements
    size_t element_bytes = 4;
    std::string called = "server";  ///< what messages call the other ends, before their number
    /// Where a server is lost without having said why, the others are told to begin again and the
    /// Error is a ServerLost; else it is the end of the run.
    bool reconnect = false;
    bool alone =
        false;  ///< then the others go on without this worker, which takes part again later
    std::shared_ptr<const Secret> secret{};       ///< to prove, and to be proved; nullptr: none
    Terms terms;                                  ///< what servers must agree to
    std::chrono::milliseconds timeout{30000};     ///< of connecting, and of waits that name none
    std::optional<Clock::time_point> deadline{};  ///< of connecting; none: after the timeout
};

/// A server is lost, says that the run begins again, or does not take this worker just yet: a new
/// Link may do better.
class ServerLost : public Error {
  public:
    using Error::Error;
};

/// What waits for a push or pull. Copies stand for the same one.
class Ticket {
  private:
    friend class Link;
    struct State;
    std::shared_ptr<State> state_;
};

/// What has gone over the link, and how long it took.
struct LinkCounters {
    int64_t push_bytes = 0;  ///< payloads of pushes
    int64_t pull_bytes = 0;  ///< payloads of pulls
    double push_s = 0;       ///< time during which any push was under way, until it was handed over
    double pull_s = 0;       ///< time during which any pull was under way, until it was there
    double travel_s = 0;     ///< time during which a push or a pull was under way
    double wait_s = 0;       ///< time that wait() has blocked
};

/// A note from a server.
struct Note {
    int server = 0;
    int64_t step = 0;
    std::string name;
    PooledBytes body;
};

/// Used by one thread at a time.
class Link {
  public:
    /// Connects to all servers, server 0 first. Throws Error where one cannot be reached within
    /// the timeout, or refuses; the message says which and why.
    Link(std::unique_ptr<Transport> transport, LinkOptions options);

    /// Without close() the servers take it for a loss.
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    int rank() const;
    int workers() const;  ///< that the run has
    int servers() const;
    /// A range's parts by server, for who encodes them.
    std::vector<Piece> split(Range range) const { return trainer::split(options().cuts, range); }

    /// Sends an encoded range, which lies in one shard, to its server. The payload's memory stays
    /// untouched until the ticket is done.
    Ticket push(int64_t step, Range range, uint8_t codec, Parts payload);

    /// Sends a range raw (codec 0), of any shards, from a slab that begins at `slab`.
    Ticket push(int64_t step, Range range, const std::byte* slab);

    /// Asks for a range as it is after `step` global updates; it is written into the slab that
    /// begins at `slab`, which stays untouched until the ticket is done.
    Ticket pull(int64_t step, Range range, std::byte* slab);

    /// Whether wait() would return at once.
    bool done(const Ticket& ticket) const;

    /// Returns when the push has been handed over (its memory is free again) or the pull is there.
    /// Throws Error after `timeout` (none: that of the options), or where a server is lost.
    void wait(const Ticket& ticket, std::optional<std::chrono::milliseconds> timeout = {});

    /// Sends a named request to a server and waits for its answer, as wait() does.
    PooledBytes call(int server, int64_t step, const std::string& name, Parts body,
                     std::optional<std::chrono::milliseconds> timeout = {});

    /// Sends a named message that nobody answers; the body is copied.
    void note(int server, int64_t step, const std::string& name, std::span<const std::byte> body);

    /// The next note that a server has sent, if there is one.
    std::optional<Note> take_note();

    LinkCounters counters() const;

    /// The latest step that an answered pull was of: beyond the one that was asked for where the
    /// servers have gone on without this worker.
    int64_t newest_step() const;

    /// Throws Error where the link has ended.
    void check_alive() const;

    /// Tells all servers that this worker has failed and why, and ends the link.
    void fail(const std::string& why);

    /// Takes leave of all servers and waits until they have seen it.
    void close();

  private:
    struct Core;
    const LinkOptions& options() const;
    Ticket start(int64_t step, std::string what);
    void send_push(const Ticket& ticket, const Piece& piece, uint8_t codec, Parts payload);
    [[noreturn]] void give_up(const std::string& why);

    std::unique_ptr<Core> core_;
    std::unique_ptr<Transport> transport_;  // goes first: its thread uses the core
};

}  // namespace trainer
