// What strangers may send, parsed: any bytes as a header, as a hello, as a welcome.
//
// Nothing may crash or run away, and what is accepted must come out of the encoder again.
// Built with -DTRAINER_FUZZ=ON by clang; run as message_fuzz -max_total_time=60.
#include <algorithm>
#include <array>

#include "comm/hello.h"
#include "tests/fuzz/fuzz.h"

using namespace trainer;
using namespace trainer::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
    if (size >= header_bytes) {
        std::array<std::byte, header_bytes> header;
        std::copy_n(bytes.begin(), header_bytes, header.begin());
        try_parse([&] {
            const Header parsed = parse_header(header, stranger_frame_cap);
            expect(parsed.payload <= stranger_frame_cap);
            expect(encode(parsed) == header);
        });
        // The checksum keeps chance from getting far: once more with one that holds.
        put<uint32_t>(&header[header_bytes - 4], [&] {
            Crc32c crc;
            crc.add(std::span(header).first<header_bytes - 4>());
            return crc.value();
        }());
        try_parse([&] {
            const Header parsed = parse_header(header, stranger_frame_cap);
            expect(encode(parsed) == header);
            expect(parsed.range.end() >= parsed.range.first);
        });
    }
    try_parse([&] {
        const Hello hello = parse_hello(bytes);
        const auto again = encode(hello);
        expect(std::equal(bytes.begin(), bytes.end(), again.begin(), again.end()));
        difference(hello.terms, "a", {{"model", "mlp"}}, "b");
    });
    try_parse([&] {
        const auto again = encode(parse_welcome(bytes));
        expect(std::equal(bytes.begin(), bytes.end(), again.begin(), again.end()));
    });
    return 0;
}
