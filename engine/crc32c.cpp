#include "engine/crc32c.h"

#include <algorithm>
#include <array>

#ifdef TRAINER_HAVE_ISAL
#include <isa-l/crc.h>
#endif

namespace trainer {

#ifdef TRAINER_HAVE_ISAL

uint32_t crc32c(const void* data, size_t bytes, uint32_t previous) {
    // isa-l takes an int of bytes, a pointer it does not write through, and leaves out both
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

uint32_t crc32c(const void* data, size_t bytes, uint32_t previous) {
    static constexpr std::array<uint32_t, 256> table = make_table();
    const auto* at = static_cast<const unsigned char*>(data);
    uint32_t crc = ~previous;
    for (size_t i = 0; i < bytes; ++i)
        crc = (crc >> 8) ^ table[(crc ^ at[i]) & 0xff];
    return ~crc;
}

#endif

}  // namespace trainer
