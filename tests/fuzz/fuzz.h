// What the fuzz targets share: expectations that hold in any build, and files of any bytes.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>

#include "engine/error.h"

namespace trainer::fuzz {

inline void expect(bool holds) {
    if (!holds)
        std::abort();
}

/// Runs `parse`, for which refusing the bytes is as good as taking them.
template <typename Parse>
void try_parse(Parse parse) {
    try {
        parse();
    } catch (const Error&) {
    }
}

/// A file in memory, which has a path as any other; its bytes change from input to input.
class MemoryFile {
  public:
    explicit MemoryFile(const char* name) : descriptor_(::memfd_create(name, 0)) {
        expect(descriptor_ >= 0 && ::fchmod(descriptor_, 0600) == 0);
    }
    ~MemoryFile() { ::close(descriptor_); }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;

    std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

    void fill(std::span<const uint8_t> bytes) const {
        resize(0);
        put(0, bytes);
    }
    /// Grows with zeros.
    void resize(int64_t bytes) const { expect(::ftruncate(descriptor_, bytes) == 0); }
    void put(int64_t offset, std::span<const uint8_t> bytes) const {
        expect(::pwrite(descriptor_, bytes.data(), bytes.size(), offset) ==
               static_cast<ssize_t>(bytes.size()));
    }

  private:
    int descriptor_;
};

/// A folder of links to files in memory, for readers that take a folder.
class MemoryFolder {
  public:
    MemoryFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "fuzz.XXXXXX").string();
        expect(::mkdtemp(pattern.data()) != nullptr);
        path_ = pattern;
    }
    ~MemoryFolder() { std::filesystem::remove_all(path_); }
    MemoryFolder(const MemoryFolder&) = delete;
    MemoryFolder& operator=(const MemoryFolder&) = delete;

    void link(const std::string& name, const MemoryFile& file) const {
        std::filesystem::create_symlink(file.path(), path_ / name);
    }
    std::string path() const { return path_.string(); }

  private:
    std::filesystem::path path_;
};

}  // namespace trainer::fuzz
