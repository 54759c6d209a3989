// Plots of parse_log: the numbers that stand in the SVG are those of the log.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "engine/error.h"
#include "tools/log/figure.h"

namespace trainer::logs {
namespace {

namespace fs = std::filesystem;

double loss_at(int step) {
    return 2.3 * std::exp(-step / 400.0) + 0.02;
}

/// 10 epochs of 100 steps, a step record each 10 steps, an evaluation an epoch; each step takes
/// 0.25 s.
Run made_up(const std::string& label, double factor, bool with_eval = true, double power = 1) {
    logs::Run run;
    run.label = label;
    run.steps_per_epoch = 100;
    for (int step = 10; step <= 1000; step += 10) {
        Point point;
        point.first_step = point.step = step;
        point.epoch = (step + 99) / 100;
        point.elapsed = step * 0.25;
        point[Field::loss] = factor * std::pow(loss_at(step), power);
        point[Field::top1] = 1 - loss_at(step) / 3;
        run.step.append(point);
        if (step % 100 != 0 || !with_eval)
            continue;
        point[Field::loss] = factor * loss_at(step) + 0.1;
        point[Field::top1] = 0.9 - loss_at(step) / 3;
        run.eval.append(point);
    }
    return run;
}

Run with_workers(logs::Run run) {
    for (int worker : {0, 1}) {
        Point point;
        point.first_step = point.step = 1000;
        point[Field::compute_s] = 60;
        point[Field::exposed_s] = 10 + worker;
        point[Field::hidden_s] = 30;
        point[Field::wait_s] = 15 + worker;
        run.comm[worker].append(point);
    }
    return run;
}

std::vector<std::smatch> all(const std::string& text, const std::regex& pattern) {
    return {std::sregex_iterator(text.begin(), text.end(), pattern), {}};
}

double tick_value(std::string text) {
    const double factor = text.back() == 'k' ? 1e3 : text.back() == 'M' ? 1e6 : 1;
    return factor * std::stod(text);
}

/// From pixels to values, as a reader of the plot goes by the ticks.
struct Axis {
    double pixel_a, value_a, pixel_b, value_b;
    bool log;

    double value(double pixel) const {
        const double share = (pixel - pixel_a) / (pixel_b - pixel_a);
        return log ? value_a * std::pow(value_b / value_a, share)
                   : value_a + share * (value_b - value_a);
    }
};

Axis axis_of(const std::string& panel, const std::string& ticks, bool log) {
    // A y tick's text stands 4 below its line.
    const bool y = ticks == "ytick";
    const auto found = all(panel, std::regex("<text x=\"([-.0-9]+)\" y=\"([-.0-9]+)\" class=\"" +
                                             ticks + "\"[^>]*>([^<]+)</text>"));
    check(found.size() >= 3, "an axis has ticks");
    const auto pixel = [&](const std::smatch& tick) {
        return y ? std::stod(tick[2]) - 4 : std::stod(tick[1]);
    };
    return {pixel(found.front()), tick_value(found.front()[3]), pixel(found.back()),
            tick_value(found.back()[3]), log};
}

using Points = std::vector<std::pair<double, double>>;

/// The curves of a panel in values, by run and class.
std::map<std::string, Points> curves_of(const std::string& panel) {
    const bool log = panel.find("(log scale)") != std::string::npos;
    const Axis x = axis_of(panel, "xtick", false), y = axis_of(panel, "ytick", log);
    std::map<std::string, Points> curves;
    const std::regex pattern(
        "<polyline class=\"([a-z]+)\" data-run=\"([^\"]*)\" points=\"([^\"]*)\"");
    for (const std::smatch& match : all(panel, pattern)) {
        Points& points = curves[match[2].str() + " " + match[1].str()];
        std::istringstream text(match[3]);
        char comma;
        for (double px, py; text >> px >> comma >> py;)
            points.emplace_back(x.value(px), y.value(py));
    }
    return curves;
}

std::vector<std::string> panels_of(const std::string& svg) {
    std::vector<std::string> panels;
    for (size_t at = 0; (at = svg.find("<g class=\"panel\">", at)) != std::string::npos; ++at)
        panels.push_back(svg.substr(at, svg.find("</g>", at) - at));
    return panels;
}

TEST(Plot, CurvesAreTheNumbersOfTheLog) {
    const std::vector<logs::Run> runs{made_up("one", 1), made_up("two", 0.5)};
    struct Case {
        Against against;
        double unit;  // of x, in steps
    };
    for (const Case& c : {Case{Against::epoch, 100}, Case{Against::step, 1},
                          Case{Against::time, 4}}) {  // 250 s: the axis is in seconds
        const auto panels = panels_of(svg_of(figure_of(runs, c.against)));
        ASSERT_EQ(panels.size(), 2u);
        for (const bool accuracy : {false, true}) {
            const auto curves = curves_of(panels[accuracy]);
            ASSERT_EQ(curves.size(), 4u);
            for (const logs::Run& run : runs)
                for (const bool test : {false, true}) {
                    const Points& points = curves.at(run.label + (test ? " test" : " training"));
                    const auto& expected = (test ? run.eval : run.step).points();
                    ASSERT_EQ(points.size(), expected.size());
                    for (size_t i = 0; i < points.size(); ++i) {
                        const double y =
                            accuracy ? 100 * expected[i][Field::top1] : expected[i][Field::loss];
                        EXPECT_NEAR(points[i].first * c.unit, expected[i].step, 2);
                        EXPECT_NEAR(points[i].second, y, accuracy ? 0.1 : 0.002 + y * 0.001);
                    }
                }
        }
    }
}

TEST(Plot, AWideRangeOfLossesIsOnALogScale) {
    const auto narrow = panels_of(svg_of(figure_of({made_up("a", 1, false)}, Against::epoch)));
    const auto wide = panels_of(svg_of(figure_of({made_up("a", 1, false, 2)}, Against::epoch)));
    EXPECT_EQ(narrow[0].find("(log scale)"), std::string::npos);
    EXPECT_NE(wide[0].find("(log scale)"), std::string::npos);
    EXPECT_EQ(wide[1].find("(log scale)"), std::string::npos);
    const auto curves = curves_of(wide[0]);
    ASSERT_EQ(curves.size(), 1u) << "no evaluation, no curve of the test images";
    for (const auto& [x, y] : curves.at("a training"))
        EXPECT_NEAR(y, std::pow(loss_at(static_cast<int>(std::lround(x * 100))), 2), 0.01 * y);
}

TEST(Plot, LegendNamesEachRunOnceInItsColour) {
    const std::vector<logs::Run> runs{made_up("one", 1), made_up("a <b> & \"c\"", 1),
                                      made_up(std::string(100, 'x'), 1)};
    const std::string svg = svg_of(figure_of(runs, Against::epoch));
    EXPECT_EQ(all(svg, std::regex(">one</text>")).size(), 1u);
    EXPECT_EQ(all(svg, std::regex(">a &lt;b&gt; &amp; &quot;c&quot;</text>")).size(), 1u);
    EXPECT_EQ(all(svg, std::regex(">x{22}\\.\\.\\.x{22}</text>")).size(), 1u);
    for (size_t run = 0; run < 3; ++run)
        EXPECT_GE(all(svg, std::regex("stroke=\"" + colour_of(run) + "\"")).size(), 5u);
}

TEST(Plot, LegendEntriesDoNotOverlapAndStayOnThePage) {
    std::vector<logs::Run> runs;
    for (int i = 0; i < 20; ++i)
        runs.push_back(made_up("run with a longer name " + std::to_string(i), 1));
    const Layout layout = lay_out(figure_of(runs, Against::epoch));
    for (size_t i = 0; i < runs.size(); ++i) {
        const auto [x, y] = layout.legend[i];
        EXPECT_LE(x + 33 + 7.2 * static_cast<double>(runs[i].label.size()), layout.width);
        if (i > 0 && layout.legend[i - 1].second == y) {
            EXPECT_GE(x, layout.legend[i - 1].first + 33 +
                             7.2 * static_cast<double>(runs[i].label.size()));
        }
        EXPECT_LT(y, layout.panels[0].y.end - 14) << "above the plots";
    }
}

TEST(Plot, BarsAreTheBreakdown) {
    const std::string svg = svg_of(figure_of({with_workers(made_up("one", 1))}, Against::epoch));
    const Axis x = axis_of(svg, "bartick", false);
    const auto widths = [&](const std::string& part) {
        std::vector<double> result;
        const std::regex pattern(
            "<rect x=\"([.0-9]+)\" y=\"[.0-9]+\" width=\"([.0-9]+)\" "
            "height=\"[.0-9]+\" class=\"" +
            part + "\"");
        for (const std::smatch& match : all(svg, pattern))
            result.push_back(x.value(std::stod(match[1]) + std::stod(match[2])) -
                             x.value(std::stod(match[1])));
        return result;
    };
    const std::map<std::string, std::vector<double>> expected{
        {"compute", {60, 60}}, {"exposed", {10, 11}}, {"hidden", {30, 30}}, {"wait", {5, 5}}};
    for (const auto& [part, milliseconds] : expected) {
        const auto found = widths(part);
        ASSERT_EQ(found.size(), 2u) << part;
        for (size_t worker = 0; worker < 2; ++worker)
            EXPECT_NEAR(found[worker], milliseconds[worker], 0.05) << part << worker;
    }
    EXPECT_NE(svg.find(">worker 1</text>"), std::string::npos);
}

TEST(Plot, TicksAreRoundAndCoverTheValues) {
    for (const auto& [low, high] :
         {std::pair{0.0, 1.0}, {0.3, 97.0}, {-3.0, 1e6}, {5.0, 5.0}, {0.0, 0.0}, {1e-9, 3e-9}}) {
        const Scale scale = make_scale(low, high, 7, false);
        EXPECT_LE(scale.low, low);
        EXPECT_GE(scale.high, high);
        EXPECT_GE(scale.ticks.size(), 3u);
        EXPECT_LE(scale.ticks.size(), 10u);
    }
    EXPECT_EQ(make_scale(0, 30, 7, false).ticks, (std::vector<double>{0, 5, 10, 15, 20, 25, 30}));
    EXPECT_EQ(tick_text(20000), "20k");
    EXPECT_EQ(tick_text(0.5), "0.5");
}

TEST(Plot, FilesByTheirNames) {
    std::string pattern = (fs::temp_directory_path() / "plot_test_XXXXXX").string();
    check(mkdtemp(pattern.data()) != nullptr, "no temporary directory");
    const fs::path folder = pattern;
    const Figure figure = figure_of({with_workers(made_up("one</script>", 1))}, Against::step);
    const auto contents = [&](const char* name) {
        std::ifstream file(folder / name, std::ios::binary);
        return std::string{std::istreambuf_iterator<char>(file), {}};
    };
    write_figure(figure, folder / "a.svg");
    EXPECT_EQ(contents("a.svg"), svg_of(figure));
    write_figure(figure, folder / "a.html");
    const std::string html = contents("a.html");
    EXPECT_NE(html.find(svg_of(figure)), std::string::npos);
    EXPECT_NE(html.find("\"points\":[[10.0,"), std::string::npos) << "values to hover over";
    EXPECT_EQ(all(html, std::regex("</script>")).size(), 1u) << "a label ends no script";
    EXPECT_EQ(all(html, std::regex("(src|href)=")).size(), 0u) << "needs nothing from elsewhere";
    EXPECT_THROW(write_figure(figure, folder / "a.gif"), UsageError);
    EXPECT_THROW(write_figure(figure, folder / "no/a.svg"), Error);
    fs::create_symlink("/dev/null", folder / "null.html");
    EXPECT_THROW(write_figure(figure, folder / "null.html"), UsageError);
    try {
        write_figure(figure, folder / "a.png");
        const std::string png = contents("a.png");
        EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
        EXPECT_GT(png.size(), 20000u);
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("librsvg2-dev"), std::string::npos);
    }
    fs::remove_all(folder);
    EXPECT_THROW(figure_of({logs::Run()}, Against::epoch), UsageError);
}

}  // namespace
}  // namespace trainer::logs
