// A cluster: all of it within this process, or the one server or worker that this process is.
#pragma once

#include <optional>

#include "tools/trainer/command_line.h"
#include "tools/trainer/config.h"

namespace trainer {

/// Runs the config's servers and workers as threads of this process, to the end of the run or a
/// signal. Throws Error and UsageError.
ExitCode run_cluster_in_process(const Config& config);

/// Is one of the config's servers, at comm.listen; `rank` says which, where it is not the workers
/// that do. Returns once all workers have left.
ExitCode run_server(const Config& config, std::optional<int> rank);

/// Is one of the config's workers, of the servers in comm.servers; `rank` says which, where any
/// will do.
ExitCode run_worker(const Config& config, std::optional<int> rank);

}  // namespace trainer
