// ProcessLog: what one process of a cluster says for people, on its screen and in a file.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tools/trainer/config.h"
#include "tools/trainer/metrics.h"

namespace trainer {

/// Usable from any thread. Which process this is may be known only after the first lines.
class ProcessLog {
  public:
    /// A line, to the screen and to the file.
    void say(const std::string& line);

    /// A line to the file alone.
    void note(const std::string& line);

    /// Opens trainer-<name>.log in config.log.dir, made where needed, and writes there what has
    /// been said so far. Throws Error where that cannot be done. Calls after the first do nothing.
    void open(const Config& config, const std::string& name);

  private:
    void write(const std::string& line);  // under the mutex

    std::mutex mutex_;
    std::vector<std::string> early_;  // with their times
    std::optional<LineFile> file_;
};

}  // namespace trainer
