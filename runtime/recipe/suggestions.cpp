#include "runtime/recipe/suggestions.h"

#include <algorithm>

#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {
namespace {

constexpr int kMostTries = 300;  // tries per recipe; some tens of milliseconds
constexpr int kMostTriesOfDiagnostic = 80;
// Distance of neighbours tried around an integer. Beyond it powers of two are tried.
constexpr int64_t kFar = 24;

const std::string kNearest = "; nearest valid value: ", kWrite = "; write ";

/// Splits at `mark` outside brackets.
std::vector<std::string> split(const std::string& text, const std::string& mark) {
  std::vector<std::string> parts{""};
  int open = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    open += text[i] == '[' || text[i] == '{' || text[i] == '(';
    open -= text[i] == ']' || text[i] == '}' || text[i] == ')';
    if (open == 0 && text.compare(i, mark.size(), mark) == 0) {
      parts.emplace_back();
      i += mark.size() - 1;
    } else {
      parts.back() += text[i];
    }
  }
  return parts;
}

/// Reads "parallel.tensor: 1", or a value of `path`.
std::pair<std::string, std::string> read_change(const std::string& path, const std::string& text) {
  const size_t colon = text.find(": ");
  if (colon != std::string::npos)
    if (const std::string key = text.substr(0, colon); find_key(key) || is_section(key))
      return {key, text.substr(colon + 2)};
  return {path, text};
}

Suggestion read_suggestion(const std::string& path, const std::string& text) {
  Suggestion s;
  s.text = text;
  for (const std::string& part : split(text, ", with ")) s.changes.push_back(read_change(path, part));
  return s;
}

/// Values near the key's current one, nearest first.
std::vector<std::string> near_values(const Key& key, const Recipe& recipe) {
  const std::string now = key.write(key, recipe, false);
  std::vector<std::string> near;
  for (const std::string& c : key.choices)
    if (c != now) near.push_back(c);
  if (key.type == "true or false") near.push_back(now == "true" ? "false" : "true");
  int64_t v = 0;
  Node node;
  node.kind = Node::scalar;
  node.text = now;
  if (key.type != "integer" || !read_integer(node, v).empty()) return near;
  std::vector<int64_t> numbers;
  const auto add = [&](int64_t n) {
    const auto number = static_cast<double>(n);
    if (n != v && (!key.least || number >= *key.least) && (!key.most || number <= *key.most))
      numbers.push_back(n);
  };
  for (int64_t d = 1; d <= kFar; ++d) add(v - d), add(v + d);
  for (int64_t n = 1; n <= int64_t{1} << 20; n *= 2)
    if (n < v - kFar || n > v + kFar) add(n);
  std::stable_sort(numbers.begin(), numbers.end(),
                   [&](int64_t a, int64_t b) { return std::abs(a - v) < std::abs(b - v); });
  for (const int64_t n : numbers) near.push_back(std::to_string(n));
  return near;
}

}  // namespace

std::string Advice::text() const {
  std::string out = rule;
  for (size_t i = 0; i < suggestions.size(); ++i) {
    const bool words = suggestions[i].text.find(": ") != std::string::npos ||
                       suggestions[i].text.find(", ") != std::string::npos;
    out += i == 0 ? mark : words ? ", or " : " or ";
    out += suggestions[i].text;
  }
  return out + more;
}

Advice read_advice(const std::string& path, const std::string& text) {
  Advice a;
  a.rule = text;
  a.mark = kNearest;
  size_t at = text.find(a.mark);
  if (at == std::string::npos) {
    a.mark = kWrite;
    at = text.find(a.mark);
    if (at == std::string::npos) return a;
  }
  a.rule = text.substr(0, at);
  const std::string rest = text.substr(at + a.mark.size());
  const std::string said = split(rest, "; ").front();
  a.more = rest.substr(said.size());
  for (const std::string& group : split(said, ", or "))
    for (const std::string& one : split(group, " or ")) a.suggestions.push_back(read_suggestion(path, one));
  return a;
}

void keep_accepted(Diagnostics& diagnostics, const Recipe& recipe,
                   const std::function<bool(const Diagnostic&, const Suggestion&)>& accepted) {
  int tries = 0;
  const std::vector<Diagnostic> all = diagnostics.list();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].path.empty()) continue;
    Advice advice = read_advice(all[i].path, all[i].text);
    if (advice.suggestions.empty()) continue;
    const std::vector<Suggestion> given = std::move(advice.suggestions);
    advice.suggestions.clear();
    int of_this = 0;
    const auto take = [&](const Suggestion& s) {
      if (tries >= kMostTries || of_this >= kMostTriesOfDiagnostic) return;
      ++tries, ++of_this;
      if (accepted(all[i], s)) advice.suggestions.push_back(s);
    };
    for (const Suggestion& s : given) take(s);
    const Key* key = find_key(all[i].path);
    if (advice.suggestions.empty() && key && advice.mark == kNearest)
      for (const std::string& value : near_values(*key, recipe)) {
        take({value, {{key->path, value}}});
        if (!advice.suggestions.empty()) break;
      }
    diagnostics.replace(i, advice.text());
  }
}

}  // namespace ltrain::recipe
