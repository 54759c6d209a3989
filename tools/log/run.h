// Run: what a log says, read line by line in bounded memory.
//
// Lines are those of metrics.jsonl, or of trainer.log, the text for people; anything else is
// counted and passed over. A run that was resumed has steps in its log that it did again: only the
// last account of each step counts, so that every curve has one value at a step.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "tools/log/series.h"

namespace trainer::logs {

/// Where test accuracy first reached what was asked for.
struct Hit {
    int64_t step = 0, epoch = 0;
    double elapsed = 0;
};

struct Run {
    std::filesystem::path path;  ///< of the log
    std::string label;           ///< tells it from the others of a table or plot

    // Of the header; empty or 0: unknown.
    std::string name, model, dataset, variant, device, started;
    int64_t workers = 0, global_batch = 0, steps_per_epoch = 0, parameters = 0;
    int64_t total_steps = 0, total_epochs = 0;

    Series step, epoch, eval;
    std::map<int, Series> comm;  ///< of each worker

    int sessions = 0;           ///< starts and resumes
    int64_t foreign_lines = 0;  ///< that are no records
    bool cut_off = false;       ///< the last line is half a record
    std::optional<Hit> hit;

    /// Steps and seconds at the newest record; 0 where there is none.
    int64_t last_step() const;
    double elapsed() const;
    /// Epochs done at a step, a fraction too; the records' own numbers where the length of an epoch
    /// is not known.
    double epochs_at(const Point& point) const;
};

class RunReader {
  public:
    /// `accuracy`: what Run::hit is about, as a fraction.
    explicit RunReader(std::filesystem::path path, std::optional<double> accuracy = {});

    /// Takes the next bytes of the file; half a line at their end waits for the rest.
    void feed(std::string_view bytes);
    /// The file is at its end: half a line that is left counts where it is whole.
    void finish();

    const Run& run() const { return run_; }
    Run& run() { return run_; }

  private:
    enum class Type { step, epoch, eval, comm };

    void line(std::string_view text);
    bool json_line(std::string_view text);
    void header(const std::string& text);
    bool text_line(std::string_view text);
    bool text_fact(std::string_view text, double time);
    bool text_record(std::string_view text, double time);
    void begin_session(double time);
    void add(Type type, int worker, Point point, std::optional<double> time);
    void place_in_time(Type type, Point& point, std::optional<double> time);
    Series& series(Type type, int worker);
    void forget_after(int64_t step);

    Run run_;
    std::optional<double> accuracy_;
    std::string half_line_;
    bool overlong_ = false;  // in a line too long to be a record

    double session_base_ = 0;              // elapsed when it began
    std::optional<double> session_start_;  // on the clock of the log
    bool session_is_new_ = false;          // it has no record yet
    double clock_ = 0;                     // seconds, where the log has no times
    double epoch_clock_ = 0;               // the same at the end of the last epoch
};

/// Reads a whole log: a file, or the metrics.jsonl or else trainer.log of a directory. Throws
/// UsageError where there is none, Error where it cannot be read.
Run read_run(const std::filesystem::path& path, std::optional<double> accuracy = {});

/// The file that `path` means to read_run.
std::filesystem::path log_file(const std::filesystem::path& path);

/// Gives each run a label of its own: the shortest end of its path that no other has.
void label_runs(std::vector<Run>& runs);

}  // namespace trainer::logs
