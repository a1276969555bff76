#include "runtime/generate/stop_text.h"

#include <algorithm>

namespace ltrain {
namespace {

/// Start of the last character of `text` if it is incomplete, else the size of the text.
size_t whole_characters(const std::string& text) {
  const size_t n = text.size();
  for (size_t back = 1; back <= std::min<size_t>(3, n); ++back) {
    const unsigned char c = static_cast<unsigned char>(text[n - back]);
    if (c < 0x80) return n;
    if (c < 0xc0) continue;  // inside a character
    const size_t bytes = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    return back < bytes ? n - back : n;
  }
  return n;
}

}  // namespace

std::string StopText::show_to(size_t end) {
  if (end <= shown_) return "";
  std::string part = text_.substr(shown_, end - shown_);
  shown_ = end;
  return part;
}

std::string StopText::show(const std::string& text) {
  if (stopped_) return "";
  if (text.compare(0, shown_, text_, 0, shown_) != 0) return "";  // later tokens may correct it
  text_ = text;
  size_t end = whole_characters(text_);
  for (const std::string& stop : stops_) {
    if (stop.empty()) continue;
    if (const size_t at = text_.find(stop); at != std::string::npos) {
      end = std::min(end, at);
      stopped_ = true;
      continue;
    }
    for (size_t n = std::min(stop.size() - 1, text_.size()); n > 0; --n)
      if (text_.compare(text_.size() - n, n, stop, 0, n) == 0) {
        end = std::min(end, text_.size() - n);
        break;
      }
  }
  return show_to(end);
}

std::string StopText::rest() { return stopped_ ? "" : show_to(text_.size()); }

}  // namespace ltrain
