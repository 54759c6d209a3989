#include "tools/log/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace trainer::logs {
namespace {

using Json = nlohmann::ordered_json;

/// One row of the table; NaN and -1: unknown.
struct Row {
    std::string label, model, variant;
    double workers = absent;
    double epochs = 0;
    int64_t steps = 0;
    double train_loss = absent, test_loss = absent, top1 = absent, top5 = absent;
    double best_top1 = absent;
    double best_epoch = absent;
    double images_per_s = absent, seconds = 0;
    double reached_s = absent, reached_epoch = absent, reached_step = absent;
    // Shares of the step, means of the workers.
    double computing = absent, exposed = absent, waiting = absent;
    double staleness = absent;                        // mean of the workers; NaN where 0
    double push_bytes = absent, pull_bytes = absent;  // a step, all workers
};

double or_absent(int64_t value) {
    return value > 0 ? static_cast<double>(value) : absent;
}

void take_communication(const Run& run, Row& row) {
    double steps = 0, staleness = 0;
    Breakdown sum;
    for (const auto& [worker, series] : run.comm) {
        if (series.empty())
            continue;
        const Point total = series.total();
        const Breakdown mean = breakdown_of(series);
        sum.compute += mean.compute;
        sum.exposed += mean.exposed;
        sum.wait += mean.wait;
        if (!std::isnan(total[Field::staleness]))
            staleness += total[Field::staleness] / static_cast<double>(run.comm.size());
        steps = std::max(steps, static_cast<double>(total.step));
        const auto add = [](double& to, double value) {
            if (!std::isnan(value))
                to = (std::isnan(to) ? 0 : to) + value;
        };
        add(row.push_bytes, total[Field::push_bytes]);
        add(row.pull_bytes, total[Field::pull_bytes]);
    }
    if (sum.step() > 0) {
        row.computing = sum.compute / sum.step();
        row.exposed = sum.exposed / sum.step();
        row.waiting = sum.wait / sum.step();
    }
    if (staleness > 0)
        row.staleness = staleness;
    row.push_bytes /= std::max(steps, 1.0);
    row.pull_bytes /= std::max(steps, 1.0);
}

Row row_of(const Run& run) {
    Row row;
    row.label = run.label;
    row.model = run.model;
    row.variant = run.variant;
    row.workers = or_absent(run.workers);
    row.steps = run.last_step();
    const Series& training = run.epoch.empty() ? run.step : run.epoch;
    if (!training.empty()) {
        row.epochs = run.epochs_at(training.points().back());
        row.train_loss = training.points().back()[Field::loss];
        row.images_per_s = training.total()[Field::images_per_s];
    }
    if (run.steps_per_epoch > 0)
        row.epochs = static_cast<double>(row.steps) / static_cast<double>(run.steps_per_epoch);
    if (!run.eval.empty()) {
        const Point& last = run.eval.points().back();
        row.test_loss = last[Field::loss];
        row.top1 = last[Field::top1];
        row.top5 = last[Field::top5];
        const Point total = run.eval.total();
        row.best_top1 = total.best_top1;
        row.best_epoch = or_absent(total.best_epoch);
    }
    row.seconds = run.elapsed();
    if (run.hit) {
        row.reached_s = run.hit->elapsed;
        row.reached_epoch = static_cast<double>(run.hit->epoch);
        row.reached_step = static_cast<double>(run.hit->step);
    }
    take_communication(run, row);
    return row;
}

std::string fixed(double number, int digits) {
    if (std::isnan(number))
        return "-";
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", digits, number);
    return text;
}

struct Column {
    std::string title;
    bool left = false;  // aligned
    std::vector<std::string> cells;
};

// Bytes that continue a character of UTF-8 take no room.
size_t width_of(const std::string& text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    }));
}

class Table {
  public:
    explicit Table(const std::vector<Row>& rows) : rows_(rows) {}

    /// A column of `cell(row)`; where not `always`, only if a cell says something.
    template <typename Cell>
    void add(const std::string& title, bool left, Cell cell, bool always = true) {
        Column column{title, left, {}};
        bool any = always;
        for (const Row& row : rows_) {
            column.cells.push_back(cell(row));
            any = any || (column.cells.back() != "-" && !column.cells.back().empty());
        }
        if (any)
            columns_.push_back(std::move(column));
    }

    std::string text(bool markdown) const {
        std::string text;
        for (size_t row = 0; row <= rows_.size(); ++row) {
            text += line(row, markdown);
            if (row == 0 && markdown) {
                for (const Column& column : columns_)
                    text += column.left ? "|---" : "|---:";
                text += "|\n";
            }
        }
        return text;
    }

  private:
    // Row 0 is that of the titles.
    std::string line(size_t row, bool markdown) const {
        std::string line;
        for (const Column& column : columns_) {
            size_t width = width_of(column.title);
            for (const std::string& cell : column.cells)
                width = std::max(width, width_of(cell));
            const std::string& cell = row == 0 ? column.title : column.cells[row - 1];
            const std::string space(width - width_of(cell), ' ');
            line += markdown ? "| " : line.empty() ? "" : "  ";
            line += (column.left ? cell + space : space + cell) + (markdown ? " " : "");
        }
        line.erase(line.find_last_not_of(' ') + 1);
        return line + (markdown ? " |\n" : "\n");
    }

    const std::vector<Row>& rows_;
    std::vector<Column> columns_;
};

Json json_number(double number) {
    if (std::isnan(number))
        return nullptr;
    if (number == std::floor(number) && std::abs(number) < 1e15)
        return static_cast<int64_t>(number);
    return number;
}

/// The columns of CSV and JSON.
Json json_row(const Row& row, std::optional<double> accuracy) {
    Json json = {{"run", row.label},
                 {"model", row.model},
                 {"variant", row.variant},
                 {"workers", json_number(row.workers)},
                 {"epochs", json_number(row.epochs)},
                 {"steps", row.steps},
                 {"train_loss", json_number(row.train_loss)},
                 {"test_loss", json_number(row.test_loss)},
                 {"top1", json_number(row.top1)},
                 {"top5", json_number(row.top5)},
                 {"best_top1", json_number(row.best_top1)},
                 {"best_epoch", json_number(row.best_epoch)},
                 {"images_per_s", json_number(row.images_per_s)},
                 {"seconds", json_number(row.seconds)},
                 {"push_bytes_per_step", json_number(row.push_bytes)},
                 {"pull_bytes_per_step", json_number(row.pull_bytes)},
                 {"exposed_communication", json_number(row.exposed)}};
    if (accuracy) {
        json["time_to"] = *accuracy;
        json["time_to_seconds"] = json_number(row.reached_s);
        json["time_to_epoch"] = json_number(row.reached_epoch);
        json["time_to_step"] = json_number(row.reached_step);
    }
    return json;
}

Json curve(const Run& run, const Series& series) {
    Json points = {{"step", Json::array()},
                   {"epoch", Json::array()},
                   {"elapsed", Json::array()},
                   {"loss", Json::array()},
                   {"top1", Json::array()}};
    for (const Point& point : series.points()) {
        points["step"].push_back(point.step);
        points["epoch"].push_back(json_number(run.epochs_at(point)));
        points["elapsed"].push_back(json_number(point.elapsed));
        points["loss"].push_back(json_number(point[Field::loss]));
        points["top1"].push_back(json_number(point[Field::top1]));
    }
    return points;
}

std::string csv_field(const Json& value) {
    if (value.is_null())
        return "";
    if (!value.is_string())
        return value.dump();
    std::string text = value.get<std::string>();
    if (text.find_first_of(",\"\r\n") == std::string::npos)
        return text;
    for (size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2)
        text.insert(at, 1, '"');
    return "\"" + text + "\"";
}

}  // namespace

Breakdown breakdown_of(const Series& comm) {
    if (comm.empty())
        return {};
    const Point total = comm.total();
    const auto value = [&](Field field) { return std::isnan(total[field]) ? 0 : total[field]; };
    const double steps = static_cast<double>(std::max<int64_t>(total.step, 1));
    const double travelling = value(Field::push_s) + value(Field::pull_s);
    const double blocked = value(Field::wait_s);
    Breakdown result;
    result.exposed = std::isnan(total[Field::exposed_s]) ? std::min(blocked, travelling)
                                                         : total[Field::exposed_s];
    result.hidden = std::isnan(total[Field::hidden_s]) ? std::max(0.0, travelling - result.exposed)
                                                       : total[Field::hidden_s];
    result.wait = std::max(0.0, blocked - result.exposed) + value(Field::data_wait);
    result.compute = value(Field::compute_s);
    for (double* part : {&result.compute, &result.exposed, &result.hidden, &result.wait})
        *part /= steps;
    return result;
}

std::string summary_table(const std::vector<Run>& runs, std::optional<double> accuracy) {
    std::vector<Row> rows;
    for (const Run& run : runs)
        rows.push_back(row_of(run));
    Table table(rows);
    const auto percent = [](double fraction) { return fixed(100 * fraction, 2); };
    table.add("run", true, [](const Row& row) { return row.label; });
    table.add(
        "model", true, [](const Row& row) { return row.model; }, false);
    table.add(
        "variant", true, [](const Row& row) { return row.variant; }, false);
    table.add(
        "workers", false, [](const Row& row) { return fixed(row.workers, 0); }, false);
    table.add("epochs", false, [](const Row& row) { return compact(row.epochs, 4); });
    table.add("steps", false, [](const Row& row) { return std::to_string(row.steps); });
    table.add("train loss", false, [](const Row& row) { return fixed(row.train_loss, 4); });
    table.add("test loss", false, [](const Row& row) { return fixed(row.test_loss, 4); });
    table.add("top-1 %", false, [&](const Row& row) { return percent(row.top1); });
    table.add("best %", false, [&](const Row& row) { return percent(row.best_top1); });
    table.add(
        "in epoch", false, [](const Row& row) { return fixed(row.best_epoch, 0); }, false);
    table.add("images/s", false, [](const Row& row) { return fixed(row.images_per_s, 0); });
    table.add("time", false, [](const Row& row) { return duration(row.seconds); });
    const auto reached = [](const Row& row) {
        return std::isnan(row.reached_s)
                   ? std::string("-")
                   : duration(row.reached_s) + " (epoch " + fixed(row.reached_epoch, 0) + ")";
    };
    if (accuracy)
        table.add("time to " + compact(100 * *accuracy) + " %", false, reached);
    table.add(
        "exposed %", false, [](const Row& row) { return fixed(100 * row.exposed, 1); }, false);
    return table.text(false);
}

std::string comparison_table(const std::vector<Run>& runs, std::optional<double> accuracy,
                             bool markdown) {
    std::vector<Row> rows;
    for (const Run& run : runs)
        rows.push_back(row_of(run));
    Table table(rows);
    const auto megabytes = [](double bytes, double workers) {
        return fixed(1e-6 * bytes / (std::isnan(workers) ? 1 : workers), 2);
    };
    table.add("run", true, [](const Row& row) { return row.label; });
    table.add("variant", true, [](const Row& row) { return row.variant; });
    table.add("workers", false, [](const Row& row) { return fixed(row.workers, 0); });
    table.add("epochs", false, [](const Row& row) { return compact(row.epochs, 3); });
    table.add("top-1 %", false, [](const Row& row) { return fixed(100 * row.top1, 2); });
    table.add("images/s", false, [](const Row& row) {
        return fixed(row.images_per_s, row.images_per_s < 100 ? 1 : 0);
    });
    table.add("speed", false, [&](const Row& row) {
        return fixed(row.images_per_s / rows.front().images_per_s, 2) + "x";
    });
    table.add("time", false, [](const Row& row) { return duration(row.seconds); });
    if (accuracy)
        table.add("time to " + compact(100 * *accuracy) + " %", false, [](const Row& row) {
            return std::isnan(row.reached_s) ? std::string("-") : duration(row.reached_s);
        });
    table.add("push MB", false,
              [&](const Row& row) { return megabytes(row.push_bytes, row.workers); });
    table.add("pull MB", false,
              [&](const Row& row) { return megabytes(row.pull_bytes, row.workers); });
    table.add("exposed %", false, [](const Row& row) { return fixed(100 * row.exposed, 1); });
    table.add("exposed/computing", false,
              [](const Row& row) { return fixed(row.exposed / row.computing, 2); });
    table.add("waiting %", false, [](const Row& row) { return fixed(100 * row.waiting, 1); });
    table.add(
        "staleness", false, [](const Row& row) { return fixed(row.staleness, 2); }, false);
    return table.text(markdown);
}

std::string summary_csv(const std::vector<Run>& runs, std::optional<double> accuracy) {
    std::string text;
    for (const Run& run : runs) {
        const Json row = json_row(row_of(run), accuracy);
        std::string titles, values;
        for (const auto& [key, value] : row.items()) {
            titles += (titles.empty() ? "" : ",") + key;
            values += (values.empty() ? "" : ",") + csv_field(value);
        }
        text += (text.empty() ? titles + "\r\n" : "") + values + "\r\n";
    }
    return text;
}

std::string summary_json(const std::vector<Run>& runs, std::optional<double> accuracy) {
    Json result = Json::array();
    for (const Run& run : runs) {
        Json json = json_row(row_of(run), accuracy);
        json["comm"] = Json::array();
        for (const auto& [worker, series] : run.comm) {
            const Breakdown mean = breakdown_of(series);
            json["comm"].push_back({{"worker", worker},
                                    {"compute_s", mean.compute},
                                    {"exposed_s", mean.exposed},
                                    {"hidden_s", mean.hidden},
                                    {"wait_s", mean.wait}});
        }
        json["training"] = curve(run, run.step.empty() ? run.epoch : run.step);
        json["test"] = curve(run, run.eval);
        result.push_back(std::move(json));
    }
    return result.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string duration(double seconds) {
    const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
    char text[64];
    if (whole < 3600)
        std::snprintf(text, sizeof text, "%ld:%02ld", whole / 60, whole % 60);
    else
        std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60,
                      whole % 60);
    return text;
}

std::string compact(double number, int digits) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*g", digits, number);
    return text;
}

}  // namespace trainer::logs
