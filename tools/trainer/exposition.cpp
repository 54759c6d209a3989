#include "tools/trainer/exposition.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace trainer {
namespace {

std::string number_text(double value) {
    if (!std::isfinite(value))
        return std::isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string escaped(const std::string& value) {
    std::string result;
    for (const char c : value)
        if (c == '\n')
            result += "\\n";
        else
            result += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
    return result;
}

/// Writes metrics: a heading once, then a line for each set of labels.
class Writer {
  public:
    void heading(const std::string& name, const char* type, const char* help) {
        text +=
            "# HELP trainer_" + name + " " + help + "\n# TYPE trainer_" + name + " " + type + "\n";
    }
    void value(const std::string& name, const std::string& labels, double value) {
        text += "trainer_" + name + "{" + labels + "} " + number_text(value) + "\n";
    }
    template <typename T>
    void single(const std::string& name, const char* type, const char* help,
                const std::string& labels, const std::optional<T>& number) {
        if (!number)
            return;
        heading(name, type, help);
        value(name, labels, static_cast<double>(*number));
    }

    std::string text;
};

using Traffic = RunNumbers::Traffic;

void write_traffic(Writer& writer, const std::map<int, Traffic>& traffic,
                   const std::optional<double>& staleness, const std::string& labels) {
    struct Total {
        const char* name;
        const char* help;
        double Traffic::*value;
    };
    constexpr Total totals[] = {
        {"push_bytes_total", "Payload pushed to servers", &Traffic::push_bytes_total},
        {"pull_bytes_total", "Payload pulled from servers", &Traffic::pull_bytes_total},
        {"push_seconds_total", "Time with a push under way", &Traffic::push_s_total},
        {"pull_seconds_total", "Time with a pull under way", &Traffic::pull_s_total},
        {"wait_seconds_total", "Time blocked for communication", &Traffic::wait_s_total},
    };
    const auto labels_of = [&](int worker) {
        return labels + (labels.empty() ? "" : ",") + "worker=\"" + std::to_string(worker) + "\"";
    };
    for (const Total& total : totals) {
        if (!traffic.empty())
            writer.heading(total.name, "counter", total.help);
        for (const auto& [worker, counters] : traffic)
            writer.value(total.name, labels_of(worker), counters.*total.value);
    }
    const auto known = [](const auto& entry) { return entry.second.staleness.has_value(); };
    if (staleness || std::ranges::any_of(traffic, known))
        writer.heading("staleness", "gauge", "Updates that a gradient's weights lag behind");
    if (staleness)
        writer.value("staleness", labels, *staleness);
    for (const auto& [worker, counters] : traffic)
        if (counters.staleness)
            writer.value("staleness", labels_of(worker), *counters.staleness);
}

}  // namespace

Exposition::Exposition(std::map<std::string, std::string> labels) {
    for (const auto& [name, value] : labels)
        labels_ += (labels_.empty() ? "" : ",") + name + "=\"" + escaped(value) + "\"";
}

void Exposition::update(const std::function<void(RunNumbers&)>& change) {
    const std::lock_guard lock(mutex_);
    change(numbers_);
}

std::string Exposition::text() const {
    const std::lock_guard lock(mutex_);
    const RunNumbers& now = numbers_;
    Writer out;
    out.single("step", "gauge", "Global steps completed", labels_, now.step);
    out.single("epoch", "gauge", "Epoch under way, from 1", labels_, now.epoch);
    out.single("loss", "gauge", "Mean training loss, of the epoch so far or the last record",
               labels_, now.loss);
    out.single("top1", "gauge", "Training accuracy, likewise", labels_, now.top1);
    out.single("test_loss", "gauge", "Loss on the test images", labels_, now.test_loss);
    out.single("test_top1", "gauge", "Accuracy on the test images", labels_, now.test_top1);
    out.single("learning_rate", "gauge", "Of the last step", labels_, now.learning_rate);
    out.single("images_per_second", "gauge", "Training speed", labels_, now.images_per_s);
    out.single("images_total", "counter", "Images trained on", labels_, now.images_total);
    out.single("data_wait_seconds_total", "counter", "Time spent waiting for data", labels_,
               now.data_wait_s_total);
    out.single("members", "gauge", "Workers that take part", labels_, now.members);
    out.single("received_bytes_total", "counter", "Payload that workers pushed to this server",
               labels_, now.received_bytes_total);
    out.single("sent_bytes_total", "counter", "Payload that workers pulled from this server",
               labels_, now.sent_bytes_total);
    write_traffic(out, now.traffic, now.staleness, labels_);
    return out.text;
}

}  // namespace trainer
