// Rules that bind several keys of the config to each other.
#pragma once

#include <functional>
#include <string>

#include "tools/trainer/config.h"

namespace trainer {

/// Throws UsageError where keys that are each in range do not go together, or a required one is
/// missing. `place` gives the start of a message about a key: "file:line: key: ".
void check_config(const Config& config,
                  const std::function<std::string(const std::string&)>& place);

}  // namespace trainer
