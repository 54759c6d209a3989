// std::source_location for clang before 16, which lacks the builtin that libstdc++ makes it of.
// Included before everything else when fuzz targets are compiled.
#pragma once

#include <version>

#ifndef __cpp_lib_source_location
namespace std {
struct source_location {
    static constexpr source_location current(const char* file = __builtin_FILE(),
                                             unsigned line = __builtin_LINE()) noexcept {
        return {file, line};
    }
    constexpr const char* file_name() const noexcept { return file_; }
    constexpr unsigned line() const noexcept { return line_; }
    const char* file_;
    unsigned line_;
};
}  // namespace std
#endif
