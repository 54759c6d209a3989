#include "engine/whole_file.h"

#include <system_error>

#include "engine/file.h"

namespace trainer {

namespace fs = std::filesystem;

namespace {

/// Where `path` leads; it need not be there yet.
fs::path behind_links(fs::path path) {
    while (fs::is_symlink(path))
        path = path.parent_path() / fs::read_symlink(path);
    return path;
}

/// Throws unless there is a file or nothing. So it does where links lead nowhere, in a circle.
void require_file(const fs::path& path) {
    std::error_code error;
    const fs::file_type type = fs::status(path, error).type();
    if (type == fs::file_type::none)
        throw FileError("cannot write", path, error.value());
    if (type != fs::file_type::not_found && type != fs::file_type::regular)
        throw UsageError("'" + path.string() + "' is " +
                         (type == fs::file_type::directory ? "a directory" : "no regular file") +
                         "; name a file to write");
}

}  // namespace

void write_whole_file(const fs::path& path, std::span<const std::byte> bytes) {
    require_file(path);
    const fs::path target = behind_links(path);
    const fs::path part = target.string() + ".part";
    try {
        File file = File::create(part);
        file.write(bytes.data(), bytes.size());
        file.sync();
        std::error_code error;
        fs::rename(part, target, error);
        if (error)
            throw FileError("cannot write", path, error.value());
    } catch (const FileError& error) {
        std::error_code ignored;
        fs::remove(part, ignored);
        throw FileError("cannot write", path, error.code());
    }
}

}  // namespace trainer
