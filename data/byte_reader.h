// ByteReader: the bytes of a file, unpacked on the way where it is gzip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace trainer {

/// Reads a file from its start to its end. Whether it is gzip (RFC 1952) is told by its first two
/// bytes; a name that ends in ".gz" must be. Checksums and lengths inside gzip are verified.
class ByteReader {
  public:
    /// Opens the file. `advice` ends every message, e.g. "fetch it again".
    /// Throws Error where it cannot be opened or is not what its name says.
    ByteReader(const std::filesystem::path& path, std::string advice);
    ~ByteReader();
    ByteReader(const ByteReader&) = delete;
    ByteReader& operator=(const ByteReader&) = delete;

    /// Reads up to `bytes` bytes and returns how many: fewer only at the end of the file.
    /// Throws Error where the system cannot read it or where gzip is cut short or corrupt.
    size_t read(void* to, size_t bytes);

    /// Unpacked bytes read so far.
    int64_t position() const;

    /// Unpacked bytes of the whole file; where it is gzip, the most that it can hold (deflate packs
    /// at most 1032 bytes into one), so that a size claimed inside can be refused before memory is
    /// taken for it.
    int64_t size_bound() const;
    bool packed() const;

    /// Throws an Error "<path>: <what>; <advice>".
    [[noreturn]] void fail(const std::string& what) const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace trainer
