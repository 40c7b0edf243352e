#include "launcher/commands/plot/svg_picture.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string_view>

#include "launcher/commands/plot/plot_scale.h"
#include "runtime/printable.h"
#include "runtime/text/text_columns.h"

namespace accel::launcher {
namespace {

constexpr double kPictureWidth = 800;
constexpr double kLeft = 76;
constexpr double kPlotWidth = 700;
constexpr double kPlotHeight = 180;
constexpr double kPanelHeight = 260;  // with its title and the labels of its axis
constexpr double kLegendRow = 18;
constexpr std::size_t kNumColours = 8;
constexpr std::size_t kLongestName = 100;  // letters

// Okabe and Ito's colours, which people tell apart however they see colours; brighter where the page is dark.
constexpr std::string_view kStyle = R"(<style>
text{font:12px system-ui,sans-serif;fill:#222}
.b{fill:#fff}.t{font-weight:600}.g{stroke:#ddd;fill:none}
.c{fill:none;stroke-width:1.5;stroke-linejoin:round}.f{opacity:.3}.p{stroke:none}
.c0{stroke:#0072b2;fill:#0072b2}.c1{stroke:#d55e00;fill:#d55e00}.c2{stroke:#00805f;fill:#00805f}.c3{stroke:#a94f86;fill:#a94f86}
.c4{stroke:#7a6a00;fill:#7a6a00}.c5{stroke:#2a8fc4;fill:#2a8fc4}.c6{stroke:#b07800;fill:#b07800}.c7{stroke:#444;fill:#444}
@media (prefers-color-scheme:dark){
text{fill:#ddd}.b{fill:#161616}.g{stroke:#3a3a3a}
.c0{stroke:#56b4e9;fill:#56b4e9}.c1{stroke:#ff8c42;fill:#ff8c42}.c2{stroke:#2fd6a4;fill:#2fd6a4}.c3{stroke:#e08bc0;fill:#e08bc0}
.c4{stroke:#f0e442;fill:#f0e442}.c5{stroke:#8fb8ff;fill:#8fb8ff}.c6{stroke:#e69f00;fill:#e69f00}.c7{stroke:#ccc;fill:#ccc}
}
polyline.c{fill:none}
</style>
)";

std::string pixels(double value) {
  char text[32];
  const double rounded = std::round(value * 100) / 100;
  const auto end = std::to_chars(text, text + sizeof text, rounded == 0 ? 0.0 : rounded).ptr;
  return std::string(text, end);
}

// U+FFFE and U+FFFF are valid UTF-8, and no XML.
bool is_noncharacter(std::string_view text, std::size_t at) {
  const std::string_view three = text.substr(at, 3);
  return three == "\xEF\xBF\xBE" || three == "\xEF\xBF\xBF";
}

std::string xml_text(std::string_view name) {
  const std::string safe = fitted_columns(printable(name), kLongestName);
  std::string text;
  for (std::size_t i = 0; i < safe.size(); ++i) {
    switch (safe[i]) {
      case '&':
        text += "&amp;";
        break;
      case '<':
        text += "&lt;";
        break;
      case '>':
        text += "&gt;";
        break;
      case '"':
        text += "&quot;";
        break;
      case '\n':
      case '\t':
        text += ' ';
        break;
      default:
        if (is_noncharacter(safe, i)) {
          text += '?';
          i += 2;
        } else {
          text += safe[i];
        }
    }
  }
  return text;
}

// "c c0", with dashes from the ninth run on.
std::string paint_of(std::size_t run, std::string_view more = "") {
  static constexpr std::string_view kDashes[] = {"", "6 3", "2 3", "8 3 2 3"};
  std::string text = "class=\"c c" + std::to_string(run % kNumColours) + std::string(more) + "\"";
  const std::string_view dash = kDashes[run / kNumColours % std::size(kDashes)];
  if (!dash.empty()) text += " stroke-dasharray=\"" + std::string(dash) + "\"";
  return text;
}

// One or several lines, for gaps; a point between gaps is a dot.
std::string line_through(const std::vector<CurvePoint>& points,
                         const PanelScales& scales,
                         double top,
                         const std::string& paint,
                         const std::string& title) {
  std::string text;
  std::vector<CurvePoint> part;  // in pixels
  const auto end_part = [&] {
    if (part.size() == 1)
      text += "<circle " + paint + " cx=\"" + pixels(part[0].x) + "\" cy=\"" + pixels(part[0].y) +
              "\" r=\"3\">" + title + "</circle>\n";
    if (part.size() > 1) {
      text += "<polyline " + paint + " points=\"";
      for (const CurvePoint& point : without_unseen(part, 1))
        text += (text.ends_with('"') ? "" : " ") + pixels(point.x) + "," + pixels(point.y);
      text += "\">" + title + "</polyline>\n";
    }
    part.clear();
  };
  for (const CurvePoint& point : points) {
    if (std::isnan(point.y)) {
      end_part();
    } else {
      part.push_back({kLeft + kPlotWidth * scales.x.place(point.x),
                      top + kPlotHeight * (1 - scales.y.place(point.y))});
    }
  }
  end_part();
  return text;
}

std::string label_at(double x, double y, std::string_view anchor, const std::string& text) {
  return "<text x=\"" + pixels(x) + "\" y=\"" + pixels(y) + "\" text-anchor=\"" +
         std::string(anchor) + "\">" + text + "</text>\n";
}

std::string grid_line(double x1, double y1, double x2, double y2) {
  return "<line class=\"g\" x1=\"" + pixels(x1) + "\" y1=\"" + pixels(y1) + "\" x2=\"" +
         pixels(x2) + "\" y2=\"" + pixels(y2) + "\"/>\n";
}

std::string axes_of(const PanelScales& scales, double top, const std::string& x_label) {
  std::string text;
  const double bottom = top + kPlotHeight;
  for (const PlotTick& tick : ticks_of(scales.y, 5)) {
    const double y = top + kPlotHeight * (1 - scales.y.place(tick.value));
    text += grid_line(kLeft, y, kLeft + kPlotWidth, y);
    text += label_at(kLeft - 6, y + 4, "end", tick.label);
  }
  for (const PlotTick& tick : ticks_of(scales.x, 8)) {
    const double x = kLeft + kPlotWidth * scales.x.place(tick.value);
    text += grid_line(x, bottom, x, bottom + 4);
    text += label_at(x, bottom + 17, "middle", tick.label);
  }
  return text + label_at(kLeft + kPlotWidth, bottom + 33, "end", x_label);
}

std::string panel_text(const Panel& panel,
                       const std::string& x_label,
                       const std::vector<std::string>& run_names,
                       double top) {
  const PanelScales scales = scales_of(panel);
  const double plot_top = top + 28;
  std::string text = "<text class=\"t\" x=\"" + pixels(kLeft) + "\" y=\"" + pixels(top + 17) +
                     "\">" + xml_text(panel.metric) + "</text>\n";
  text += axes_of(scales, plot_top, x_label);
  for (const Curve& curve : panel.curves) {
    const std::string title = "<title>" + xml_text(run_names[curve.run]) + "</title>";
    const bool is_smooth = !curve.smooth.empty();
    text += line_through(
        curve.points, scales, plot_top, paint_of(curve.run, is_smooth ? " f" : ""), title);
    if (is_smooth) text += line_through(curve.smooth, scales, plot_top, paint_of(curve.run), title);
  }
  return text;
}

}  // namespace

std::string svg_picture(const Panels& panels, const std::vector<std::string>& run_names) {
  const double legend = 10 + kLegendRow * static_cast<double>(run_names.size());
  const double height = legend + kPanelHeight * static_cast<double>(panels.panels.size()) + 10;
  const std::string size = pixels(kPictureWidth) + "\" height=\"" + pixels(height);
  std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + size +
                     "\" viewBox=\"0 0 " + pixels(kPictureWidth) + " " + pixels(height) +
                     "\" role=\"img\">\n<title>accel plot</title>\n";
  text += kStyle;
  text += "<rect class=\"b\" width=\"" + size + "\"/>\n";
  for (std::size_t run = 0; run < run_names.size(); ++run) {
    const double y = 10 + kLegendRow * static_cast<double>(run);
    text += "<polyline " + paint_of(run) + " points=\"" + pixels(kLeft) + "," + pixels(y + 8) +
            " " + pixels(kLeft + 24) + "," + pixels(y + 8) + "\"/>\n";
    text += label_at(kLeft + 32, y + 12, "start", xml_text(run_names[run]));
  }
  double top = legend;
  for (const Panel& panel : panels.panels) {
    text += panel_text(panel, panels.x_label, run_names, top);
    top += kPanelHeight;
  }
  return text + "</svg>\n";
}

}  // namespace accel::launcher
