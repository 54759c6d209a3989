// Figure: curves and bars of runs, laid out once, drawn as SVG, HTML or PNG.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tools/log/run.h"
#include "tools/log/summary.h"

namespace trainer::logs {

/// What the curves are drawn against.
enum class Against { epoch, step, time };

/// One curve, in the units of its panel.
struct Curve {
    size_t run = 0;     ///< index in Figure::runs; gives the colour
    bool test = false;  ///< of the test images: drawn strong; else of training: thin
    std::vector<std::pair<double, double>> points;
};

struct Panel {
    std::string title, x_label, y_label;
    bool log_y = false;
    std::vector<Curve> curves;
};

/// Where the time of one worker's step goes.
struct Bar {
    size_t run = 0;
    std::string variant, label;
    Breakdown seconds;
};

struct Figure {
    std::string title;
    std::vector<std::string> runs;  ///< what the legend says
    std::vector<Panel> panels;
    std::vector<Bar> bars;
};

/// Loss and top-1 accuracy (left out where no run has any) of all runs, and the bars of those that
/// have `comm` records. Throws UsageError where no run has a record.
Figure figure_of(const std::vector<Run>& runs, Against against);

/// An axis: values from `low` to `high` lie on pixels from `start` to `end`.
struct Scale {
    double low = 0, high = 1, start = 0, end = 1;
    bool log = false;
    std::vector<double> ticks;

    double pixel(double value) const;
};

/// Around values from `low` to `high`, with room and about `count` round ticks.
Scale make_scale(double low, double high, int count, bool log);

/// Where each panel's plot lies.
struct PanelLayout {
    Scale x, y;
};

struct Layout {
    double width = 0, height = 0;
    double legend_top = 0;
    std::vector<std::pair<double, double>> legend;  ///< left edge and middle of each run's entry
    std::vector<PanelLayout> panels;
    double bars_top = 0;
    Scale bars_x;
};

Layout lay_out(const Figure& figure);

/// A whole SVG document. Each curve is a polyline of class "test" or "training" with the run's
/// label in data-run; ticks are texts of class "xtick" and "ytick"; parts of bars are rectangles
/// of class "compute", "exposed", "hidden" or "wait".
std::string svg_of(const Figure& figure);

/// One page that needs nothing else, with the values under the pointer.
std::string html_of(const Figure& figure);

/// Writes the figure as the name ends: .svg, .html or .png. Throws UsageError for other names, and
/// for PNG where this build has none; Error where the file cannot be written.
void write_figure(const Figure& figure, const std::filesystem::path& path);

/// The colour of a run, "#rrggbb".
std::string colour_of(size_t run);

/// A label cut in its middle to at most `characters`.
std::string shortened(const std::string& label, size_t characters);

/// A tick's number, e.g. "20k", "0.5".
std::string tick_text(double value);

}  // namespace trainer::logs
