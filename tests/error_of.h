// What a piece of work throws, as text.
#pragma once

#include <functional>
#include <string>

#include "engine/error.h"

namespace trainer {

/// The message of the `Thrown` that `work` throws, "no error" where it throws nothing. What is of
/// another type goes through.
template <typename Thrown = Error>
std::string error_of(const std::function<void()>& work) {
    try {
        work();
    } catch (const Thrown& error) {
        return error.what();
    }
    return "no error";
}

}  // namespace trainer
