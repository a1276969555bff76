#include "base/nearest_word.h"

#include <algorithm>

namespace ltrain {
namespace {

/// Number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
int edit_distance(const std::string& a, const std::string& b) {
  const size_t n = a.size(), m = b.size();
  std::vector<std::vector<int>> d(n + 1, std::vector<int>(m + 1));
  for (size_t i = 0; i <= n; ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= m; ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= n; ++i)
    for (size_t j = 1; j <= m; ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[n][m];
}

}  // namespace

std::string folded(const std::string& s) {
  std::string t;
  for (char c : s)
    if (c != '_' && c != '-') t += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return t;
}

std::string nearest_word(const std::string& word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > 64) return "";
  const std::string w = folded(word);
  std::string best;
  int best_distance =
      1 + std::max<int>(1, static_cast<int>(w.size()) / 3);  // a third of the letters may differ
  for (const std::string& candidate : candidates) {
    const int d = edit_distance(w, folded(candidate));
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  if (best.empty() && w.size() >= 3)  // a prefix of a name
    for (const std::string& candidate : candidates)
      if (folded(candidate).compare(0, w.size(), w) == 0 && (best.empty() || candidate.size() < best.size()))
        best = candidate;
  return best;
}

}  // namespace ltrain
