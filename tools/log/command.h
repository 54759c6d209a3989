// What the command lines of this folder's programs share.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <optional>
#include <string>

#include "engine/error.h"
#include "tools/standard_output.h"

namespace trainer::logs {

/// Throws UsageError of one line.
inline void parse_arguments(CLI::App& app, int count, const char* const* arguments) {
    try {
        app.parse(count, arguments);
    } catch (const CLI::ParseError& error) {
        std::string message = error.what();
        std::replace(message.begin(), message.end(), '\n', ' ');
        throw UsageError(message + " (see --help)");
    }
}

/// --time-to, 0.9 or 90, as a fraction once finish_time_to has had it.
inline void add_time_to(CLI::App& app, std::optional<double>& accuracy) {
    app.add_option("--time-to", accuracy, "when test accuracy first reached this, as 0.90 or 90")
        ->check(CLI::Range(0.0, 100.0))
        ->type_name("ACCURACY");
}
inline void finish_time_to(std::optional<double>& accuracy) {
    if (accuracy && *accuracy > 1)
        *accuracy /= 100;
}

/// Runs `work`, which returns the exit code; what it throws is told in the program's name. So it is
/// where what it printed is lost.
template <typename Work>
int run_program(const std::string& name, Work work) {
    const auto fail = [&](const std::exception& error, int code) {
        std::cerr << name << ": error: " << error.what() << "\n";
        return code;
    };
    try {
        const int code = work();
        flush_output();
        return code;
    } catch (const UsageError& error) {
        return fail(error, 2);
    } catch (const std::exception& error) {
        return fail(error, 1);
    }
}

}  // namespace trainer::logs
