#include "engine/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace trainer {

FileError::FileError(const std::string& doing, const std::filesystem::path& path, int code)
    : Error(doing + " '" + path.string() + "': " + std::strerror(code)), code_(code) {}

bool FileError::no_space() const {
    return code_ == ENOSPC || code_ == EDQUOT || code_ == EFBIG;
}

namespace {

int open_or_throw(const std::string& doing, const std::filesystem::path& path, int flags) {
    const int descriptor = open(path.c_str(), flags | O_CLOEXEC, 0666);
    if (descriptor < 0)
        throw FileError(doing, path, errno);
    return descriptor;
}

}  // namespace

File File::create(const std::filesystem::path& path) {
    return {open_or_throw("cannot create", path, O_WRONLY | O_CREAT | O_TRUNC), path};
}

File File::open_to_read(const std::filesystem::path& path) {
    return {open_or_throw("cannot open", path, O_RDONLY), path};
}

File File::open_to_append(const std::filesystem::path& path) {
    return {open_or_throw("cannot open", path, O_RDWR | O_CREAT | O_APPEND), path};
}

File File::open_directory(const std::filesystem::path& path) {
    return {open_or_throw("cannot open", path, O_RDONLY | O_DIRECTORY), path};
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(path_, other.path_);
    return *this;
}

File::~File() {
    if (descriptor_ >= 0)
        close(descriptor_);
}

int64_t File::size() const {
    struct stat status {};
    if (fstat(descriptor_, &status) != 0)
        throw FileError("cannot look at", path_, errno);
    return status.st_size;
}

void File::write(const void* data, size_t bytes) {
    const auto* at = static_cast<const std::byte*>(data);
    while (bytes > 0) {
        const ssize_t written = ::write(descriptor_, at, bytes);
        if (written < 0) {
            if (errno == EINTR)
                continue;
            throw FileError("cannot write", path_, errno);
        }
        at += written;
        bytes -= static_cast<size_t>(written);
    }
}

void File::read_at(int64_t offset, void* target, size_t bytes) const {
    auto* at = static_cast<std::byte*>(target);
    while (bytes > 0) {
        const ssize_t count = pread(descriptor_, at, bytes, offset);
        if (count < 0) {
            if (errno == EINTR)
                continue;
            throw FileError("cannot read", path_, errno);
        }
        if (count == 0)
            throw Error("'" + path_.string() + "' ends at byte " + std::to_string(offset) + ", " +
                        std::to_string(bytes) + " bytes too early");
        at += count;
        offset += count;
        bytes -= static_cast<size_t>(count);
    }
}

void File::truncate(int64_t bytes) {
    if (ftruncate(descriptor_, bytes) != 0)
        throw FileError("cannot cut", path_, errno);
}

void File::sync() {
    // Some file systems have no sync of directories, and say EINVAL.
    if (fsync(descriptor_) != 0 && errno != EINVAL)
        throw FileError("cannot sync", path_, errno);
}

bool File::lock() {
    return flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

void sync_directory(const std::filesystem::path& path) {
    File::open_directory(path).sync();
}

}  // namespace trainer
