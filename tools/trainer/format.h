// Text of numbers, by printf's patterns.
#pragma once

#include <cstdio>
#include <string>

namespace trainer {

/// Up to 255 characters; `pattern` is a literal that fits the values.
template <typename... Values>
std::string format(const char* pattern, Values... values) {
    char text[256];
    std::snprintf(text, sizeof text, pattern, values...);
    return text;
}

}  // namespace trainer
