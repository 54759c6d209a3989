// What the tests of the config share.
#pragma once

#include <string>
#include <vector>

#include "engine/error.h"
#include "tools/trainer/config.h"

namespace trainer {

using Overrides = std::vector<std::string>;

inline const std::string least = "model: {name: resnet20}\ndata: {dir: data/cifar10}\n";

/// The message about a config, or "" where it is taken.
inline std::string message_of(const std::string& text, const Overrides& overrides = {}) {
    try {
        parse_config(text, "x.yaml", overrides);
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

/// The message about one override of an otherwise good config.
inline std::string message_of_set(const std::string& assignment) {
    return message_of(least, {assignment});
}

/// An otherwise good config with these overrides.
inline Config with(const Overrides& overrides) {
    return parse_config(least, "x.yaml", overrides);
}

}  // namespace trainer
