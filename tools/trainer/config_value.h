// What a key of the config may hold: kinds of values, each able to read, print and describe its
// own, and put together (auto or a number, a list of numbers).
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tools/trainer/config.h"

namespace trainer {

/// How a YAML value fits a kind.
enum class Fit { good, wrong_type, out_of_range };

template <typename T>
struct ValueKind {
    std::function<Fit(const YAML::Node&, T&)> read;  ///< leaves the target alone unless good
    std::function<std::string(const T&)> print;      ///< as YAML; empty: the key isn't there
    std::string takes;                               ///< for messages, e.g. "a number, at least 0"
    std::vector<std::string> words;                  ///< where it takes one of a few words: those
};

/// Bounds of a number; `above` and `below` exclude the bound itself.
struct Limits {
    double low = -std::numeric_limits<double>::infinity();
    double high = std::numeric_limits<double>::infinity();
    bool above = false;
    bool below = false;

    bool hold(double value) const;
    /// E.g. ", at least 0 and below 1"; empty where there are none.
    std::string text() const;
};

/// The scalar as written without quotes, or nullopt.
std::optional<std::string> plain_scalar(const YAML::Node& node);

/// Text as a YAML scalar, quoted where it has to be.
std::string yaml_text(const std::string& text);

ValueKind<bool> boolean();
/// 0.1, .1, 1e-4, 2e-5, 3
ValueKind<double> number(Limits limits);
ValueKind<int> integer(int low, int high = std::numeric_limits<int>::max());
ValueKind<int64_t> long_integer(int64_t low);
/// From 0 to 2^63 - 1, which JSON readers take as well.
ValueKind<uint64_t> seed_integer();
ValueKind<std::string> text(bool may_be_empty);
/// A file's name, or a key that isn't there.
ValueKind<std::string> maybe_file();
ValueKind<std::string> one_of(std::vector<std::string> words);
/// auto | cpu | cuda | cuda:N
ValueKind<std::string> device_name();
/// HOST:PORT, [IPV6]:PORT
ValueKind<std::string> address(int lowest_port);
/// 30s, 500ms, 50us, 2m, 1h; `low` is the least allowed
ValueKind<Duration> duration(Duration low);
/// 10Gbit, 100Mbit, 1.5Kbit, 9600bit, each a second
ValueKind<int64_t> bandwidth();

/// `auto`, the empty optional, or one of `kind`.
template <typename T>
ValueKind<std::optional<T>> automatic(ValueKind<T> kind) {
    return {[kind](const YAML::Node& node, std::optional<T>& target) {
                if (plain_scalar(node) == "auto") {
                    target.reset();
                    return Fit::good;
                }
                T value{};
                const Fit fit = kind.read(node, value);
                if (fit == Fit::good)
                    target = value;
                return fit;
            },
            [kind](const std::optional<T>& value) { return value ? kind.print(*value) : "auto"; },
            "auto, or " + kind.takes,
            {}};
}

/// A key that may be missing, with no word for it.
template <typename T>
ValueKind<std::optional<T>> maybe(ValueKind<T> kind) {
    ValueKind<std::optional<T>> result = automatic(kind);
    result.read = [kind](const YAML::Node& node, std::optional<T>& target) {
        T value{};
        const Fit fit = kind.read(node, value);
        if (fit == Fit::good)
            target = value;
        return fit;
    };
    result.print = [kind](const std::optional<T>& value) {
        return value ? kind.print(*value) : std::string();
    };
    result.takes = kind.takes;
    return result;
}

/// [a, b, ...] of `kind`.
template <typename T>
ValueKind<std::vector<T>> list_of(ValueKind<T> kind, const std::string& takes) {
    return {[kind](const YAML::Node& node, std::vector<T>& target) {
                if (!node.IsSequence())
                    return Fit::wrong_type;
                std::vector<T> values;
                for (const YAML::Node& element : node) {
                    T value{};
                    if (const Fit fit = kind.read(element, value); fit != Fit::good)
                        return fit;
                    values.push_back(value);
                }
                target = values;
                return Fit::good;
            },
            [kind](const std::vector<T>& values) {
                std::string text;
                for (const T& value : values)
                    text += (text.empty() ? "" : ", ") + kind.print(value);
                return "[" + text + "]";
            },
            takes,
            {}};
}

}  // namespace trainer
