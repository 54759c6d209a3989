#include "tools/log/run.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/error.h"
#include "tools/log/flat_object.h"

namespace trainer::logs {
namespace {

namespace fs = std::filesystem;

constexpr size_t longest_line = 1 << 20;

struct NamedField {
    std::string_view key;
    Field field;
};
constexpr NamedField fields[] = {
    {"loss", Field::loss},
    {"top1", Field::top1},
    {"top5", Field::top5},
    {"lr", Field::lr},
    {"images_per_s", Field::images_per_s},
    {"data_wait", Field::data_wait},
    {"push_bytes", Field::push_bytes},
    {"pull_bytes", Field::pull_bytes},
    {"push_s", Field::push_s},
    {"pull_s", Field::pull_s},
    {"wait_s", Field::wait_s},
    {"staleness", Field::staleness},
    {"compute_s", Field::compute_s},
    {"exposed_s", Field::exposed_s},
    {"hidden_s", Field::hidden_s},
};

/// Whole numbers that a record or header can hold; others are 0.
int64_t whole(double number) {
    return number >= 0 && number < 9e15 ? static_cast<int64_t>(number) : 0;
}

template <typename T>
void take(const nlohmann::json& json, const char* pointer, T& value) {
    const nlohmann::json::json_pointer at(pointer);
    if (!json.contains(at))
        return;
    const auto& found = json[at];
    if constexpr (std::is_same_v<T, std::string>) {
        if (found.is_string())
            value = found.get<std::string>();
    } else if (found.is_number()) {
        value = whole(found.get<double>());
    }
}

}  // namespace

int64_t Run::last_step() const {
    int64_t last = 0;
    for (const Series* series : {&step, &epoch, &eval})
        if (!series->empty())
            last = std::max(last, series->points().back().step);
    for (const auto& [worker, series] : comm)
        if (!series.empty())
            last = std::max(last, series.points().back().step);
    return last;
}

double Run::elapsed() const {
    double last = 0;
    for (const Series* series : {&step, &epoch, &eval})
        if (!series->empty())
            last = std::max(last, series->points().back().elapsed);
    return last;
}

double Run::epochs_at(const Point& point) const {
    return steps_per_epoch > 0
               ? static_cast<double>(point.step) / static_cast<double>(steps_per_epoch)
               : static_cast<double>(point.epoch);
}

RunReader::RunReader(fs::path path, std::optional<double> accuracy) : accuracy_(accuracy) {
    run_.path = std::move(path);
}

void RunReader::feed(std::string_view bytes) {
    while (!bytes.empty()) {
        const size_t end = bytes.find('\n');
        const std::string_view part = bytes.substr(0, end);
        if (end == std::string_view::npos || !half_line_.empty() || overlong_) {
            overlong_ = overlong_ || half_line_.size() + part.size() > longest_line;
            if (overlong_)
                half_line_.clear();
            else
                half_line_ += part;
            if (end == std::string_view::npos)
                return;
            if (overlong_)
                ++run_.foreign_lines;
            else
                line(half_line_);
            half_line_.clear();
            overlong_ = false;
        } else {
            line(part);
        }
        bytes.remove_prefix(end + 1);
    }
}

void RunReader::finish() {
    const int64_t foreign = run_.foreign_lines;
    if (overlong_ || !half_line_.empty())
        line(half_line_);
    run_.cut_off = run_.foreign_lines > foreign;
    run_.foreign_lines = foreign;
    half_line_.clear();
    overlong_ = false;
}

void RunReader::line(std::string_view text) {
    while (!text.empty() && (text.back() == '\r' || text.back() == ' '))
        text.remove_suffix(1);
    if (text.empty())
        return;
    if (!(text.front() == '{' ? json_line(text) : text_line(text)))
        ++run_.foreign_lines;
}

bool RunReader::json_line(std::string_view text) {
    std::string_view type;
    std::optional<double> step, epoch, worker, time, samples;
    Point point;
    const bool whole_object = read_flat_object(text, [&](std::string_view key, const FlatValue& v) {
        if (key == "type")
            type = v.text;
        if (!v.is_number)
            return;
        if (key == "step")
            step = v.number;
        else if (key == "epoch")
            epoch = v.number;
        else if (key == "samples")
            samples = v.number;
        else if (key == "time")
            time = v.number;
        else if (key == "worker")
            worker = v.number;
        else
            for (const NamedField& field : fields)
                if (key == field.key) {
                    point[field.field] = v.number;
                    break;
                }
    });
    if (!whole_object)
        return false;
    if (type == "header") {
        header(std::string(text));
        return true;
    }
    const auto types = {"step", "epoch", "eval", "comm"};
    const auto found = std::find(types.begin(), types.end(), type);
    if (found == types.end() || !step)
        return false;
    point.first_step = point.step = whole(*step);
    point.epoch = whole(epoch.value_or(0));
    point.samples = samples.value_or(0);
    add(static_cast<Type>(found - types.begin()), static_cast<int>(whole(worker.value_or(0))),
        point, time);
    return true;
}

void RunReader::header(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_discarded()) {
        ++run_.foreign_lines;
        return;
    }
    take(json, "/name", run_.name);
    take(json, "/started", run_.started);
    take(json, "/parameters", run_.parameters);
    take(json, "/global_batch", run_.global_batch);
    take(json, "/steps_per_epoch", run_.steps_per_epoch);
    take(json, "/build/device", run_.device);
    take(json, "/config/model/name", run_.model);
    take(json, "/config/data/dataset", run_.dataset);
    take(json, "/config/distributed/variant", run_.variant);
    take(json, "/config/distributed/workers", run_.workers);
    take(json, "/config/train/epochs", run_.total_epochs);
    int64_t start_step = 0, max_steps = 0;
    take(json, "/start_step", start_step);
    take(json, "/config/train/max_steps", max_steps);
    run_.total_steps = run_.total_epochs * run_.steps_per_epoch;
    if (max_steps > 0)
        run_.total_steps = std::min(run_.total_steps, max_steps);
    forget_after(start_step);
    const auto time = json.find("time");
    begin_session(time != json.end() && time->is_number() ? time->get<double>() : absent);
}

void RunReader::begin_session(double time) {
    ++run_.sessions;
    session_is_new_ = true;
    session_base_ = clock_ = run_.elapsed();
    epoch_clock_ = run_.epoch.empty() ? 0 : run_.epoch.points().back().elapsed;
    session_start_ = std::isnan(time) ? std::nullopt : std::optional(time);
}

Series& RunReader::series(Type type, int worker) {
    return type == Type::step    ? run_.step
           : type == Type::epoch ? run_.epoch
           : type == Type::eval  ? run_.eval
                                 : run_.comm[worker];
}

void RunReader::forget_after(int64_t step) {
    for (Series* series : {&run_.step, &run_.epoch, &run_.eval})
        series->keep_until(step);
    for (auto& [worker, series] : run_.comm)
        series.keep_until(step);
    if (run_.hit && run_.hit->step > step)
        run_.hit.reset();
}

void RunReader::add(Type type, int worker, Point point, std::optional<double> time) {
    Series& target = series(type, worker);
    if (!target.empty() && target.points().back().step >= point.step) {
        // The run is at this step again, as after a resume that the log does not tell of.
        forget_after(point.step - 1);
        session_base_ = clock_ = run_.elapsed();
        epoch_clock_ = run_.epoch.empty() ? 0 : run_.epoch.points().back().elapsed;
        if (!session_is_new_)
            session_start_.reset();
    }
    session_is_new_ = false;
    place_in_time(type, point, time);
    if (type == Type::eval) {
        point.best_top1 = point[Field::top1];
        point.best_step = point.step;
        point.best_epoch = point.epoch;
        if (accuracy_ && !run_.hit && point[Field::top1] >= *accuracy_)
            run_.hit = Hit{point.step, point.epoch, point.elapsed};
    }
    target.append(point);
}

void RunReader::place_in_time(Type type, Point& point, std::optional<double> time) {
    const double speed = point[Field::images_per_s];
    const double seconds = speed > 0 ? point.samples / speed : 0;
    if (time) {
        if (!session_start_)
            session_start_ = *time - seconds;
        point.elapsed = session_base_ + std::max(0.0, *time - *session_start_);
        return;
    }
    // No times: training and evaluation take as long as their speed says.
    if (type == Type::epoch)
        epoch_clock_ = clock_ = std::max(clock_, epoch_clock_ + seconds);
    else if (type == Type::step)
        clock_ += seconds;
    else if (type == Type::eval)
        epoch_clock_ = clock_ = clock_ + seconds;
    point.elapsed = clock_;
}

fs::path log_file(const fs::path& path) {
    std::error_code error;
    if (!fs::exists(path, error))
        throw UsageError("'" + path.string() + "': there is no such log; give a run's directory, " +
                         "its metrics.jsonl or its trainer.log");
    if (!fs::is_directory(path, error))
        return path;
    for (const char* name : {"metrics.jsonl", "trainer.log"})
        if (fs::exists(path / name, error))
            return path / name;
    throw UsageError("'" + path.string() + "': neither metrics.jsonl nor trainer.log is in it");
}

Run read_run(const fs::path& path, std::optional<double> accuracy) {
    const fs::path file_path = log_file(path);
    std::ifstream file(file_path, std::ios::binary);
    RunReader reader(file_path, accuracy);
    std::string buffer(1 << 20, '\0');
    while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) ||
           file.gcount() > 0)
        reader.feed({buffer.data(), static_cast<size_t>(file.gcount())});
    if (!file.eof())
        throw Error("'" + file_path.string() + "' cannot be read");
    reader.finish();
    return std::move(reader.run());
}

void label_runs(std::vector<Run>& runs) {
    // metrics.jsonl and trainer.log say nothing; the directory's name does.
    std::vector<std::vector<std::string>> parts;
    for (const Run& run : runs) {
        std::error_code error;
        fs::path path = fs::absolute(run.path, error).lexically_normal();
        if (path.filename() == "metrics.jsonl" || path.filename() == "trainer.log")
            path = path.parent_path();
        std::vector<std::string> names(path.begin(), path.end());
        std::reverse(names.begin(), names.end());
        parts.push_back(std::move(names));
    }
    const auto label = [&](size_t run, size_t count) {
        std::string text;
        for (size_t i = 0; i < std::min(count, parts[run].size()); ++i)
            text = parts[run][i] + (text.empty() ? "" : "/") + text;
        return text;
    };
    for (size_t run = 0; run < runs.size(); ++run)
        for (size_t count = 1;; ++count) {
            runs[run].label = label(run, count);
            size_t same = 0;
            for (size_t other = 0; other < runs.size(); ++other)
                same += label(other, count) == runs[run].label;
            if (same == 1 || count >= parts[run].size())
                break;
        }
}

}  // namespace trainer::logs
