// The live view: a table and small curves of runs that are going on, redrawn as their logs grow.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/log/run.h"

namespace trainer::logs {

/// A log that may grow, and be replaced by a new run's.
class FollowedLog {
  public:
    /// `path` as for read_run. Throws UsageError where there is no log.
    FollowedLog(const std::filesystem::path& path, std::optional<double> accuracy);

    /// Reads what is new; whether there was anything.
    bool read();
    const Run& run() const { return reader_->run(); }

  private:
    std::filesystem::path path_;
    std::optional<double> accuracy_;
    std::unique_ptr<RunReader> reader_;
    uintmax_t offset_ = 0;
    uintmax_t file_ = 0;  // its inode
};

/// A curve in one line of `width` characters, newest at the right: blocks of eighths, or ASCII.
std::string sparkline(const std::vector<double>& values, size_t width, bool unicode);

/// What the view shows of the runs, for a terminal of so many columns.
std::string live_view(const std::vector<Run>& runs, size_t columns, bool unicode);

/// Draws until a signal ends the program; without a terminal a view is printed whenever a log has
/// grown.
void follow(const std::vector<std::filesystem::path>& paths, std::optional<double> accuracy);

}  // namespace trainer::logs
