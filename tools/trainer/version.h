// What this program is: version, and what it was built with.
#pragma once

#include <string>

namespace trainer {

/// E.g. "0.1.0".
std::string version();

/// Build type, compiler, engine of the CPU: "Release, GNU 12.2.0, oneDNN 2.6.3".
std::string build_description();

}  // namespace trainer
