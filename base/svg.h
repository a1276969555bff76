// Drawings as SVG (https://www.w3.org/TR/SVG11), put together from a few shapes.
#pragma once
#include <string>
#include <string_view>

namespace ltrain {

/// For text and attributes of XML and HTML; control characters become spaces.
std::string escape_markup(std::string_view text);

/// Lengths are in pixels, y grows downwards. Texts are escaped. A tooltip is what a viewer shows of a shape
/// under the pointer, and what a reader without eyes is told.
class Svg {
 public:
  struct Box {
    double x = 0, y = 0, width = 0, height = 0;
  };
  struct Line {
    double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
  };
  /// `title`: what the drawing shows, for those who cannot see it.
  explicit Svg(std::string_view title);

  /// `attributes`: further ones, escaped: " data-bytes=\"12\"".
  void box(const Box& box, const char* fill, std::string_view tooltip = {}, double stroke = 0.6,
           std::string_view attributes = {});
  void line(const Line& line, const char* colour, double width = 1, const char* dashes = nullptr);
  void circle(double x, double y, double radius, const char* fill, std::string_view tooltip = {},
              std::string_view attributes = {});
  /// y: of its base line. anchor: start, middle or end.
  void text(double x, double y, std::string_view text, const char* anchor = "start");
  /// A box with what it stands for beside it.
  void legend(double x, double y, const char* fill, std::string_view text);

  /// Of a width that holds `characters` of text().
  static constexpr double text_width(size_t characters) { return 7.25 * static_cast<double>(characters); }
  /// The whole document, on white.
  std::string document(double width, double height) const;

 private:
  std::string title_, body_;
};

}  // namespace ltrain
