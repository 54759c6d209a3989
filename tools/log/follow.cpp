#include "tools/log/follow.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "tools/log/summary.h"

namespace trainer::logs {
namespace {

namespace fs = std::filesystem;

uintmax_t inode_of(const fs::path& path) {
    struct stat status {};
    return stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

bool terminal_speaks_unicode() {
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
        if (const char* value = std::getenv(name); value != nullptr && *value != '\0') {
            const std::string locale = value;
            return locale.find("UTF-8") != std::string::npos ||
                   locale.find("utf8") != std::string::npos;
        }
    return false;
}

struct Screen {
    size_t columns = 80, rows = 24;
    bool operator==(const Screen&) const = default;
};

Screen screen() {
    winsize window{};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
    return known ? Screen{window.ws_col, window.ws_row} : Screen{};
}

/// What of the text fits, each line ending with what clears the rest of an older one.
std::string fitted(const std::string& text, const Screen& room) {
    std::string result;
    size_t column = 0, row = 1;
    for (const char c : text) {
        if (c == '\n') {
            if (++row > room.rows)
                break;
            result += "\033[K\n";
            column = 0;
        } else if ((static_cast<unsigned char>(c) & 0xc0) == 0x80) {  // goes on with a character
            if (column <= room.columns)
                result += c;
        } else if (++column <= room.columns) {
            result += c;
        }
    }
    return result;
}

std::vector<double> values_of(const Series& series, Field field, size_t count) {
    std::vector<double> values;
    for (const Point& point : series.resampled(count))
        if (std::isfinite(point[field]))
            values.push_back(point[field]);
    return values;
}

/// "label  ▁▂▃  first .. last", or nothing where there is no curve.
std::string curve_line(const std::string& label, const std::vector<double>& values, double factor,
                       int digits, size_t columns, bool unicode) {
    if (values.empty())
        return "";
    char range[64];
    std::snprintf(range, sizeof range, "%.*f -> %.*f", digits, factor * values.front(), digits,
                  factor * values.back());
    const size_t taken = 18 + std::string(range).size() + 2;
    const size_t width = columns > taken + 8 ? std::min<size_t>(columns - taken, 80) : 8;
    std::string line = "  " + label;
    line.resize(std::max<size_t>(line.size(), 18), ' ');
    return line + sparkline(values, width, unicode) + "  " + range + "\n";
}

std::string progress_line(const Run& run, size_t columns) {
    const int64_t step = run.last_step();
    std::string text = "  step " + std::to_string(step);
    if (run.total_steps > 0)
        text += " of " + std::to_string(run.total_steps);
    const Series& recent = run.step.empty() ? run.epoch : run.step;
    if (!recent.empty()) {
        const Point& last = recent.points().back();
        text += ", epoch " + std::to_string(last.epoch);
        if (run.total_epochs > 0)
            text += " of " + std::to_string(run.total_epochs);
        if (std::isfinite(last[Field::images_per_s]))
            text += ", " + compact(std::round(last[Field::images_per_s])) + " images/s";
        if (std::isfinite(last[Field::lr]))
            text += ", lr " + compact(last[Field::lr], 4);
    }
    if (run.total_steps > step && step > 0 && run.elapsed() > 0)
        text += ", about " +
                duration(run.elapsed() / static_cast<double>(step) *
                         static_cast<double>(run.total_steps - step)) +
                " left";
    return text.substr(0, columns) + "\n";
}

std::string bar_line(const Run& run, size_t columns) {
    if (run.total_steps <= 0)
        return "";
    const size_t width = std::min<size_t>(columns > 6 ? columns - 6 : 4, 100);
    const double share =
        std::min(1.0, static_cast<double>(run.last_step()) / static_cast<double>(run.total_steps));
    const auto done = static_cast<size_t>(share * static_cast<double>(width));
    return "  [" + std::string(done, '=') + std::string(width - done, ' ') + "]\n";
}

}  // namespace

FollowedLog::FollowedLog(const fs::path& path, std::optional<double> accuracy)
    : path_(log_file(path)), accuracy_(accuracy) {}

bool FollowedLog::read() {
    std::error_code error;
    const uintmax_t size = fs::file_size(path_, error), file = inode_of(path_);
    if (error)
        return false;
    if (!reader_ || file != file_ || size < offset_) {  // a new run began
        reader_ = std::make_unique<RunReader>(path_, accuracy_);
        offset_ = 0;
        file_ = file;
    } else if (size == offset_) {
        return false;
    }
    std::ifstream stream(path_, std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset_));
    std::string buffer(1 << 20, '\0');
    while (stream.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) ||
           stream.gcount() > 0) {
        reader_->feed({buffer.data(), static_cast<size_t>(stream.gcount())});
        offset_ += static_cast<uintmax_t>(stream.gcount());
    }
    return true;
}

std::string sparkline(const std::vector<double>& values, size_t width, bool unicode) {
    constexpr const char* blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    constexpr std::string_view ascii = "_.-:=+*#";
    if (values.empty() || width == 0)
        return "";
    // Each character stands for the mean of its share of the values.
    width = std::min(width, values.size());
    std::vector<double> means;
    for (size_t i = 0; i < width; ++i) {
        const size_t first = i * values.size() / width, end = (i + 1) * values.size() / width;
        double sum = 0;
        for (size_t j = first; j < end; ++j)
            sum += values[j];
        means.push_back(sum / static_cast<double>(end - first));
    }
    const auto [low, high] = std::minmax_element(means.begin(), means.end());
    std::string text;
    for (const double value : means) {
        const double share = *high > *low ? (value - *low) / (*high - *low) : 0.5;
        const auto level = static_cast<size_t>(std::clamp(share * 8, 0.0, 7.0));
        text += unicode ? std::string(blocks[level]) : std::string(1, ascii[level]);
    }
    return text;
}

std::string live_view(const std::vector<Run>& runs, size_t columns, bool unicode) {
    std::string text;
    for (const Run& run : runs) {
        text += (text.empty() ? "" : "\n") + run.label;
        if (!run.model.empty())
            text += "  (" + run.model + (run.variant.empty() ? "" : ", " + run.variant) + ")";
        text += "\n";
        if (run.step.empty() && run.epoch.empty() && run.eval.empty()) {
            text += "  no record yet\n";
            continue;
        }
        const Series& training = run.step.points().size() > 1 ? run.step : run.epoch;
        text += bar_line(run, columns) + progress_line(run, columns);
        const auto curve = [&](const char* label, const Series& series, Field field, double factor,
                               int digits) {
            text +=
                curve_line(label, values_of(series, field, 160), factor, digits, columns, unicode);
        };
        curve("training loss", training, Field::loss, 1, 4);
        curve("test loss", run.eval, Field::loss, 1, 4);
        curve("test top-1 %", run.eval, Field::top1, 100, 2);
    }
    return text;
}

void follow(const std::vector<fs::path>& paths, std::optional<double> accuracy) {
    std::vector<FollowedLog> followed;
    for (const fs::path& path : paths)
        followed.emplace_back(path, accuracy);
    const bool terminal = isatty(STDOUT_FILENO) != 0, unicode = terminal_speaks_unicode();
    Screen drawn{};
    while (true) {
        bool changed = false;
        for (FollowedLog& log : followed)
            changed = log.read() || changed;
        const Screen now = screen();
        if (changed || (terminal && now != drawn)) {
            std::vector<Run> runs;
            for (const FollowedLog& log : followed)
                runs.push_back(log.run());
            label_runs(runs);
            const std::string view =
                summary_table(runs, accuracy) + "\n" + live_view(runs, now.columns, unicode);
            if (terminal)  // from the top left; below the view all is cleared
                std::cout << "\033[H" << fitted(view, now) << "\033[J" << std::flush;
            else
                std::cout << view << "\n" << std::flush;
            drawn = now;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
}

}  // namespace trainer::logs
