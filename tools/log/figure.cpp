#include "tools/log/figure.h"

#include <algorithm>
#include <cmath>

#include "engine/error.h"

namespace trainer::logs {
namespace {

/// Points of a curve that a reader can tell apart.
constexpr size_t curve_points = 500;

struct Units {
    std::string label;
    double seconds = 1;
};

Units units_of(double seconds) {
    if (seconds < 300)
        return {"time, seconds", 1};
    if (seconds < 4 * 3600)
        return {"time, minutes", 60};
    return {"time, hours", 3600};
}

class Drawer {
  public:
    Drawer(const std::vector<Run>& runs, Against against) : runs_(runs), against_(against) {
        double longest = 0;
        for (const Run& run : runs)
            longest = std::max(longest, run.elapsed());
        units_ = units_of(longest);
    }

    Panel panel(const std::string& title, const std::string& y_label, Field field,
                double factor) const {
        Panel panel{.title = title, .x_label = x_label(), .y_label = y_label, .curves = {}};
        for (size_t i = 0; i < runs_.size(); ++i) {
            const Run& run = runs_[i];
            add(panel, i, run.step.points().size() > 1 ? run.step : run.epoch, field, factor,
                false);
            add(panel, i, run.eval, field, factor, true);
        }
        return panel;
    }

  private:
    std::string x_label() const {
        return against_ == Against::epoch  ? "epoch"
               : against_ == Against::step ? "step"
                                           : units_.label;
    }

    double x_of(const Run& run, const Point& point) const {
        return against_ == Against::epoch  ? run.epochs_at(point)
               : against_ == Against::step ? static_cast<double>(point.step)
                                           : point.elapsed / units_.seconds;
    }

    void add(Panel& panel, size_t run, const Series& series, Field field, double factor,
             bool test) const {
        Curve curve{.run = run, .test = test, .points = {}};
        for (const Point& point : series.resampled(curve_points))
            if (std::isfinite(point[field]))
                curve.points.emplace_back(x_of(runs_[run], point), factor * point[field]);
        if (!curve.points.empty())
            panel.curves.push_back(std::move(curve));
    }

    const std::vector<Run>& runs_;
    Against against_;
    Units units_;
};

/// Values of a panel on one axis.
std::pair<double, double> range_of(const Panel& panel, bool y) {
    double low = HUGE_VAL, high = -HUGE_VAL;
    for (const Curve& curve : panel.curves)
        for (const auto& point : curve.points) {
            low = std::min(low, y ? point.second : point.first);
            high = std::max(high, y ? point.second : point.first);
        }
    return {low, high};
}

std::vector<double> log_ticks(double low, double high) {
    std::vector<double> ticks;
    const bool few = std::log10(high / low) < 2.5;
    for (int power = static_cast<int>(std::floor(std::log10(low))); std::pow(10, power) <= high;
         ++power)
        for (const double digit : {1.0, 2.0, 5.0})
            if (const double value = digit * std::pow(10, power);
                (digit == 1 || few) && value >= low * 0.999999 && value <= high * 1.000001)
                ticks.push_back(value);
    return ticks;
}

double round_step(double span, int count) {
    const double rough = span / count;
    const double power = std::pow(10, std::floor(std::log10(rough)));
    for (const double digit : {1.0, 2.0, 5.0})
        if (rough <= digit * power)
            return digit * power;
    return 10 * power;
}

}  // namespace

Figure figure_of(const std::vector<Run>& runs, Against against) {
    Figure figure;
    for (const Run& run : runs)
        figure.runs.push_back(run.label);
    const Drawer drawer(runs, against);
    for (Panel panel : {drawer.panel("Loss", "loss", Field::loss, 1),
                        drawer.panel("Accuracy", "top-1 accuracy, %", Field::top1, 100)}) {
        if (panel.curves.empty())
            continue;
        const auto [low, high] = range_of(panel, true);
        panel.log_y = panel.title == "Loss" && low > 0 && high / low > 15;
        figure.panels.push_back(std::move(panel));
    }
    for (size_t i = 0; i < runs.size(); ++i)
        for (const auto& [worker, series] : runs[i].comm)
            if (!series.empty())
                figure.bars.push_back(
                    {i, runs[i].variant, "worker " + std::to_string(worker), breakdown_of(series)});
    if (figure.panels.empty() && figure.bars.empty())
        throw UsageError("there is nothing to plot: no log has a record yet");
    const char* const by[] = {"epoch", "step", "time"};
    figure.title = std::string("Training by ") + by[static_cast<int>(against)];
    if (runs.size() == 1)
        figure.title = runs[0].label + ": training by " + by[static_cast<int>(against)];
    return figure;
}

double Scale::pixel(double value) const {
    const double share =
        log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return start + share * (end - start);
}

Scale make_scale(double low, double high, int count, bool log) {
    Scale scale;
    scale.log = log;
    if (log) {
        scale.low = low / 1.1;
        scale.high = high * 1.1;
        scale.ticks = log_ticks(scale.low, scale.high);
        return scale;
    }
    if (!(high > low)) {
        const double room = low == 0 ? 1 : std::abs(low) / 2;
        low -= room;
        high += room;
    }
    const double step = round_step(high - low, count);
    scale.low = std::floor(low / step + 1e-9) * step;
    scale.high = std::ceil(high / step - 1e-9) * step;
    for (double tick = scale.low; tick < scale.high + step / 2; tick += step)
        scale.ticks.push_back(std::abs(tick) < step / 2 ? 0 : tick);
    return scale;
}

Layout lay_out(const Figure& figure) {
    constexpr double margin = 24, gap = 40, tick_room = 52, panel_height = 340, row = 20;
    Layout layout;
    layout.width = 1160;
    // The legend flows in rows below the title.
    double x = margin, y = 62;
    layout.legend_top = y;
    for (const std::string& run : figure.runs) {
        const double width = 34 + 7.2 * static_cast<double>(shortened(run, 48).size()) + 18;
        if (x > margin && x + width > layout.width - margin) {
            x = margin;
            y += row;
        }
        layout.legend.emplace_back(x, y);
        x += width;
    }
    y += 38;
    if (!figure.panels.empty()) {
        const double count = static_cast<double>(figure.panels.size());
        const double width = (layout.width - 2 * margin - (count - 1) * gap) / count;
        double left = margin;
        for (const Panel& panel : figure.panels) {
            const auto [x_low, x_high] = range_of(panel, false);
            const auto [y_low, y_high] = range_of(panel, true);
            PanelLayout place{make_scale(std::min(0.0, x_low), x_high, 7, false),
                              make_scale(y_low, y_high, 7, panel.log_y)};
            // The curves end where the plot ends; only round numbers get a tick.
            place.x.high = std::max(x_high, place.x.low + 1e-9);
            std::erase_if(place.x.ticks, [&](double tick) { return tick > place.x.high * 1.0001; });
            place.x.start = left + tick_room;
            place.x.end = left + width;
            place.y.start = y + panel_height;
            place.y.end = y;
            layout.panels.push_back(std::move(place));
            left += width + gap;
        }
        y += panel_height + 62;
    }
    if (!figure.bars.empty()) {
        y += 30;
        layout.bars_top = y;
        double longest = 0;
        for (const Bar& bar : figure.bars)
            longest = std::max({longest, bar.seconds.step(), bar.seconds.hidden});
        layout.bars_x = make_scale(0, longest * 1000, 8, false);
        layout.bars_x.start = margin + 230;
        layout.bars_x.end = layout.width - margin;
        y += 34 * static_cast<double>(figure.bars.size()) + 56;
    }
    layout.height = y;
    return layout;
}

std::string colour_of(size_t run) {
    // Apart from each other to those who see few colours, too.
    constexpr const char* colours[] = {"#0b6fb8", "#d1570b", "#128a62", "#8a4fb0",
                                       "#c9930a", "#d0508e", "#46a8d8", "#5f6570"};
    return colours[run % std::size(colours)];
}

std::string shortened(const std::string& label, size_t characters) {
    if (label.size() <= characters)
        return label;
    const auto inside_character = [&](size_t at) {
        return (static_cast<unsigned char>(label[at]) & 0xc0) == 0x80;
    };
    size_t end = (characters - 3) / 2, begin = label.size() - (characters - 3) / 2;
    while (end > 0 && inside_character(end))
        --end;
    while (begin < label.size() && inside_character(begin))
        ++begin;
    return label.substr(0, end) + "..." + label.substr(begin);
}

std::string tick_text(double value) {
    if (std::abs(value) >= 1e6)
        return compact(value / 1e6) + "M";
    if (std::abs(value) >= 1e4)
        return compact(value / 1e3) + "k";
    return compact(value);
}

}  // namespace trainer::logs
