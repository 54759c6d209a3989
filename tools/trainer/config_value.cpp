#include "tools/trainer/config_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>

namespace trainer {
namespace {

/// The whole of `text` as a number of type T; result_out_of_range where T can't hold it,
/// invalid_argument where it is none.
template <typename T>
std::errc parse(std::string_view text, T& value) {
    if (text.starts_with('+'))
        text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return end == text.data() + text.size() ? error : std::errc::invalid_argument;
}

/// A finite decimal number; words such as inf and nan are none.
std::errc parse_number(std::string_view text, double& value) {
    const bool letters = text.find_first_not_of("0123456789+-.eE") != std::string_view::npos;
    return letters ? std::errc::invalid_argument : parse(text, value);
}

template <typename T>
std::string shortest(T value) {
    std::array<char, 32> digits{};
    return {digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr};
}

template <typename T>
ValueKind<T> integer_kind(T low, T high) {
    const std::string takes = high == std::numeric_limits<T>::max()
                                  ? "an integer, at least " + shortest(low)
                                  : "an integer from " + shortest(low) + " to " + shortest(high);
    return {
        [low, high](const YAML::Node& node, T& target) {
            const auto scalar = plain_scalar(node);
            int64_t value = 0;
            const std::errc error = scalar ? parse(*scalar, value) : std::errc::invalid_argument;
            if (error == std::errc::invalid_argument)
                return Fit::wrong_type;
            if (error != std::errc() || std::cmp_less(value, low) || std::cmp_greater(value, high))
                return Fit::out_of_range;
            target = static_cast<T>(value);
            return Fit::good;
        },
        [](const T& value) { return shortest(value); },
        takes,
        {}};
}

struct Unit {
    const char* name;
    int64_t size;
};

/// A quantity "1.5ms" in the smallest unit, rounded to it; wrong_type where it has no such form,
/// out_of_range where it is below `low` or too large.
Fit read_quantity(const YAML::Node& node, std::span<const Unit> units, int64_t low,
                  int64_t& target) {
    const auto scalar = plain_scalar(node);
    if (!scalar)
        return Fit::wrong_type;
    const size_t digits = std::min(scalar->find_first_not_of("0123456789+-."), scalar->size());
    double count = 0;
    if (parse_number(std::string_view(*scalar).substr(0, digits), count) != std::errc())
        return Fit::wrong_type;
    for (const Unit& unit : units) {
        if (scalar->substr(digits) != unit.name)
            continue;
        const double value = std::round(count * static_cast<double>(unit.size));
        if (value < static_cast<double>(low) || value > 9e18)
            return Fit::out_of_range;
        target = static_cast<int64_t>(value);
        return Fit::good;
    }
    return Fit::wrong_type;
}

/// In the largest unit that divides it, the smallest of which is 1.
std::string print_quantity(int64_t value, std::span<const Unit> largest_first) {
    for (const Unit& unit : largest_first)
        if (value != 0 && value % unit.size == 0)
            return shortest(value / unit.size) + unit.name;
    return "0" + std::string(largest_first.back().name);
}

constexpr std::array<Unit, 6> time_units = {{{"h", 3'600'000'000'000},
                                             {"m", 60'000'000'000},
                                             {"s", 1'000'000'000},
                                             {"ms", 1'000'000},
                                             {"us", 1'000},
                                             {"ns", 1}}};
constexpr std::array<Unit, 4> bit_units = {
    {{"Gbit", 1'000'000'000}, {"Mbit", 1'000'000}, {"Kbit", 1'000}, {"bit", 1}}};

}  // namespace

bool Limits::hold(double value) const {
    return (above ? value > low : value >= low) && (below ? value < high : value <= high);
}

std::string Limits::text() const {
    std::string text;
    if (std::isfinite(low))
        text += (above ? "above " : "at least ") + shortest(low);
    if (std::isfinite(high))
        text += (text.empty() ? "" : " and ") + std::string(below ? "below " : "at most ") +
                shortest(high);
    return text.empty() ? text : ", " + text;
}

std::optional<std::string> plain_scalar(const YAML::Node& node) {
    if (!node.IsScalar() || node.Tag() != "?")
        return std::nullopt;
    return node.Scalar();
}

std::string yaml_text(const std::string& text) {
    const bool safe = text.find_first_not_of(
                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                          "0123456789_./-") == std::string::npos;
    if (safe && !text.empty() && text.front() != '-' && !YAML::Load(text).IsNull())
        return text;
    YAML::Emitter quoted;
    quoted << YAML::DoubleQuoted << text;
    return quoted.c_str();
}

ValueKind<bool> boolean() {
    return {[](const YAML::Node& node, bool& target) {
                const auto scalar = plain_scalar(node);
                if (scalar != "true" && scalar != "false")
                    return Fit::wrong_type;
                target = scalar == "true";
                return Fit::good;
            },
            [](const bool& value) { return std::string(value ? "true" : "false"); },
            "true or false",
            {}};
}

ValueKind<double> number(Limits limits) {
    return {[limits](const YAML::Node& node, double& target) {
                const auto scalar = plain_scalar(node);
                double value = 0;
                const std::errc error =
                    scalar ? parse_number(*scalar, value) : std::errc::invalid_argument;
                if (error == std::errc::invalid_argument)
                    return Fit::wrong_type;
                if (error != std::errc() || !limits.hold(value))
                    return Fit::out_of_range;
                target = value;
                return Fit::good;
            },
            [](const double& value) { return shortest(value); },
            "a number" + limits.text(),
            {}};
}

ValueKind<int> integer(int low, int high) {
    return integer_kind<int>(low, high);
}

ValueKind<int64_t> long_integer(int64_t low) {
    return integer_kind<int64_t>(low, std::numeric_limits<int64_t>::max());
}

ValueKind<uint64_t> seed_integer() {
    return integer_kind<uint64_t>(0, std::numeric_limits<uint64_t>::max());
}

ValueKind<std::string> text(bool may_be_empty) {
    return {[may_be_empty](const YAML::Node& node, std::string& target) {
                if (!node.IsScalar())
                    return Fit::wrong_type;
                if (node.Scalar().empty() && !may_be_empty)
                    return Fit::out_of_range;
                target = node.Scalar();
                return Fit::good;
            },
            yaml_text,
            may_be_empty ? "text" : "text, not empty",
            {}};
}

ValueKind<std::string> maybe_file() {
    ValueKind<std::string> kind = text(false);
    kind.print = [](const std::string& name) { return name.empty() ? name : yaml_text(name); };
    return kind;
}

ValueKind<std::string> one_of(std::vector<std::string> words) {
    std::string takes;
    for (const std::string& word : words)
        takes += (takes.empty() ? "" : " | ") + word;
    return {[words](const YAML::Node& node, std::string& target) {
                if (!node.IsScalar())
                    return Fit::wrong_type;
                if (std::find(words.begin(), words.end(), node.Scalar()) == words.end())
                    return Fit::out_of_range;
                target = node.Scalar();
                return Fit::good;
            },
            yaml_text, takes, words};
}

ValueKind<std::string> device_name() {
    ValueKind<std::string> kind = one_of({"auto", "cpu", "cuda", "cuda:N"});
    kind.read = [words = one_of({"auto", "cpu", "cuda"})](const YAML::Node& node,
                                                          std::string& target) {
        const Fit fit = words.read(node, target);
        int index = -1;
        if (fit != Fit::out_of_range || !node.Scalar().starts_with("cuda:") ||
            parse(node.Scalar().substr(5), index) != std::errc() || index < 0)
            return fit;
        target = node.Scalar();
        return Fit::good;
    };
    return kind;
}

ValueKind<std::string> address(int lowest_port) {
    return {[lowest_port](const YAML::Node& node, std::string& target) {
                if (!node.IsScalar())
                    return Fit::wrong_type;
                const std::string& written = node.Scalar();
                const size_t colon = written.rfind(':');
                if (colon == std::string::npos || colon == 0)
                    return Fit::out_of_range;
                const bool bracketed = written.front() == '[' && written[colon - 1] == ']';
                int port = -1;
                if ((written.find(':') != colon && !bracketed) ||
                    parse(written.substr(colon + 1), port) != std::errc() || port < lowest_port ||
                    port > 65535)
                    return Fit::out_of_range;
                target = written;
                return Fit::good;
            },
            yaml_text,
            "HOST:PORT or [IPV6]:PORT, a port from " + std::to_string(lowest_port) + " to 65535",
            {}};
}

ValueKind<Duration> duration(Duration low) {
    const std::string least = low.count() == 0 ? "" : ", above 0s";
    return {[low](const YAML::Node& node, Duration& target) {
                int64_t value = 0;
                const Fit fit = read_quantity(node, time_units, low.count(), value);
                if (fit == Fit::good)
                    target = Duration(value);
                return fit;
            },
            [](const Duration& value) { return print_quantity(value.count(), time_units); },
            "a duration such as 30s, 500ms, 50us, 2m" + least,
            {}};
}

ValueKind<int64_t> bandwidth() {
    return {[](const YAML::Node& node, int64_t& target) {
                return read_quantity(node, bit_units, 1, target);
            },
            [](const int64_t& value) { return print_quantity(value, bit_units); },
            "a bandwidth such as 10Gbit or 100Mbit (a second)",
            {}};
}

}  // namespace trainer
