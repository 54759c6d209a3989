// What a run says: metrics.jsonl for programs, trainer.log and the terminal for people, event files
// for TensorBoard, numbers for Prometheus. One record goes to all of them, so that they never
// disagree.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "comm/metrics_http.h"
#include "engine/backend.h"
#include "engine/file.h"
#include "tools/trainer/config.h"
#include "tools/trainer/event_file.h"
#include "tools/trainer/exposition.h"

namespace trainer {

/// What a record is about; a step's and an epoch's are of training, an eval's of the test images.
enum class RecordType { step, epoch, eval, comm };

/// One line of metrics.jsonl. Fields that do not apply are left out of the line.
struct Record {
    RecordType type = RecordType::step;
    int64_t step = 0;               ///< global steps completed
    int64_t epoch = 0;              ///< the epoch that the last of them belongs to, from 1
    LossSums sums = {};             ///< since the last record of this type; gives loss, top1, top5
    std::optional<double> lr = {};  ///< of the last step
    std::optional<double> images_per_s = {};  ///< without evaluations and checkpoints
    std::optional<double> data_wait = {};     ///< seconds spent waiting for the loader
    std::optional<int64_t> push_bytes = {}, pull_bytes = {};
    std::optional<double> push_s = {}, pull_s = {}, wait_s = {}, staleness = {};
    // A comm record's: seconds of that worker since its last one. Of wait_s, exposed_s is waited
    // for its own pushes and pulls to travel; hidden_s they travel while it computes.
    std::optional<int> worker = {};
    std::optional<double> compute_s = {}, exposed_s = {}, hidden_s = {};
    std::optional<double> time = {};  ///< seconds since 1970 when it was written
};

/// What the header of metrics.jsonl says besides config, host and build.
struct RunFacts {
    std::string device = {};  ///< Backend::description()
    std::string data = {};    ///< what it trains on
    int64_t parameters = 0;
    int64_t global_batch = 0;
    int64_t steps_per_epoch = 0;
    int64_t start_step = 0;  ///< records of later steps that stand before this header are void
    bool fresh = true;       ///< no resume
};

/// A file that lines are appended to. A line is there whole or not at all; where it cannot be
/// written that is said once, and the run goes on.
class LineFile {
  public:
    /// Cuts off the end of a line that a killed run left behind. Throws Error where another run
    /// has the file.
    explicit LineFile(const std::filesystem::path& path);
    void write(const std::string& line);
    bool empty() const { return size_ == 0; }
    const std::filesystem::path& path() const { return file_.path(); }

  private:
    File file_;
    int64_t size_;
    bool complained_ = false;
};

/// How far a run is, for the progress bar and the line of a step.
struct Position {
    int64_t step = 0, total_steps = 0;
    int64_t epoch = 0, epochs = 0;  ///< epoch from 1
    int64_t step_in_epoch = 0, steps_per_epoch = 0;
    double seconds_left = 0;
};

/// config.log.dir, made where needed. Throws Error where it cannot be made or written.
std::filesystem::path made_log_directory(const Config& config);

class RunLog {
  public:
    /// Makes config.log.dir where needed; `config` outlives this. Throws Error where the
    /// directory cannot be written.
    explicit RunLog(const Config& config);
    ~RunLog();
    RunLog(const RunLog&) = delete;
    RunLog& operator=(const RunLog&) = delete;

    /// Begins, or goes on with, metrics.jsonl; a fresh run first renames an earlier one to
    /// metrics.<n>.jsonl. Called once, before record().
    void header(const RunFacts& facts);

    /// A line for people.
    void say(const std::string& line);
    void warn(const std::string& line);
    /// The same to trainer.log alone.
    void note(const std::string& line);

    /// To metrics.jsonl, and as a line to trainer.log and the screen (a step's not to a terminal,
    /// which has the bar).
    void record(const Record& record, const Position& position);

    /// Redraws the bar, on a terminal, a few times a second.
    void progress(const LossSums& sums, double images_per_s, const Position& position);

    /// The run is done, all of it.
    void finish();

    /// What Prometheus is told besides records.
    Exposition& exposition() { return exposition_; }

    /// Where metrics and text go.
    const std::filesystem::path& directory() const { return directory_; }

  private:
    void erase_bar();
    void expose(const Record& record);
    void write_events(const Record& record);

    const Config& config_;
    std::filesystem::path directory_;
    std::optional<LineFile> metrics_;
    LineFile text_;
    std::unique_ptr<EventFile> events_;
    Exposition exposition_;
    std::unique_ptr<MetricsHttp> http_;
    bool terminal_;
    bool bar_ = false;
    bool has_progress_ = false;  // progress() is called, and knows more than records
    std::chrono::steady_clock::time_point drawn_;
};

/// A record as a line of metrics.jsonl, without the line's end.
std::string json_line(const Record& record);

/// A comm record as a line for people.
std::string comm_line(const Record& record);

/// E.g. "1:02:03"; "0:07".
std::string duration_text(double seconds);

/// E.g. "269,722".
std::string grouped(int64_t number);

/// E.g. "91.25 %".
std::string percent(double fraction);

}  // namespace trainer
