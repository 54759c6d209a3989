// Figure as one page of HTML: the SVG, its numbers as JSON, and a script that shows those under
// the pointer.
#include <nlohmann/json.hpp>

#include "tools/log/figure.h"

namespace trainer::logs {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* style = R"(
body { margin: 0; font: 13px/1.4 "DejaVu Sans", Verdana, Helvetica, sans-serif; background: #fff; }
#figure { position: relative; max-width: 1600px; margin: 0 auto; }
#figure > svg { display: block; width: 100%; height: auto; }
#values { position: absolute; display: none; pointer-events: none; padding: 6px 9px;
  background: #fffffff2; border: 1px solid #c9ced6; border-radius: 4px; white-space: nowrap;
  box-shadow: 0 2px 8px #0002; }
#values td { padding: 0 10px 0 0; }
#values td:last-child { text-align: right; padding: 0; font-variant-numeric: tabular-nums; }
)";

// A panel's scales are linear or logarithmic between low, high (values) and start, end (pixels).
constexpr const char* script = R"(
const figure = document.getElementById("figure"), box = document.getElementById("values");
const svg = figure.querySelector("svg");
const guide = document.createElementNS("http://www.w3.org/2000/svg", "line");
guide.setAttribute("stroke", "#9aa2ad");
svg.append(guide);
const dots = document.createElementNS("http://www.w3.org/2000/svg", "g");
svg.append(dots);
const pixel = (s, v) => s.start + (s.end - s.start) *
  (s.log ? Math.log(v / s.low) / Math.log(s.high / s.low) : (v - s.low) / (s.high - s.low));
const value = (s, p) => s.low + (p - s.start) / (s.end - s.start) * (s.high - s.low);
const nearest = (points, x) => points.reduce((best, p) =>
  Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best);
const number = v => Number(v.toPrecision(5)).toString();
function hide() { box.style.display = "none"; guide.style.display = "none"; dots.replaceChildren(); }
svg.addEventListener("mouseleave", hide);
svg.addEventListener("mousemove", event => {
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const panel = panels.find(p => at.x >= p.x.start && at.x <= p.x.end &&
                                 at.y >= p.y.end && at.y <= p.y.start);
  if (!panel) return hide();
  const x = value(panel.x, at.x), table = document.createElement("table");
  dots.replaceChildren();
  for (const curve of panel.curves) {
    const point = nearest(curve.points, x), row = table.insertRow();
    const swatch = row.insertCell();
    swatch.textContent = curve.test ? "\u25cf" : "\u25cb";
    swatch.style.color = curve.colour;
    row.insertCell().textContent = curve.run + (curve.test ? "" : ", training");
    row.insertCell().textContent = panel.x_label + " " + number(point[0]);
    row.insertCell().textContent = number(point[1]);
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    dot.setAttribute("cx", pixel(panel.x, point[0]));
    dot.setAttribute("cy", pixel(panel.y, point[1]));
    dot.setAttribute("r", 4);
    dot.setAttribute("fill", curve.colour);
    dots.append(dot);
  }
  const title = document.createElement("b");
  title.textContent = panel.y_label;
  box.replaceChildren(title, table);
  for (const [name, to] of [["x1", at.x], ["x2", at.x], ["y1", panel.y.start], ["y2", panel.y.end]])
    guide.setAttribute(name, to);
  guide.style.display = box.style.display = "block";
  const frame = figure.getBoundingClientRect();
  const left = event.clientX - frame.left, width = box.offsetWidth;
  box.style.left = (left + width + 24 > frame.width ? left - width - 14 : left + 14) + "px";
  box.style.top = (event.clientY - frame.top + 14) + "px";
});
)";

Json scale_json(const Scale& scale) {
    return {{"low", scale.low},
            {"high", scale.high},
            {"start", scale.start},
            {"end", scale.end},
            {"log", scale.log}};
}

std::string panels_json(const Figure& figure) {
    const Layout layout = lay_out(figure);
    Json panels = Json::array();
    for (size_t i = 0; i < figure.panels.size(); ++i) {
        const Panel& panel = figure.panels[i];
        Json curves = Json::array();
        for (const Curve& curve : panel.curves)
            curves.push_back({{"run", figure.runs[curve.run]},
                              {"test", curve.test},
                              {"colour", colour_of(curve.run)},
                              {"points", curve.points}});
        panels.push_back({{"x_label", panel.x_label},
                          {"y_label", panel.y_label},
                          {"x", scale_json(layout.panels[i].x)},
                          {"y", scale_json(layout.panels[i].y)},
                          {"curves", std::move(curves)}});
    }
    std::string text = panels.dump(-1, ' ', false, Json::error_handler_t::replace);
    // A label may not end the script.
    for (size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3)
        text.replace(at, 2, "<\\/");
    return text;
}

}  // namespace

std::string html_of(const Figure& figure) {
    const std::string svg = svg_of(figure);
    return std::string("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n") +
           "<title>Training curves</title>\n<style>" + style + "</style>\n</head>\n<body>\n" +
           "<div id=\"figure\">\n" + svg + "<div id=\"values\"></div>\n</div>\n<script>\n" +
           "const panels = " + panels_json(figure) + ";" + script + "</script>\n</body>\n</html>\n";
}

}  // namespace trainer::logs
