#include "tools/trainer/metrics.h"

#include <sys/ioctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/trainer/format.h"
#include "tools/trainer/version.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int schema_version = 1;

const char* name_of(RecordType type) {
    switch (type) {
        case RecordType::step:
            return "step";
        case RecordType::epoch:
            return "epoch";
        case RecordType::eval:
            return "eval";
        case RecordType::comm:
            return "comm";
    }
    return "";
}

double mean(double sum, int64_t count) {
    return count > 0 ? sum / static_cast<double>(count) : 0;
}
double loss_of(const LossSums& sums) {
    return mean(sums.loss, sums.samples);
}
double top1_of(const LossSums& sums) {
    return mean(static_cast<double>(sums.top1), sums.samples);
}
double top5_of(const LossSums& sums) {
    return mean(static_cast<double>(sums.top5), sums.samples);
}

std::string time_text(const char* pattern) {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    char text[64];
    const size_t length = std::strftime(text, sizeof text, pattern, &local);
    return {text, length};
}

double now() {
    const auto time = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<double>(
               std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) /
           1000;
}

/// Keys with dots as nested objects; values as JSON where they are, else as strings.
Json nested(const std::vector<ConfigEntry>& entries) {
    Json json = Json::object();
    for (const auto& [key, value] : entries) {
        std::string pointer = "/" + key;
        std::replace(pointer.begin(), pointer.end(), '.', '/');
        const Json parsed = Json::parse(value, nullptr, false);
        json[Json::json_pointer(pointer)] = parsed.is_discarded() ? Json(value) : parsed;
    }
    return json;
}

Json host() {
    utsname system{};
    uname(&system);
    return {{"name", system.nodename},
            {"system", std::string(system.sysname) + " " + system.release},
            {"machine", system.machine},
            {"processors", std::thread::hardware_concurrency()}};
}

/// The path of metrics.jsonl, after an earlier run's was renamed to metrics.<n>.jsonl.
fs::path metrics_path(const fs::path& directory, bool fresh) {
    const fs::path path = directory / "metrics.jsonl";
    std::error_code error;
    if (fresh && fs::exists(path, error)) {
        int number = 1;
        fs::path aside;
        do
            aside = directory / ("metrics." + std::to_string(number++) + ".jsonl");
        while (fs::exists(aside, error));
        fs::rename(path, aside, error);
    }
    return path;
}

}  // namespace

fs::path made_log_directory(const Config& config) {
    const auto fail = [&](const char* what, const std::string& why) {
        throw Error("log.dir: '" + config.log.dir + "' cannot be " + what + " (" + why +
                    "); set log.dir to a directory that can be written");
    };
    std::error_code error;
    fs::create_directories(config.log.dir, error);
    if (error)
        fail("made", error.message());
    if (access(config.log.dir.c_str(), W_OK | X_OK) != 0)
        fail("written", std::generic_category().message(errno));
    return config.log.dir;
}

LineFile::LineFile(const fs::path& path)
    : file_([&] {
          try {
              return File::open_to_append(path);
          } catch (const FileError& error) {
              throw Error(std::string("log.dir: ") + error.what() +
                          "; set log.dir to a directory that can be written");
          }
      }()),
      size_(file_.size()) {
    if (!file_.lock())
        throw Error("log.dir: another run is writing '" + path.string() +
                    "'; set log.dir to another directory, or wait for its end");
    char last = '\n';
    int64_t whole = size_;
    while (whole > 0) {
        file_.read_at(whole - 1, &last, 1);
        if (last == '\n')
            break;
        --whole;
    }
    if (whole < size_)
        file_.truncate(whole);
    size_ = whole;
}

void LineFile::write(const std::string& line) {
    try {
        const std::string whole = line + "\n";
        file_.write(whole.data(), whole.size());
        size_ += static_cast<int64_t>(whole.size());
    } catch (const FileError& error) {
        file_.truncate(size_);
        if (!complained_)
            std::cerr << "trainer: warning: " << error.what() << "; the run goes on without\n";
        complained_ = true;
    }
}

RunLog::RunLog(const Config& config)
    : config_(config),
      directory_(made_log_directory(config)),
      text_(directory_ / "trainer.log"),
      exposition_({{"run", config.name}}),
      terminal_(isatty(STDOUT_FILENO) != 0) {
    if (!config.metrics_port)
        return;
    http_ =
        std::make_unique<MetricsHttp>(*config.metrics_port, [this] { return exposition_.text(); });
    say("metrics      at port " + std::to_string(http_->port()) + ", for Prometheus");
}

RunLog::~RunLog() {
    erase_bar();
}

void RunLog::header(const RunFacts& facts) {
    metrics_.emplace(metrics_path(directory_, facts.fresh));
    const Json line = {
        {"type", "header"},
        {"schema_version", schema_version},
        {"name", config_.name},
        {"started", time_text("%Y-%m-%dT%H:%M:%S%z")},
        {"time", now()},
        {"start_step", facts.start_step},
        {"parameters", facts.parameters},
        {"global_batch", facts.global_batch},
        {"steps_per_epoch", facts.steps_per_epoch},
        {"data", facts.data},
        {"host", host()},
        {"build",
         {{"version", version()}, {"compiler", build_description()}, {"device", facts.device}}},
        {"config", nested(flat(config_))}};
    metrics_->write(line.dump(-1, ' ', false, Json::error_handler_t::replace));
    if (config_.log.tensorboard)
        events_ = std::make_unique<EventFile>(directory_, facts.start_step, facts.fresh,
                                              flat_result(config_));
}

void RunLog::say(const std::string& line) {
    erase_bar();
    std::cout << line << "\n" << std::flush;
    note(line);
}

void RunLog::warn(const std::string& line) {
    erase_bar();
    std::cerr << "trainer: warning: " << line << "\n" << std::flush;
    note("warning: " + line);
}

void RunLog::note(const std::string& line) {
    text_.write(time_text("%F %T ") + line);
}

std::string json_line(const Record& record) {
    Json line = {{"type", name_of(record.type)}, {"step", record.step}, {"epoch", record.epoch}};
    if (record.sums.samples > 0) {
        line["loss"] = loss_of(record.sums);
        line["top1"] = top1_of(record.sums);
        line["top5"] = top5_of(record.sums);
        line["samples"] = record.sums.samples;
    }
    const auto add = [&](const char* key, const auto& value) {
        if (value)
            line[key] = *value;
    };
    add("lr", record.lr);
    add("images_per_s", record.images_per_s);
    add("data_wait", record.data_wait);
    add("push_bytes", record.push_bytes);
    add("pull_bytes", record.pull_bytes);
    add("push_s", record.push_s);
    add("pull_s", record.pull_s);
    add("wait_s", record.wait_s);
    add("staleness", record.staleness);
    add("worker", record.worker);
    add("compute_s", record.compute_s);
    add("exposed_s", record.exposed_s);
    add("hidden_s", record.hidden_s);
    add("time", record.time);
    return line.dump();
}

std::string comm_line(const Record& record) {
    std::string line = format("worker %d  step %ld  pushed %.2f MB, pulled %.2f MB, waited %.2f s",
                              record.worker.value_or(0), record.step,
                              1e-6 * static_cast<double>(record.push_bytes.value_or(0)),
                              1e-6 * static_cast<double>(record.pull_bytes.value_or(0)),
                              record.wait_s.value_or(0));
    if (record.staleness.value_or(0) > 0)
        line += format(", staleness %.2f", *record.staleness);
    return line;
}

void RunLog::record(const Record& record, const Position& position) {
    Record stamped = record;
    stamped.time = now();
    metrics_->write(json_line(stamped));
    expose(record);
    write_events(record);
    if (record.type == RecordType::comm)
        return note(comm_line(record));
    const int digits = static_cast<int>(std::to_string(position.epochs).size());
    std::string line = format("epoch %*ld/%ld", digits, record.epoch, position.epochs);
    if (record.type == RecordType::step)
        line += format("  step %ld/%ld", record.step, position.total_steps);
    else
        line += record.type == RecordType::epoch ? "  training" : "  test    ";
    line += format("  loss %.4f  top-1 %s  top-5 %s", loss_of(record.sums),
                   percent(top1_of(record.sums)).c_str(), percent(top5_of(record.sums)).c_str());
    if (record.lr)
        line += format("  lr %.5g", *record.lr);
    if (record.images_per_s)
        line += format("  %.0f images/s", *record.images_per_s);
    // Of the time that images took; where it is nothing, nothing is said.
    if (record.data_wait && record.images_per_s && record.sums.samples > 0) {
        const double share =
            *record.data_wait * *record.images_per_s / static_cast<double>(record.sums.samples);
        if (share >= 0.01)
            line += format("  data wait %.0f %%", 100 * share);
    }
    if (record.type == RecordType::step)
        line += "  ETA " + duration_text(position.seconds_left);
    if (record.type == RecordType::step && terminal_)
        note(line);
    else
        say(line);
}

void RunLog::expose(const Record& record) {
    exposition_.update([&](RunNumbers& numbers) {
        numbers.step = record.step;
        numbers.epoch = static_cast<double>(record.epoch);
        const auto add = [](auto& total, const auto& more) {
            if (more)
                total += static_cast<double>(*more);
        };
        if (record.type == RecordType::eval) {
            numbers.test_loss = loss_of(record.sums);
            numbers.test_top1 = top1_of(record.sums);
        } else if (record.type == RecordType::step) {
            numbers.learning_rate = record.lr;
            if (!has_progress_) {
                numbers.loss = loss_of(record.sums);
                numbers.top1 = top1_of(record.sums);
                numbers.images_per_s = record.images_per_s;
            }
            numbers.data_wait_s_total = numbers.data_wait_s_total.value_or(0);
            add(*numbers.data_wait_s_total, record.data_wait);
            numbers.images_total =
                numbers.images_total.value_or(0) + static_cast<double>(record.sums.samples);
        } else if (record.type == RecordType::comm) {
            RunNumbers::Traffic& traffic = numbers.traffic[record.worker.value_or(0)];
            add(traffic.push_bytes_total, record.push_bytes);
            add(traffic.pull_bytes_total, record.pull_bytes);
            add(traffic.push_s_total, record.push_s);
            add(traffic.pull_s_total, record.pull_s);
            add(traffic.wait_s_total, record.wait_s);
            traffic.staleness = record.staleness;
        }
    });
}

void RunLog::write_events(const Record& record) {
    if (!events_)
        return;
    std::vector<std::pair<std::string, double>> scalars;
    if (record.type == RecordType::comm) {
        const std::string prefix = "comm/worker" + std::to_string(record.worker.value_or(0)) + "/";
        const auto add = [&](const char* name, const auto& value) {
            if (value)
                scalars.emplace_back(prefix + name, static_cast<double>(*value));
        };
        add("push_bytes", record.push_bytes);
        add("pull_bytes", record.pull_bytes);
        add("push_s", record.push_s);
        add("pull_s", record.pull_s);
        add("wait_s", record.wait_s);
        add("staleness", record.staleness);
    } else {
        const std::string part = record.type == RecordType::eval   ? "/test"
                                 : record.type == RecordType::step ? "/train"
                                                                   : "/train_epoch";
        scalars = {{"loss" + part, loss_of(record.sums)},
                   {"top1" + part, top1_of(record.sums)},
                   {"top5" + part, top5_of(record.sums)}};
        if (record.lr && record.type == RecordType::step)
            scalars.emplace_back("lr", *record.lr);
        if (record.images_per_s)
            scalars.emplace_back("images_per_s" + part, *record.images_per_s);
        if (record.data_wait)
            scalars.emplace_back("data_wait" + part, *record.data_wait);
    }
    events_->write(record.step, scalars);
}

void RunLog::finish() {
    if (events_)
        events_->end();
}

void RunLog::progress(const LossSums& sums, double images_per_s, const Position& position) {
    has_progress_ = true;
    exposition_.update([&](RunNumbers& numbers) {
        numbers.step = position.step;
        numbers.epoch = static_cast<double>(position.epoch);
        numbers.loss = loss_of(sums);
        numbers.top1 = top1_of(sums);
        numbers.images_per_s = images_per_s;
    });
    if (!terminal_)
        return;
    const auto now = std::chrono::steady_clock::now();
    if (now - drawn_ < std::chrono::milliseconds(100))
        return;
    drawn_ = now;
    winsize window{};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
    const size_t columns = known ? window.ws_col : 80;
    const std::string before = format("epoch %ld/%ld ", position.epoch, position.epochs);
    const std::string after =
        format(" %ld/%ld  loss %.4f  top-1 %s  %.0f images/s  ETA %s", position.step_in_epoch,
               position.steps_per_epoch, loss_of(sums), percent(top1_of(sums)).c_str(),
               images_per_s, duration_text(position.seconds_left).c_str());
    const size_t used = before.size() + after.size() + 3;
    const size_t width = columns > used ? std::min<size_t>(columns - used, 30) : 0;
    const size_t done = width * static_cast<size_t>(position.step_in_epoch) /
                        static_cast<size_t>(std::max<int64_t>(position.steps_per_epoch, 1));
    std::string line =
        before + "[" + std::string(done, '=') + std::string(width - done, ' ') + "]" + after;
    line.resize(std::min(line.size(), columns - 1));
    std::cout << "\r\033[K" << line << std::flush;
    bar_ = true;
}

void RunLog::erase_bar() {
    if (bar_)
        std::cout << "\r\033[K" << std::flush;
    bar_ = false;
}

std::string duration_text(double seconds) {
    if (!std::isfinite(seconds))
        return "-";
    const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
    return whole < 3600 ? format("%ld:%02ld", whole / 60, whole % 60)
                        : format("%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string grouped(int64_t number) {
    std::string text = std::to_string(number);
    for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3)
        text.insert(static_cast<size_t>(at), 1, ',');
    return text;
}

std::string percent(double fraction) {
    return format("%.2f %%", 100 * fraction);
}

}  // namespace trainer
