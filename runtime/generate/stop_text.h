// Text that grows token by token, and ends where one of some strings begins.
#pragma once
#include <string>
#include <vector>

namespace ltrain {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// `text`: all of it so far, decoded anew, as bytes of a character may come with several tokens. Returns
  /// what can be shown of it now, beyond what was returned before: not what may be the beginning of a stop
  /// string, and not an unfinished character.
  std::string show(const std::string& text);
  /// What was held back, once no more comes.
  std::string rest();
  /// A stop string was seen; nothing from its first byte on is shown.
  bool stopped() const { return stopped_; }

 private:
  std::string show_to(size_t end);

  std::vector<std::string> stops_;
  std::string text_;
  size_t shown_ = 0;
  bool stopped_ = false;
};

}  // namespace ltrain
