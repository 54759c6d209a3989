// compare: runs configs one after another, or reads the logs of runs, and prints one table of them.

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "engine/error.h"
#include "tools/log/command.h"
#include "tools/log/run.h"
#include "tools/log/summary.h"

extern char** environ;

namespace trainer::logs {
namespace {

namespace fs = std::filesystem;

constexpr int stopped = 75;  // the trainer's exit code where a signal stopped it

struct Options {
    std::vector<std::string> entries, common;
    std::string runs = "runs/compare", trainer = "./trainer";
    bool csv = false, json = false, markdown = false, help = false;
    std::optional<double> time_to;
    std::string text;  // of --help
};

/// What is compared: a config with keys of its own, or the log of a run.
struct Entry {
    std::string label;
    std::string config;             ///< empty: only read
    std::vector<std::string> keys;  ///< as --set takes them
    fs::path log;
};

constexpr const char* description =
    "Runs configs one after another and prints a table of them, or of runs that there are.\n"
    "  tools/compare resnet20_ssgd.yaml resnet20_ssd.yaml --set train.epochs=10\n"
    "  tools/compare 'glu: resnet20_ssd.yaml' \\\n"
    "                'momentum: resnet20_ssd.yaml distributed.local.rule=momentum'\n"
    "  tools/compare runs/resnet20_ssgd runs/resnet20_ssd --time-to 0.9\n"
    "An ENTRY is a config, keys of its own behind it and a label before it where wanted; or the\n"
    "directory or log of a run. Stopped at any time, the same command goes on where it was.";

Options parse(int count, const char* const* arguments) {
    Options options;
    CLI::App app(description, "compare");
    app.set_help_flag();
    app.add_flag("--help,-h", options.help, "says this");
    app.add_option("ENTRY", options.entries, "configs, or logs of runs");
    app.add_option("--set", options.common, "a key of all configs: optim.lr=0.2")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
    app.add_option("--runs", options.runs, "where the runs go (default runs/compare)")
        ->type_name("DIR")
        ->take_last();
    app.add_option("--trainer", options.trainer, "the program (default ./trainer)")
        ->type_name("FILE")
        ->take_last();
    app.add_flag("--csv", options.csv, "the table as CSV, numbers in full");
    app.add_flag("--json", options.json, "the table and the curves as JSON");
    app.add_flag("--markdown", options.markdown, "the table as a table of Markdown");
    add_time_to(app, options.time_to);
    parse_arguments(app, count, arguments);
    options.text = app.help();
    if (options.help)
        return options;
    if (options.entries.empty())
        throw UsageError(
            "which configs? e.g. tools/compare resnet20_ssgd.yaml resnet20_ssd.yaml "
            "(see --help)");
    if (options.csv + options.json + options.markdown > 1)
        throw UsageError("--csv, --json and --markdown: one at a time");
    finish_time_to(options.time_to);
    return options;
}

/// What of a text may stand in a file's name.
std::string as_name(const std::string& text) {
    std::string name;
    for (const char c : text)
        name += std::isalnum(static_cast<unsigned char>(c)) || std::strchr("._-+=", c) ? c : '_';
    return name.find_first_not_of('.') == std::string::npos ? "_" + name : name;
}

/// A key that --set may have here.
void check_key(const std::string& key, const std::string& where) {
    if (key.find('=') == std::string::npos)
        throw UsageError(where + ": '" + key + "' is not KEY=VALUE");
    if (key.starts_with("log.dir=") || key.starts_with("checkpoint.dir="))
        throw UsageError(where + ": '" + key + "': each run has a folder of its own below --runs");
}

Entry entry_of(const std::string& text, const Options& options) {
    Entry entry;
    std::string rest = text;
    if (const size_t colon = text.find(": "); colon != std::string::npos && !fs::exists(text)) {
        entry.label = text.substr(0, colon);
        rest = text.substr(colon + 2);
    }
    if (fs::exists(rest) && (fs::is_directory(rest) || !rest.ends_with(".yaml"))) {
        entry.log = rest;
        return entry;
    }
    std::istringstream words(rest);
    words >> entry.config;
    for (std::string word; words >> word;)
        entry.keys.push_back(word);
    if (!entry.config.ends_with(".yaml"))
        throw UsageError("'" + text + "' is no run, and no config (whose name ends in .yaml)");
    for (const std::string& key : entry.keys)
        check_key(key, "'" + text + "'");
    if (entry.label.empty()) {
        entry.label = fs::path(entry.config).stem();
        for (const std::string& key : entry.keys)
            entry.label += " " + key.substr(key.rfind('.', key.find('=')) + 1);
    }
    entry.log = fs::path(options.runs) / as_name(entry.label);
    return entry;
}

sigset_t watched_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD})
        sigaddset(&signals, signal);
    return signals;
}

/// Runs the trainer to its end; returns its exit code. What it says goes to this program's errors,
/// so that the table alone is its output. With `only_look` it looks at its config and no more.
int run_trainer(const Entry& entry, const Options& options, bool only_look) {
    std::vector<std::string> arguments{options.trainer, "--config", entry.config};
    if (only_look)
        arguments.push_back("--print-config");
    const auto set = [&](const std::string& assignment) {
        arguments.push_back("--set");
        arguments.push_back(assignment);
    };
    std::ranges::for_each(options.common, set);
    std::ranges::for_each(entry.keys, set);
    set("log.dir=" + entry.log.string());
    set("checkpoint.dir=" + entry.log.string());
    std::vector<char*> raw;
    for (std::string& argument : arguments)
        raw.push_back(argument.data());
    raw.push_back(nullptr);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (only_look)
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    else
        posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    pid_t child = -1;
    const int error = posix_spawn(&child, raw[0], &actions, &attributes, raw.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error != 0)
        throw UsageError("'" + options.trainer + "' cannot be started: " + std::strerror(error) +
                         "; build it with tools/build.sh or name it with --trainer");
    // Ctrl-C at a terminal goes to the trainer too, SIGTERM does not. It stops with a checkpoint.
    const sigset_t watched = watched_signals();
    int status = 0;
    bool told = false;
    for (int signal = 0; waitpid(child, &status, WNOHANG) != child;)
        if (sigwait(&watched, &signal) == 0 && signal == SIGTERM) {
            kill(child, SIGTERM);
            told = true;
        }
    if (told && WIFSIGNALED(status))
        return stopped;  // before it had begun
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// The entries that are configs, in their order; those that failed are told and left out. Returns
/// the exit code.
int run_all(std::vector<Entry>& entries, const Options& options) {
    const sigset_t watched = watched_signals();
    sigprocmask(SIG_BLOCK, &watched, nullptr);
    for (const Entry& entry : entries)  // all of them, before hours go into the first
        if (!entry.config.empty() && run_trainer(entry, options, true) != 0)
            throw UsageError("'" + entry.label + "' is no config to run (above: why)");
    int code = 0;
    std::vector<Entry> done;
    for (size_t i = 0; i < entries.size(); ++i) {
        const Entry& entry = entries[i];
        if (!entry.config.empty()) {
            std::cerr << "compare: " << i + 1 << " of " << entries.size() << ": " << entry.label
                      << " -> " << entry.log.string() << std::endl;
            const int result = run_trainer(entry, options, false);
            if (result == stopped) {
                std::cerr << "compare: stopped; the same command goes on\n";
                return stopped;
            }
            if (result != 0) {
                std::cerr << "compare: " << entry.label << " failed (exit code " << result
                          << ", above: why); left out of the table\n";
                code = 1;
                continue;
            }
        }
        done.push_back(entry);
    }
    entries = std::move(done);
    return code;
}

int run(const Options& options) {
    if (options.help) {
        std::cout << options.text;
        return 0;
    }
    std::vector<Entry> entries;
    for (const std::string& key : options.common)
        check_key(key, "--set");
    for (const std::string& text : options.entries) {
        Entry entry = entry_of(text, options);
        for (const Entry& other : entries)
            if (other.log == entry.log)
                throw UsageError("'" + text + "' would go where another entry goes, " +
                                 entry.log.string() +
                                 "; give it a label of its own: 'LABEL: CONFIG'");
        entries.push_back(std::move(entry));
    }
    const int code = run_all(entries, options);
    if (code == stopped)
        return code;
    if (entries.empty())
        throw Error("no run is left to compare");
    std::vector<Run> runs;
    for (const Entry& entry : entries) {
        runs.push_back(read_run(entry.log, options.time_to));
        if (runs.back().sessions == 0 && runs.back().last_step() == 0)
            throw UsageError("'" + entry.log.string() + "': no record of a run is in it");
    }
    label_runs(runs);
    for (size_t i = 0; i < runs.size(); ++i)
        if (!entries[i].label.empty())
            runs[i].label = entries[i].label;
    std::cout << (options.csv    ? summary_csv(runs, options.time_to)
                  : options.json ? summary_json(runs, options.time_to)
                                 : comparison_table(runs, options.time_to, options.markdown));
    return code;
}

}  // namespace
}  // namespace trainer::logs

int main(int count, char** arguments) {
    using namespace trainer::logs;
    return run_program("compare", [&] { return run(parse(count, arguments)); });
}
