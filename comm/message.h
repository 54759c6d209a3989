// Message: what one peer sends another, as it stands on the wire.
//
//   message = header (52 bytes)  payload (header.payload bytes)  checksum (4 bytes)
//
// PROTOCOL.md beside this file has it byte by byte. Everything is little endian. The header ends
// with a CRC32C of itself, so that nothing is believed before it is checked; the checksum behind
// the payload is the CRC32C of header and payload together, computed while the bytes move.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/crc32c.h"
#include "engine/dtype.h"

namespace trainer {

inline constexpr uint16_t protocol_version = 2;
inline constexpr size_t header_bytes = 52;
inline constexpr size_t checksum_bytes = 4;

/// Largest payload from a peer that has not been welcomed yet.
inline constexpr uint64_t stranger_frame_cap = 256 << 10;

/// Header::request of a refuse: the same may be taken later, once a worker that is lost has been
/// seen to be.
inline constexpr uint32_t refused_for_now = 1;

/// What a message is for. The numbers are the protocol's: new kinds are added, none is reused.
enum class MessageKind : uint8_t {
    hello = 1,    ///< worker to server, first: who it is and what it runs (hello.h)
    welcome = 2,  ///< server to worker: its rank
    refuse = 3,   ///< server to worker: why it may not take part (text); the connection ends
    push = 4,     ///< worker to server: an encoded range of step `step`
    pull = 5,     ///< worker to server: asks for a range of the model as it is at `step`
    pulled = 6,   ///< server to worker: the range that `request` asked for
    call = 7,     ///< worker to server: a named request with a body (barrier, statistics, state)
    reply = 8,    ///< server to worker: the answer to the call `request`
    note = 9,     ///< either way: a named message that nobody answers (metrics, stop)
    bye = 10,     ///< either way: done, nothing more will come; answered by a bye
    error = 11,   ///< either way: the sender's run has failed (text); the connection ends
    beat = 12,    ///< either way: a sign of life where nothing else is to be said
    again = 13,   ///< either way: a part of the run is lost (text), all connect anew and go back to
                  ///< the last checkpoint; the connection ends
    challenge = 14,  ///< server to worker: a number to prove the secret with (hello.h)
    proof = 15,      ///< worker to server: the proof
};
inline constexpr uint8_t last_kind = 15;

/// For people, e.g. "push".
std::string_view name_of(MessageKind kind);

/// Everything about a message but its payload.
struct Header {
    MessageKind kind = MessageKind::note;
    uint8_t codec = 0;     ///< how the payload encodes its range; comm passes it on unread
    int32_t worker = -1;   ///< rank of the worker at the connection's one end; -1: none yet
    uint32_t request = 0;  ///< of pull and call, echoed in pulled and reply
    int64_t step = 0;
    Range range;  ///< elements of a slab; call, reply and note: count is the bytes of the name,
                  ///< which ends the payload
    uint64_t payload = 0;  ///< bytes

    bool operator==(const Header&) const = default;
};

/// CRC32C (Castagnoli) of a stream of bytes.
class Crc32c {
  public:
    void add(std::span<const std::byte> bytes) {
        value_ = crc32c(bytes.data(), bytes.size(), value_);
    }
    uint32_t value() const { return value_; }

  private:
    uint32_t value_ = 0;
};

/// The header's bytes, its checksum included.
std::array<std::byte, header_bytes> encode(const Header& header);

/// Takes a header apart. Throws Error where these are not the bytes of this protocol and version,
/// where the checksum does not hold, or where the payload claims more than `cap` bytes.
Header parse_header(std::span<const std::byte, header_bytes> bytes, uint64_t cap);

/// The checksum of the whole message so far: of an encoded header, payload still to be added.
Crc32c checksum_of_header(std::span<const std::byte, header_bytes> bytes);

/// Text that a peer sent, fit for a log: control characters become dots.
std::string printable(std::span<const std::byte> bytes);

/// Bytes that may be anything, as ASCII for a log: controls and all above 0x7e become \xNN.
std::string escaped(std::span<const std::byte> bytes);

/// For messages to people, e.g. "30.0 s".
std::string seconds_of(std::chrono::milliseconds time);

/// Little-endian numbers at the front of `bytes`.
template <typename T>
void put(std::byte* bytes, T value) {
    for (size_t i = 0; i < sizeof(T); ++i)
        bytes[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
}
template <typename T>
T get(const std::byte* bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i)
        value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    return static_cast<T>(value);
}

}  // namespace trainer
