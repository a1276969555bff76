// A text that grows token by token and ends at the first stop string.
#pragma once
#include <string>
#include <vector>

namespace ltrain {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// `text`: the full text so far, decoded again, because the bytes of a character may come from several
  /// tokens. Returns the part that can be shown now and was not returned before. A possible beginning of a
  /// stop string and an incomplete character are held back.
  std::string show(const std::string& text);
  /// Text that was held back, at the end of generation.
  std::string rest();
  /// Returns whether a stop string was found. Nothing from its first byte on is shown.
  bool stopped() const { return stopped_; }

 private:
  std::string show_to(size_t end);

  std::vector<std::string> stops_;
  std::string text_;
  size_t shown_ = 0;
  bool stopped_ = false;
};

}  // namespace ltrain
