#include "runtime/recipe/diagnostics.h"

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain::recipe {

namespace {

constexpr size_t kMaxShown = 10;
constexpr size_t kLongestDiagnostic = 4000;  // bytes: room for a list of all keys of a section

}  // namespace

void Diagnostics::raise_if_any(const std::string& source) {
  if (found_.empty()) return;
  std::stable_sort(found_.begin(), found_.end(), [&](const Diagnostic& a, const Diagnostic& b) {
    const bool a_in = a.place.source == source, b_in = b.place.source == source;
    if (a_in != b_in) return a_in;
    return a_in && std::pair(a.place.line, a.place.column) < std::pair(b.place.line, b.place.column);
  });
  const auto line = [](const Diagnostic& p) {
    return p.place.text() + ": " + printable(p.head + p.text, kLongestDiagnostic);
  };
  if (found_.size() == 1) throw Error(ExitCode::usage, line(found_[0]));
  std::string text = fmt::format("{}: {} problems", source, found_.size());
  for (size_t i = 0; i < std::min(found_.size(), kMaxShown); ++i) text += "\n  " + line(found_[i]);
  if (found_.size() > kMaxShown) text += fmt::format("\n  and {} more", found_.size() - kMaxShown);
  throw Error(ExitCode::usage, text);
}

}  // namespace ltrain::recipe
