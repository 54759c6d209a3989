// The command line: what to do, and with which config.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trainer {

/// What the program exits with.
enum class ExitCode : int {
    done = 0,
    failed = 1,        ///< the run failed
    usage = 2,         ///< the command line or the config is wrong
    interrupted = 75,  ///< stopped by a signal, with a checkpoint written
};

struct CommandLine {
    enum class Action {
        train,
        evaluate,
        export_model,
        predict,
        list_models,
        print_config,
        print_text,  ///< --help or --version: `text` to stdout
    };
    Action action = Action::train;

    std::string config;                  ///< --config, as given
    std::vector<std::string> overrides;  ///< --set, in order
    std::string checkpoint;              ///< eval's, export's and predict's: a directory
    std::string onnx;                    ///< export's: the file to write
    bool fold_bn = false, uint8 = false;
    std::vector<std::string> images;  ///< predict's
    std::optional<int> metrics_port;  ///< --metrics-port
    bool profile = false;
    bool insecure = false;

    // Of a cluster's processes; empty: not given.
    std::string role, listen, servers, interface;
    std::optional<int> rank;
    std::string text;
};

/// Throws UsageError, one line, for whatever is wrong with the arguments.
CommandLine parse_command_line(int count, const char* const* arguments);

}  // namespace trainer
