#include "engine/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#ifdef TRAINER_HAVE_ISAL
#include <isa-l/crc.h>
#endif
#ifdef __SSE4_2__
#include <nmmintrin.h>
#endif

namespace trainer {

#ifdef __SSE4_2__

uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t previous) {
    const auto* at = static_cast<const unsigned char*>(data);
    uint64_t crc = ~previous;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t eight = 0;
        std::memcpy(&eight, at, 8);
        crc = _mm_crc32_u64(crc, eight);
    }
    auto low = static_cast<uint32_t>(crc);
    for (; bytes > 0; --bytes, ++at)
        low = _mm_crc32_u8(low, *at);
    return ~low;
}

#else

namespace {

constexpr std::array<uint32_t, 256> make_table() {
    std::array<uint32_t, 256> table{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; ++bit)
            value = (value >> 1) ^ (value & 1 ? 0x82f63b78u : 0u);
        table[byte] = value;
    }
    return table;
}

}  // namespace

uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t previous) {
    static constexpr std::array<uint32_t, 256> table = make_table();
    const auto* at = static_cast<const unsigned char*>(data);
    uint32_t crc = ~previous;
    for (size_t i = 0; i < bytes; ++i)
        crc = (crc >> 8) ^ table[(crc ^ at[i]) & 0xff];
    return ~crc;
}

#endif

uint32_t crc32c(const void* data, size_t bytes, uint32_t previous) {
#ifdef TRAINER_HAVE_ISAL
    // ISA-L takes an int of bytes, a pointer it does not write through, and leaves out both
    // inversions.
    auto* at = static_cast<unsigned char*>(const_cast<void*>(data));
    uint32_t crc = ~previous;
    while (bytes > 0) {
        const size_t now = std::min(bytes, size_t{1} << 30);
        crc = crc32_iscsi(at, static_cast<int>(now), crc);
        at += now;
        bytes -= now;
    }
    return ~crc;
#else
    return crc32c_portable(data, bytes, previous);
#endif
}

}  // namespace trainer
