#include "comm/message.h"

#include <algorithm>
#include <bit>

#include "engine/error.h"

namespace trainer {

// Slabs travel as they lie in memory.
static_assert(std::endian::native == std::endian::little, "the protocol is little endian");

namespace {

constexpr std::array<std::byte, 4> magic = {std::byte{'T'}, std::byte{'R'}, std::byte{'N'},
                                            std::byte{'R'}};
constexpr size_t header_checksum_at = header_bytes - 4;
constexpr int64_t largest_index = (int64_t{1} << 62) - 1;  // so that first + count cannot overflow
constexpr const char* tls_is_not_set = ": it speaks TLS; comm.tls is set there and not here";

}  // namespace

std::string seconds_of(std::chrono::milliseconds time) {
    return std::to_string(static_cast<double>(time.count()) / 1000).substr(0, 4) + " s";
}

std::string printable(std::span<const std::byte> bytes) {
    std::string text;
    for (const std::byte byte : bytes) {
        const auto c = static_cast<unsigned char>(byte);
        text += c < ' ' || c == 0x7f ? '.' : static_cast<char>(c);
    }
    return text;
}

std::string escaped(std::span<const std::byte> bytes) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    for (const std::byte byte : bytes) {
        const auto c = static_cast<unsigned char>(byte);
        if (c >= ' ' && c < 0x7f)
            text += static_cast<char>(c);
        else
            (text += "\\x").append({digits[c >> 4], digits[c & 15]});
    }
    return text;
}

std::string_view name_of(MessageKind kind) {
    constexpr std::array<std::string_view, last_kind + 1> names = {
        "",      "hello", "welcome", "refuse", "push", "pull",  "pulled",    "call",
        "reply", "note",  "bye",     "error",  "beat", "again", "challenge", "proof"};
    return names.at(static_cast<size_t>(kind));
}

std::array<std::byte, header_bytes> encode(const Header& header) {
    std::array<std::byte, header_bytes> bytes;
    std::copy(magic.begin(), magic.end(), bytes.begin());
    put<uint16_t>(&bytes[4], protocol_version);
    put<uint8_t>(&bytes[6], static_cast<uint8_t>(header.kind));
    put<uint8_t>(&bytes[7], header.codec);
    put<int32_t>(&bytes[8], header.worker);
    put<uint32_t>(&bytes[12], header.request);
    put<int64_t>(&bytes[16], header.step);
    put<int64_t>(&bytes[24], header.range.first);
    put<int64_t>(&bytes[32], header.range.count);
    put<uint64_t>(&bytes[40], header.payload);
    put<uint32_t>(&bytes[header_checksum_at], checksum_of_header(bytes).value());
    return bytes;
}

Crc32c checksum_of_header(std::span<const std::byte, header_bytes> bytes) {
    Crc32c crc;
    crc.add(bytes.first<header_checksum_at>());
    return crc;
}

Header parse_header(std::span<const std::byte, header_bytes> bytes, uint64_t cap) {
    const bool tls = bytes[0] == std::byte{22} && bytes[1] == std::byte{3};  // a handshake
    if (!std::equal(magic.begin(), magic.end(), bytes.begin()))
        throw Error("what it sent is not this program's protocol (it begins with \"" +
                    escaped(bytes.first<16>()) + "\")" + (tls ? tls_is_not_set : ""));
    // Magic and version stand here in every version, so that this message can be given.
    if (const auto version = get<uint16_t>(&bytes[4]); version != protocol_version)
        throw Error("it speaks protocol version " + std::to_string(version) + ", this program " +
                    std::to_string(protocol_version) + ": run the same build on every machine");
    if (get<uint32_t>(&bytes[header_checksum_at]) != checksum_of_header(bytes).value())
        throw Error("a message header arrived damaged (its checksum does not hold)");

    Header header;
    const auto kind = get<uint8_t>(&bytes[6]);
    if (kind == 0 || kind > last_kind)
        throw Error("it sent a message of unknown kind " + std::to_string(kind));
    header.kind = static_cast<MessageKind>(kind);
    header.codec = get<uint8_t>(&bytes[7]);
    header.worker = get<int32_t>(&bytes[8]);
    header.request = get<uint32_t>(&bytes[12]);
    header.step = get<int64_t>(&bytes[16]);
    header.range = {get<int64_t>(&bytes[24]), get<int64_t>(&bytes[32])};
    header.payload = get<uint64_t>(&bytes[40]);

    const Range& range = header.range;
    if (range.first < 0 || range.count < 0 || range.first > largest_index ||
        range.count > largest_index)
        throw Error("it sent a " + std::string(name_of(header.kind)) +
                    " for the impossible range " + std::to_string(range.first) + " + " +
                    std::to_string(range.count));
    if (header.payload > cap)
        throw Error("it announced a " + std::string(name_of(header.kind)) + " of " +
                    std::to_string(header.payload) + " bytes, more than the " +
                    std::to_string(cap) + " allowed here");
    const bool named = header.kind == MessageKind::call || header.kind == MessageKind::reply ||
                       header.kind == MessageKind::note;
    if (named && static_cast<uint64_t>(range.count) > header.payload)
        throw Error("it sent a " + std::string(name_of(header.kind)) +
                    " whose name is longer than the message");
    return header;
}

}  // namespace trainer
