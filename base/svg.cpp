#include "base/svg.h"

#include <fmt/format.h>

namespace ltrain {

std::string escape_markup(std::string_view text) {
  std::string s;
  for (char c : text) {
    if (c == '<')
      s += "&lt;";
    else if (c == '>')
      s += "&gt;";
    else if (c == '&')
      s += "&amp;";
    else if (c == '"')
      s += "&quot;";
    else
      s += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
  }
  return s;
}

namespace {

std::string ended(const char* name, std::string_view tooltip) {
  if (tooltip.empty()) return "/>\n";
  return fmt::format("><title>{}</title></{}>\n", escape_markup(tooltip), name);
}

}  // namespace

Svg::Svg(std::string_view title) : title_(title) {}

void Svg::box(const Box& b, const char* fill, std::string_view tooltip, double stroke,
              std::string_view attributes) {
  body_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"", b.x,
                       b.y, b.width, b.height, fill);
  if (stroke > 0) body_ += fmt::format(" stroke=\"#555\" stroke-width=\"{}\"", stroke);
  body_ += attributes;
  body_ += ended("rect", tooltip);
}

void Svg::line(const Line& l, const char* colour, double width, const char* dashes) {
  body_ += fmt::format(
      "<line x1=\"{:.2f}\" y1=\"{:.1f}\" x2=\"{:.2f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{}\"", l.x1,
      l.y1, l.x2, l.y2, colour, width);
  if (dashes) body_ += fmt::format(" stroke-dasharray=\"{}\"", dashes);
  body_ += "/>\n";
}

void Svg::circle(double x, double y, double radius, const char* fill, std::string_view tooltip,
                 std::string_view attributes) {
  body_ += fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{:.1f}\" fill=\"{}\" stroke=\"#555\"{}", x, y,
                       radius, fill, attributes);
  body_ += ended("circle", tooltip);
}

void Svg::text(double x, double y, std::string_view text, const char* anchor) {
  body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                       escape_markup(text));
}

void Svg::legend(double x, double y, const char* fill, std::string_view what) {
  box({x, y - 10, 12, 12}, fill);
  text(x + 16, y, what);
}

std::string Svg::document(double width, double height) const {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
             "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"monospace\" font-size=\"12\">\n"
             "<title>{2}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
             width, height, escape_markup(title_)) +
         body_ + "</svg>\n";
}

}  // namespace ltrain
