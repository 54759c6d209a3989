// parse_log: what runs did, from their logs: tables, plots, a live view.

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "engine/error.h"
#include "tools/log/command.h"
#include "tools/log/figure.h"
#include "tools/log/follow.h"
#include "tools/log/summary.h"

namespace trainer::logs {
namespace {

struct Options {
    std::vector<std::string> logs;
    bool csv = false, json = false, follow = false, help = false;
    std::string plot, against = "epoch";
    std::optional<double> time_to;
    std::string text;  // of --help
};

constexpr const char* description =
    "Tables, plots and a live view of runs.\n"
    "  tools/parse_log runs/resnet20\n"
    "  tools/parse_log runs/* --time-to 0.90 --plot runs.png\n"
    "  tools/parse_log --follow runs/resnet20\n"
    "A RUN is a directory with logs, a metrics.jsonl or a trainer.log.";

Options parse(int count, const char* const* arguments) {
    Options options;
    CLI::App app(description, "parse_log");
    app.set_help_flag();
    app.add_flag("--help,-h", options.help, "says this");
    app.add_option("RUN", options.logs, "logs of runs");
    app.add_flag("--csv", options.csv, "the table as CSV, numbers in full");
    app.add_flag("--json", options.json, "the table and the curves as JSON");
    app.add_option("--plot", options.plot, "draws curves; the name ends in .png, .svg or .html")
        ->type_name("FILE")
        ->take_last();
    app.add_option("--against", options.against, "epoch | step | time: what --plot draws against")
        ->check(CLI::IsMember({"epoch", "step", "time"}))
        ->type_name("WORD");
    add_time_to(app, options.time_to);
    app.add_flag("--follow", options.follow, "redraws table and curves as the logs grow");
    parse_arguments(app, count, arguments);
    options.text = app.help();
    if (options.help)
        return options;
    if (options.logs.empty())
        throw UsageError("which run? e.g. tools/parse_log runs/resnet20 (see --help)");
    if (options.csv + options.json + options.follow > 1)
        throw UsageError("--csv, --json and --follow: one at a time");
    if (options.follow && !options.plot.empty())
        throw UsageError("--plot draws a log as it is now; leave out --follow");
    finish_time_to(options.time_to);
    return options;
}

void warn_of_lines(const Run& run) {
    if (run.foreign_lines > 0)
        std::cerr << "parse_log: " << run.path.string() << ": " << run.foreign_lines
                  << (run.foreign_lines == 1 ? " line is no record" : " lines are no records")
                  << " and left out\n";
}

/// Reads the logs. Of several, as runs/* names them, those that are none are passed over.
std::vector<Run> read_runs(const Options& options) {
    std::vector<Run> runs;
    for (const std::string& log : options.logs) {
        std::string why;
        try {
            runs.push_back(read_run(log, options.time_to));
            if (runs.back().sessions > 0 || runs.back().last_step() > 0) {
                warn_of_lines(runs.back());
                continue;
            }
            runs.pop_back();
            why = "'" + log + "': no record of a run is in it";
        } catch (const UsageError& error) {
            why = error.what();
        }
        if (options.logs.size() == 1 || !std::filesystem::exists(log))
            throw UsageError(why);
        std::cerr << "parse_log: " << why << "; left out\n";
    }
    if (runs.empty())
        throw UsageError("none of these is a log");
    label_runs(runs);
    return runs;
}

int run(const Options& options) {
    if (options.help) {
        std::cout << options.text;
        return 0;
    }
    if (options.follow) {
        follow({options.logs.begin(), options.logs.end()}, options.time_to);
        return 0;
    }
    const std::vector<Run> runs = read_runs(options);
    std::cout << (options.csv    ? summary_csv(runs, options.time_to)
                  : options.json ? summary_json(runs, options.time_to)
                                 : summary_table(runs, options.time_to));
    if (options.plot.empty())
        return 0;
    const Against against = options.against == "epoch"  ? Against::epoch
                            : options.against == "step" ? Against::step
                                                        : Against::time;
    write_figure(figure_of(runs, against), options.plot);
    return 0;
}

}  // namespace
}  // namespace trainer::logs

int main(int count, char** arguments) {
    using namespace trainer::logs;
    return run_program("parse_log", [&] { return run(parse(count, arguments)); });
}
