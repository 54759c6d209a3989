// What tests of tools/convert share.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "data/jpeg.h"
#include "tests/error_of.h"
#include "tests/photos.h"

namespace trainer::convert {

namespace fs = std::filesystem;

inline const std::function<bool()> never = [] { return false; };

inline bool can_encode() {
    try {
        encode_png(waves(2, 2));
        return has_jpeg_library();
    } catch (const UsageError&) {
        return false;
    }
}

#define NEEDS_LIBRARIES() \
    if (!can_encode())    \
    GTEST_SKIP() << "this build writes no PNG or no JPEG"

/// Runs `work` and returns its result and what it printed.
inline std::pair<int, std::string> printed(const std::function<int()>& work) {
    testing::internal::CaptureStdout();
    const int code = work();
    return {code, testing::internal::GetCapturedStdout()};
}

/// What the Error says that `work` throws.
/// The files of a directory, by their paths in it.
inline std::map<std::string, std::vector<std::byte>> files_in(const fs::path& dir) {
    std::map<std::string, std::vector<std::byte>> files;
    for (const auto& entry : fs::recursive_directory_iterator(dir))
        if (entry.is_regular_file())
            files[fs::relative(entry.path(), dir).string()] = read_bytes(entry.path());
    return files;
}

}  // namespace trainer::convert
