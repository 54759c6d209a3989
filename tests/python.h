// Runs a script of tests/ with the Python that $TRAINER_PYTHON names, else python3.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace trainer {

/// What scripts exit with where a package is missing: the test is skipped.
inline constexpr int python_skipped = 77;

struct PythonResult {
    int code = python_skipped;
    std::string output;
};

/// `arguments` are appended as they are: the caller quotes.
inline PythonResult run_python(const std::string& script, const std::string& arguments) {
    const char* named = std::getenv("TRAINER_PYTHON");
    const std::string python = named != nullptr && *named != '\0' ? named : "python3";
    if (std::system(("command -v '" + python + "' >/dev/null").c_str()) != 0)
        return {python_skipped, "there is no " + python};
    const std::string command =
        "'" + python + "' '" TRAINER_SOURCE_DIR "/tests/" + script + "' " + arguments + " 2>&1";
    PythonResult result;
    FILE* pipe = popen(command.c_str(), "r");
    char buffer[4096];
    while (const size_t bytes = fread(buffer, 1, sizeof buffer, pipe))
        result.output.append(buffer, bytes);
    const int status = pclose(pipe);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return result;
}

}  // namespace trainer
