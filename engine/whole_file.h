// write_whole_file: a file that a user has named, written whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace trainer {

/// Writes `bytes` to the file `path`, or to what it points at where it is a symbolic link. What was
/// there stays until all of it is written and will last; where that fails nothing is left behind.
/// Throws UsageError where something other than a file is there, else FileError.
void write_whole_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

}  // namespace trainer
