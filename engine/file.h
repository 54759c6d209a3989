// Files as a program that must lose nothing handles them: every error is seen, and what is
// written can be made to last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/error.h"

namespace trainer {

/// An Error that a system call on a file caused.
class FileError : public Error {
  public:
    /// The message is "<doing> '<path>': <the system's words for code>".
    FileError(const std::string& doing, const std::filesystem::path& path, int code);
    int code() const { return code_; }  ///< errno
    /// Whether it is for want of space: a full disk, a quota, a limit on the size of files.
    bool no_space() const;

  private:
    int code_;
};

/// An open file or directory. Every function throws FileError.
class File {
  public:
    /// Creates the file, or empties it.
    static File create(const std::filesystem::path& path);
    static File open_to_read(const std::filesystem::path& path);
    /// Creates the file where it is not there; writes go to its end.
    static File open_to_append(const std::filesystem::path& path);
    static File open_directory(const std::filesystem::path& path);

    File(File&& other) noexcept;
    File& operator=(File&& other) noexcept;
    ~File();

    const std::filesystem::path& path() const { return path_; }
    int descriptor() const { return descriptor_; }
    int64_t size() const;

    /// Writes all of it.
    void write(const void* data, size_t bytes);
    /// Reads exactly `bytes` from `offset`; a file that ends before is an Error too.
    void read_at(int64_t offset, void* target, size_t bytes) const;
    void truncate(int64_t bytes);
    /// Returns once the contents (of a directory: its names) will outlive a loss of power.
    void sync();
    /// Takes the advisory lock of this file until it is closed; false where another process has
    /// it. File systems without locks count as granting it.
    bool lock();

  private:
    File(int descriptor, std::filesystem::path path)
        : descriptor_(descriptor), path_(std::move(path)) {}

    int descriptor_ = -1;
    std::filesystem::path path_;
};

/// Syncs a directory by its name.
void sync_directory(const std::filesystem::path& path);

}  // namespace trainer
