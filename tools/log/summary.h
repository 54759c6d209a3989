// Summary: what one wants to know of each run, as a table, as CSV, as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/log/run.h"

namespace trainer::logs {

/// Where the time of a worker's mean step goes, in seconds. Computing, exposed communication and
/// waiting make up the step; hidden communication goes on while it computes.
struct Breakdown {
    double compute = 0;
    double exposed = 0;  ///< blocked while its own pushes or pulls travel
    double hidden = 0;
    double wait = 0;  ///< blocked for others: slower workers, data
    double step() const { return compute + exposed + wait; }
};

/// Of all the `comm` records of a worker. A record covers the steps since the one before. Where a
/// log has no exposed_s and hidden_s, waiting counts as exposed communication as far as there is
/// communication (push_s + pull_s) to wait for, and the rest of that is hidden.
Breakdown breakdown_of(const Series& comm);

/// For people, columns as wide as what is in them. `accuracy` as given to the reader.
std::string summary_table(const std::vector<Run>& runs, std::optional<double> accuracy);

/// What one asks of variants side by side: accuracy, speed and how it compares with the first
/// run's, megabytes that a worker pushes and pulls in a step, and the share of a step that
/// communication and waiting for others take.
std::string comparison_table(const std::vector<Run>& runs, std::optional<double> accuracy,
                             bool markdown);

/// One row a run, RFC 4180; numbers in full, accuracies as fractions, times in seconds.
std::string summary_csv(const std::vector<Run>& runs, std::optional<double> accuracy);

/// An array of one object a run with the columns of the CSV (null where unknown), `comm` (the
/// breakdown of each worker) and the curves `training` and `test`: arrays of step, epoch, elapsed,
/// loss, top1.
std::string summary_json(const std::vector<Run>& runs, std::optional<double> accuracy);

/// E.g. "1:02:03", "0:07".
std::string duration(double seconds);

/// A number in about `digits` significant digits, without needless zeros.
std::string compact(double number, int digits = 6);

}  // namespace trainer::logs
