// What `trainer models` says.
#pragma once

#include <string>

namespace trainer {

/// A line a model: its name, parameters, multiply-adds of one image, and for which images.
std::string list_models();

}  // namespace trainer
