// RunReader for trainer.log, the lines that a run writes for people:
//
//   2026-01-31 12:00:00 model        resnet20, 10 classes, 269,722 parameters, ...
//   2026-01-31 12:00:00 batch        128 (global), 390 steps an epoch, 30 epochs, 11,700 steps
//   2026-01-31 12:00:00 resume       runs/a/step-390: 390 steps done
//   2026-01-31 12:00:09 epoch  1/30  step 50/11700  loss 2.5659  top-1 15.59 %  ... 251 images/s
//   ... 2026-01-31 12:01:09 epoch  1/30  training  loss ... 2026-01-31 12:01:19 epoch  1/30  test
//   loss ...
#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>

#include "tools/log/run.h"

namespace trainer::logs {
namespace {

/// Seconds of a time stamp "YYYY-MM-DD HH:MM:SS " ahead of a line, taken off it; the clock has no
/// zone, only differences count. nullopt: there is none.
std::optional<double> take_time(std::string_view& line) {
    constexpr std::string_view pattern = "dddd-dd-dd dd:dd:dd ";
    if (line.size() <= pattern.size())
        return std::nullopt;
    for (size_t i = 0; i < pattern.size(); ++i)
        if (pattern[i] == 'd' ? line[i] < '0' || line[i] > '9' : line[i] != pattern[i])
            return std::nullopt;
    const auto number = [&](size_t at, size_t digits) {
        int value = 0;
        std::from_chars(line.data() + at, line.data() + at + digits, value);
        return value;
    };
    std::tm time{};
    time.tm_year = number(0, 4) - 1900;
    time.tm_mon = number(5, 2) - 1;
    time.tm_mday = number(8, 2);
    time.tm_hour = number(11, 2);
    time.tm_min = number(14, 2);
    time.tm_sec = number(17, 2);
    line.remove_prefix(pattern.size());
    return static_cast<double>(timegm(&time));
}

void skip_spaces(std::string_view& text) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
}

bool take_word(std::string_view& text, std::string_view word) {
    if (!text.starts_with(word))
        return false;
    text.remove_prefix(word.size());
    skip_spaces(text);
    return true;
}

/// A number, with commas between its digits or not.
bool take_number(std::string_view& text, double& value) {
    std::string digits;
    size_t length = 0;
    for (; length < text.size(); ++length) {
        const char c = text[length];
        const bool comma = c == ',' && length + 1 < text.size() && std::isdigit(text[length + 1]);
        if (!comma && !std::isdigit(c) &&
            std::string_view("+-.eEinfa").find(c) == std::string_view::npos)
            break;
        if (!comma)
            digits += c;
    }
    const char* end = digits.data() + digits.size();
    const auto [after, error] = std::from_chars(digits.data(), end, value);
    if (error != std::errc{} || after != end)
        return false;
    text.remove_prefix(length);
    skip_spaces(text);
    return true;
}

/// The number that stands before `words`.
std::optional<double> number_before(std::string_view text, std::string_view words) {
    const size_t at = text.find(words);
    if (at == std::string_view::npos)
        return std::nullopt;
    const size_t space = text.find_last_of(' ', at == 0 ? 0 : at - 1);
    std::string_view number = text.substr(space == std::string_view::npos ? 0 : space + 1, at);
    double value = 0;
    return take_number(number, value) ? std::optional(value) : std::nullopt;
}

}  // namespace

bool RunReader::text_line(std::string_view text) {
    const std::optional<double> time = take_time(text);
    if (!time)
        return false;
    if (take_word(text, "epoch "))
        return text_record(text, *time);
    return text_fact(text, *time);
}

bool RunReader::text_fact(std::string_view text, double time) {
    if (take_word(text, "model   ")) {
        begin_session(time);
        run_.model = text.substr(0, text.find(','));
        run_.parameters = std::llround(number_before(text, " parameters").value_or(0));
    } else if (take_word(text, "data   ")) {
        run_.dataset = text.substr(0, text.find(' '));
    } else if (take_word(text, "device   ")) {
        run_.device = text;
    } else if (take_word(text, "batch   ")) {
        run_.global_batch = std::llround(number_before(text, " (global)").value_or(0));
        run_.steps_per_epoch = std::llround(number_before(text, " steps an epoch").value_or(0));
        const auto epochs =
            number_before(text, text.find(" epochs") != text.npos ? " epochs" : " epoch,");
        run_.total_epochs = std::llround(epochs.value_or(0));
        const size_t comma = text.rfind(", ");
        run_.total_steps = std::llround(
            number_before(text.substr(std::min(comma, text.size())), " steps").value_or(0));
    } else if (take_word(text, "resume   ")) {
        if (const auto steps = number_before(text, " steps done")) {
            forget_after(std::llround(*steps));
            session_base_ = run_.elapsed();
        }
    }
    return true;  // any line with a time stamp is this program's
}

bool RunReader::text_record(std::string_view text, double time) {
    double epoch = 0, epochs = 0, step = 0;
    if (!take_number(text, epoch) || !take_word(text, "/") || !take_number(text, epochs))
        return false;
    run_.total_epochs = std::llround(epochs);
    Type type = Type::epoch;
    Point point;
    point.epoch = std::llround(epoch);
    if (take_word(text, "step ")) {
        double steps = 0;
        if (!take_number(text, step) || !take_word(text, "/") || !take_number(text, steps))
            return false;
        type = Type::step;
        run_.total_steps = std::llround(steps);
    } else {
        if (take_word(text, "test "))
            type = Type::eval;
        else if (!take_word(text, "training "))
            return false;
        // The step of an epoch's end is not said.
        const int64_t of_epoch = point.epoch * run_.steps_per_epoch;
        step = static_cast<double>(run_.steps_per_epoch == 0 ? run_.last_step()
                                   : run_.total_steps > 0    ? std::min(of_epoch, run_.total_steps)
                                                             : of_epoch);
    }
    double value = 0;
    if (!take_word(text, "loss ") || !take_number(text, value))
        return false;
    point[Field::loss] = value;
    if (take_word(text, "top-1 ") && take_number(text, value) && take_word(text, "%"))
        point[Field::top1] = value / 100;
    if (take_word(text, "top-5 ") && take_number(text, value) && take_word(text, "%"))
        point[Field::top5] = value / 100;
    if (take_word(text, "lr ") && take_number(text, value))
        point[Field::lr] = value;
    if (take_number(text, value) && take_word(text, "images/s"))
        point[Field::images_per_s] = value;
    point.first_step = point.step = std::llround(step);
    add(type, 0, point, time);
    return true;
}

}  // namespace trainer::logs
