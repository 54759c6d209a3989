// The keys of the config, one row each: from these, files and --set are read, the config in force
// is printed, misspelt keys are matched, and --help is made.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/trainer/config.h"
#include "tools/trainer/config_value.h"

namespace trainer {

/// What a key has a say in: what a run computes, or only where and how it does so.
enum class Effect { result, run };

/// One key, bound to the Config that its table was made for.
struct Key {
    std::string path;  ///< e.g. "optim.schedule.type"
    std::function<Fit(const YAML::Node&)> read;
    std::function<std::string()> print;  ///< as YAML; empty: the key isn't there
    std::function<void()> reset;         ///< back to what it was when the table was made
    std::string takes;
    std::vector<std::string> words;
    std::string about;
    Effect effect = Effect::run;
};

/// Every key in the order in which the config is printed. `config` outlives the table.
std::vector<Key> keys_of(Config& config);

}  // namespace trainer
