// CRC32C (Castagnoli, RFC 3720 appendix B.4): the checksum of checkpoints and of the wire.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trainer {

/// CRC32C of `bytes` at `data`, continuing from `previous`, the value so far (0 at the start).
/// crc32c("123456789", 9) is 0xe3069283.
uint32_t crc32c(const void* data, size_t bytes, uint32_t previous = 0);

/// The same without ISA-L, for machines that lack it, and to check against.
uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t previous = 0);

}  // namespace trainer
