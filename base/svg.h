// SVG drawings (https://www.w3.org/TR/SVG11) from a few shapes.
#pragma once
#include <string>
#include <string_view>

namespace ltrain {

/// Escapes text for XML and HTML text and attributes; control characters become spaces.
std::string escape_markup(std::string_view text);

/// Lengths are in pixels, y grows downwards. Texts are escaped. Viewers show a tooltip under the pointer, and
/// screen readers read it.
class Svg {
 public:
  struct Box {
    double x = 0, y = 0, width = 0, height = 0;
  };
  struct Line {
    double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
  };
  /// `title`: description of the drawing, for screen readers.
  explicit Svg(std::string_view title);

  /// `attributes`: more attributes, already escaped: " data-bytes=\"12\"".
  void box(const Box& box, const char* fill, std::string_view tooltip = {}, double stroke = 0.6,
           std::string_view attributes = {});
  void line(const Line& line, const char* colour, double width = 1, const char* dashes = nullptr);
  void circle(double x, double y, double radius, const char* fill, std::string_view tooltip = {},
              std::string_view attributes = {});
  /// y: base line. anchor: start, middle or end.
  void text(double x, double y, std::string_view text, const char* anchor = "start");
  /// A box with its meaning beside it.
  void legend(double x, double y, const char* fill, std::string_view text);

  /// Width that holds `characters` of text().
  static constexpr double text_width(size_t characters) { return 7.25 * static_cast<double>(characters); }
  /// The full document, on white.
  std::string document(double width, double height) const;

 private:
  std::string title_, body_;
};

}  // namespace ltrain
