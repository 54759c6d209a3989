// The two kinds of failure: what a user can mend (exceptions) and what only a programmer can
// (check).
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace trainer {

/// A run that cannot go on: a file, the network, the numbers. Its message is one line that names
/// what was wrong, where, and what to do. Caught in main only, which exits with 1.
class Error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// A command line or configuration that cannot be run. Caught in main only, which exits with 2.
class UsageError : public Error {
  public:
    using Error::Error;
};

/// Throws std::logic_error with `what` and the place of the call where an invariant does not hold.
/// For errors of the program itself, never for bad input.
inline void check(bool holds, std::string_view what,
                  std::source_location at = std::source_location::current()) {
    if (!holds)
        throw std::logic_error(std::string(at.file_name()) + ":" + std::to_string(at.line()) +
                               ": " + std::string(what));
}

}  // namespace trainer
