// Figure as SVG.
#include <algorithm>
#include <cstdio>

#include "tools/log/figure.h"

namespace trainer::logs {
namespace {

constexpr const char* ink = "#24292f";
constexpr const char* faint = "#6a737d";
constexpr const char* grid = "#e4e7eb";
constexpr const char* part_colours[] = {"#4a7fb5", "#d9694a", "#b9bfc7", "#f0b44c"};

/// Bytes of the whole UTF-8 character that starts at `at`; 0 where none does.
size_t character_bytes(const std::string& text, size_t at) {
    const auto byte = [&](size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    };
    const unsigned first = byte(at);
    const size_t bytes = first < 0x80   ? 1
                         : first < 0xc2 ? 0
                         : first < 0xe0 ? 2
                         : first < 0xf0 ? 3
                         : first < 0xf5 ? 4
                                        : 0;
    for (size_t i = 1; i < bytes; ++i)
        if ((byte(at + i) & 0xc0) != 0x80)
            return 0;
    return bytes;
}

/// For XML, which takes neither control characters nor broken UTF-8: names of files may have both.
std::string escaped(const std::string& text) {
    std::string result;
    for (size_t at = 0; at < text.size();) {
        const size_t bytes = character_bytes(text, at);
        const char c = text[at];
        if (bytes != 1) {
            result += bytes == 0 ? "?" : text.substr(at, bytes);
            at += std::max<size_t>(bytes, 1);
            continue;
        }
        ++at;
        switch (c) {
            case '&':
                result += "&amp;";
                break;
            case '<':
                result += "&lt;";
                break;
            case '>':
                result += "&gt;";
                break;
            case '"':
                result += "&quot;";
                break;
            default:
                result += static_cast<unsigned char>(c) >= 0x20 ? c : '?';
        }
    }
    return result;
}

std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f", value);
    return text;
}

class Svg {
  public:
    void text(double x, double y, const std::string& content, const std::string& attributes) {
        body_ += "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" " + attributes + ">" +
                 escaped(content) + "</text>\n";
    }
    void line(double x1, double y1, double x2, double y2, const std::string& attributes) {
        body_ += "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
                 "\" y2=\"" + number(y2) + "\" " + attributes + "/>\n";
    }
    void rect(double x, double y, double width, double height, const std::string& attributes,
              const std::string& hover = {}) {
        body_ += "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(width) +
                 "\" height=\"" + number(height) + "\" " + attributes;
        body_ += hover.empty() ? "/>\n" : "><title>" + escaped(hover) + "</title></rect>\n";
    }
    void raw(const std::string& element) { body_ += element + "\n"; }

    std::string document(double width, double height) const {
        return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(width) +
               "\" height=\"" + number(height) + "\" viewBox=\"0 0 " + number(width) + " " +
               number(height) +
               "\" font-family=\"DejaVu Sans, Verdana, Helvetica, sans-serif\" font-size=\"12\">\n"
               "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" +
               body_ + "</svg>\n";
    }

  private:
    std::string body_;
};

std::string fill(const std::string& colour) {
    return "fill=\"" + colour + "\"";
}

/// Runs that share a colour differ in their dashes.
std::string dashes_of(size_t run) {
    constexpr const char* patterns[] = {"", "7 3", "2 3", "9 3 2 3"};
    const std::string pattern = patterns[run / 8 % std::size(patterns)];
    return pattern.empty() ? "" : " stroke-dasharray=\"" + pattern + "\"";
}

std::string stroke(size_t run, bool test) {
    return "stroke=\"" + colour_of(run) + "\" stroke-width=\"" + (test ? "2.2" : "1.1") + "\"" +
           (test ? "" : " stroke-opacity=\"0.55\"") + dashes_of(run);
}

void draw_legend(Svg& svg, const Figure& figure, const Layout& layout) {
    for (size_t run = 0; run < figure.runs.size(); ++run) {
        const auto [x, y] = layout.legend[run];
        svg.line(x, y - 4, x + 26, y - 4, stroke(run, true));
        svg.text(x + 33, y, shortened(figure.runs[run], 48), fill(ink));
    }
    // What thick and thin stand for, at the right of the title.
    if (figure.panels.empty())
        return;
    const double x = layout.width - 220, y = 32;
    const std::string gray = std::string("stroke=\"") + faint + "\" stroke-width=";
    svg.line(x, y - 4, x + 26, y - 4, gray + "\"2.2\"");
    svg.text(x + 33, y, "test", fill(faint));
    svg.line(x + 88, y - 4, x + 114, y - 4, gray + "\"1.1\" stroke-opacity=\"0.7\"");
    svg.text(x + 121, y, "training", fill(faint));
}

void draw_axes(Svg& svg, const Panel& panel, const PanelLayout& place) {
    const std::string grid_line = std::string("stroke=\"") + grid + "\"";
    for (const double tick : place.y.ticks) {
        const double y = place.y.pixel(tick);
        svg.line(place.x.start, y, place.x.end, y, grid_line);
        svg.text(place.x.start - 8, y + 4, tick_text(tick),
                 "class=\"ytick\" text-anchor=\"end\" " + fill(faint));
    }
    for (const double tick : place.x.ticks) {
        const double x = place.x.pixel(tick);
        svg.line(x, place.y.start, x, place.y.start + 5, std::string("stroke=\"") + faint + "\"");
        svg.text(x, place.y.start + 20, tick_text(tick),
                 "class=\"xtick\" text-anchor=\"middle\" " + fill(faint));
    }
    svg.line(place.x.start, place.y.start, place.x.end, place.y.start,
             std::string("stroke=\"") + faint + "\"");
    svg.text(place.x.start, place.y.end - 14, panel.y_label + (panel.log_y ? " (log scale)" : ""),
             "font-weight=\"bold\" " + fill(ink));
    svg.text((place.x.start + place.x.end) / 2, place.y.start + 42, panel.x_label,
             "text-anchor=\"middle\" " + fill(ink));
}

void draw_curve(Svg& svg, const Figure& figure, const Curve& curve, const PanelLayout& place) {
    std::string points;
    for (const auto& [x, y] : curve.points)
        points +=
            (points.empty() ? "" : " ") + number(place.x.pixel(x)) + "," + number(place.y.pixel(y));
    svg.raw("<polyline class=\"" + std::string(curve.test ? "test" : "training") +
            "\" data-run=\"" + escaped(figure.runs[curve.run]) + "\" points=\"" + points +
            "\" fill=\"none\" stroke-linejoin=\"round\" " + stroke(curve.run, curve.test) + "/>");
    constexpr size_t few = 40;  // points that get a dot each
    if (curve.points.size() > (curve.test ? few : 1))
        return;
    for (const auto& [x, y] : curve.points)
        svg.raw("<circle cx=\"" + number(place.x.pixel(x)) + "\" cy=\"" + number(place.y.pixel(y)) +
                "\" r=\"2.6\" " + fill(colour_of(curve.run)) + "/>");
}

void draw_panel(Svg& svg, const Figure& figure, const Panel& panel, const PanelLayout& place) {
    svg.raw("<g class=\"panel\">");
    draw_axes(svg, panel, place);
    for (const bool test : {false, true})  // the strong ones on top
        for (const Curve& curve : panel.curves)
            if (curve.test == test)
                draw_curve(svg, figure, curve, place);
    svg.raw("</g>");
}

std::string part_attributes(const char* name, const char* colour) {
    return std::string("class=\"") + name + "\" fill=\"" + colour + "\"";
}

void draw_bar(Svg& svg, const Scale& x, double y, const Bar& bar) {
    struct Part {
        const char* name;
        const char* colour;
        double seconds;
    };
    const Part parts[] = {{"compute", part_colours[0], bar.seconds.compute},
                          {"exposed", part_colours[1], bar.seconds.exposed},
                          {"wait", part_colours[3], bar.seconds.wait}};
    const auto draw = [&](const Part& part, double from, double top, double height) {
        const double left = x.pixel(1000 * from);
        svg.rect(left, top, x.pixel(1000 * (from + part.seconds)) - left, height,
                 part_attributes(part.name, part.colour),
                 std::string(part.name) + ": " + compact(1000 * part.seconds, 4) + " ms a step");
    };
    double from = 0;
    for (const Part& part : parts) {
        draw(part, from, y, 15);
        from += part.seconds;
    }
    // Hidden communication lies under the computing that hides it.
    draw({"hidden", part_colours[2], bar.seconds.hidden}, 0, y + 16, 6);
}

void draw_bars(Svg& svg, const Figure& figure, const Layout& layout) {
    const Scale& x = layout.bars_x;
    const double top = layout.bars_top;
    const double bottom = top + 34 * static_cast<double>(figure.bars.size());
    const double left = layout.legend.empty() ? 24 : layout.legend.front().first;
    svg.text(left, top - 18, "Where a step's time goes", "font-weight=\"bold\" " + fill(ink));
    double at = x.start;
    const char* const names[] = {"computing", "exposed communication",
                                 "hidden communication (under computing)", "waiting for others"};
    for (size_t i = 0; i < 4; ++i) {
        svg.rect(at, top - 28, 12, 12, fill(part_colours[i]));
        svg.text(at + 18, top - 18, names[i], fill(ink));
        at += 40 + 6.9 * static_cast<double>(std::string(names[i]).size());
    }
    for (const double tick : x.ticks) {
        svg.line(x.pixel(tick), top - 6, x.pixel(tick), bottom,
                 std::string("stroke=\"") + grid + "\"");
        svg.text(x.pixel(tick), bottom + 16, tick_text(tick),
                 "class=\"bartick\" text-anchor=\"middle\" " + fill(faint));
    }
    svg.text((x.start + x.end) / 2, bottom + 38, "milliseconds a step",
             "text-anchor=\"middle\" " + fill(ink));
    size_t previous = figure.runs.size();
    for (size_t i = 0; i < figure.bars.size(); ++i) {
        const Bar& bar = figure.bars[i];
        const double y = top + 34 * static_cast<double>(i);
        if (bar.run != previous) {
            svg.text(left, y + 13, shortened(figure.runs[bar.run], 20),
                     "font-weight=\"bold\" " + fill(colour_of(bar.run)));
            svg.text(left, y + 28, bar.variant, fill(faint));
        }
        previous = bar.run;
        svg.text(x.start - 10, y + 13, bar.label, "text-anchor=\"end\" " + fill(ink));
        draw_bar(svg, x, y, bar);
    }
}

}  // namespace

std::string svg_of(const Figure& figure) {
    const Layout layout = lay_out(figure);
    Svg svg;
    svg.text(24, 33, shortened(figure.title, 90),
             "font-size=\"17\" font-weight=\"bold\" " + fill(ink));
    draw_legend(svg, figure, layout);
    for (size_t i = 0; i < figure.panels.size(); ++i)
        draw_panel(svg, figure, figure.panels[i], layout.panels[i]);
    if (!figure.bars.empty())
        draw_bars(svg, figure, layout);
    return svg.document(layout.width, layout.height);
}

}  // namespace trainer::logs
