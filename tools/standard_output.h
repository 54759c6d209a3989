// What a program has printed, seen to be out.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

#include "engine/error.h"

namespace trainer {

/// Throws Error where anything printed so far could not be written.
inline void flush_output() {
    errno = 0;  // what is kept for another try says why in failing again
    std::cout.flush();
    const bool flushed = std::fflush(stdout) == 0;
    if (std::cout.good() && flushed && std::ferror(stdout) == 0)
        return;
    const std::string why = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
    throw Error("standard output could not be written" + why);
}

}  // namespace trainer
