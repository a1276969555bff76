#include "runtime/recipe/schema/key_makers.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "parallel/mesh/mesh.h"

namespace ltrain::recipe {

namespace {

/// Digits of `s` in ascending order, so that swapped digits compare equal.
std::string digits_of(const std::string& s) {
  std::string digits;
  for (char c : s)
    if (c >= '0' && c <= '9') digits += c;
  std::sort(digits.begin(), digits.end());
  return digits;
}

}  // namespace

std::string join(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

std::string either(std::vector<std::string> words) {
  if (words.size() < 2) return join(words);
  const std::string last = words.back();
  words.pop_back();
  return join(words) + " or " + last;
}

std::string read_choice(const Key& key, const Node& node, std::string& out) {
  if (node.kind != Node::scalar) return "must be one of " + join(key.choices);
  for (const std::string& c : key.choices)
    if (c == node.text) {
      out = c;
      return "";
    }
  for (const std::string& c : key.unbuilt)
    if (folded(c) == folded(node.text))
      return fmt::format("is not in this build, which supports {}", join(key.choices));
  for (const auto& [word, ours] : key.other_words)
    if (word == folded(node.text)) return fmt::format("must be one of {}; write {}", join(key.choices), ours);
  // A name with another number is another model or format, not a typo: olmo2 is not olmoe, fp4 is not fp8.
  std::string near = nearest_word(node.text, key.choices);
  if (digits_of(near) != digits_of(node.text)) near = "";
  return "must be one of " + join(key.choices) + (near.empty() ? "" : "; did you mean " + near + "?");
}

Key level_ranks(std::string path, int64_t& (*get)(Recipe&), std::string one_level, std::string help) {
  Key key = choice<int64_t>(std::move(path), get, {{std::move(one_level), kOneLevel}, {"node", kNode}}, {},
                            std::move(help));
  key.type = "choice, or a number of ranks";
  const auto set_word = key.set;
  key.set = [get, set_word](const Key& k, Recipe& r, const Node& node) -> std::string {
    int64_t n = 0;
    const bool is_number = !node.text.empty() && (std::isdigit(static_cast<unsigned char>(node.text[0])) ||
                                                  node.text[0] == '-' || node.text[0] == '+');
    if (node.kind != Node::scalar || !is_number) {
      std::string wrong = set_word(k, r, node).text;
      if (!wrong.empty()) wrong.insert(std::min(wrong.find(';'), wrong.size()), ", or a number of ranks");
      return wrong;
    }
    if (std::string wrong = read_integer(node, n); !wrong.empty()) return wrong;
    if (n < 2) return "must be at least 2: one rank alone shares nothing; nearest valid value: 2";
    get(r) = n;
    return "";
  };
  const auto write_word = key.write;
  key.write = [get, write_word](const Key& k, const Recipe& r, bool json) {
    const int64_t n = get(const_cast<Recipe&>(r));
    return n > 0 ? std::to_string(n) : write_word(k, r, json);
  };
  return key;
}

namespace {

/// List key. `read`: reads one item and returns "" or the error.
template <class T>
Key list_key(std::string path, std::vector<T>& (*get)(Recipe&), std::string type, std::string example,
             std::string help, std::function<std::string(const Node&, T&)> read,
             std::function<std::string(T)> write) {
  Key key;
  key.path = std::move(path);
  key.type = "list of " + type;
  key.help = std::move(help);
  key.set = [get, type, example, read](const Key&, Recipe& r, const Node& node) -> std::string {
    if (node.kind != Node::list) return fmt::format("needs a list of {}: {}", type, example);
    std::vector<T> list(node.items.size());
    for (size_t i = 0; i < list.size(); ++i)
      if (std::string wrong = read(node.items[i], list[i]); !wrong.empty())
        return fmt::format("number {} {}", i + 1, wrong);
    get(r) = std::move(list);
    return "";
  };
  key.write = [get, write](const Key&, const Recipe& r, bool) {
    std::string s;
    for (const T v : get(const_cast<Recipe&>(r))) s += (s.empty() ? "" : ", ") + write(v);
    return "[" + s + "]";
  };
  return key;
}

}  // namespace

Key integers(std::string path, std::vector<int64_t>& (*get)(Recipe&), std::string help, int64_t low,
             int64_t high) {
  return list_key<int64_t>(
      std::move(path), get, "integers", "[4, 4]", std::move(help),
      [low, high](const Node& node, int64_t& v) {
        std::string wrong = read_integer(node, v);
        if (wrong.empty() && v < low) wrong = fmt::format("must be at least {}", low);
        if (wrong.empty() && v > high) wrong = fmt::format("must be at most {}", high);
        return wrong;
      },
      [](int64_t v) { return std::to_string(v); });
}

Key numbers(std::string path, std::vector<double>& (*get)(Recipe&), std::string help) {
  return list_key<double>(
      std::move(path), get, "numbers", "[1.0, 2.5]", std::move(help),
      [](const Node& node, double& v) {
        std::string wrong = read_number(node, v);
        return wrong.empty() && v <= 0 ? std::string("must be above 0") : wrong;
      },
      [](double v) { return write_number(v); });
}

Key texts(std::string path, std::vector<std::string>& (*get)(Recipe&), std::string what, std::string example,
          std::string help) {
  Key key;
  key.path = std::move(path);
  key.type = fmt::format("list of {}s", what);
  key.help = std::move(help);
  key.set = [get, what, example](const Key&, Recipe& r, const Node& node) -> std::string {
    if (node.kind != Node::list) return fmt::format("needs a list of {}s: {}", what, example);
    std::vector<std::string> list;
    for (size_t i = 0; i < node.items.size(); ++i)
      if (std::string wrong = read_text(node.items[i], list.emplace_back()); !wrong.empty())
        return fmt::format("{} {} {}", what, i + 1, wrong);
    get(r) = std::move(list);
    return "";
  };
  key.write = [get](const Key&, const Recipe& r, bool json) {
    std::string s;
    for (const std::string& v : get(const_cast<Recipe&>(r)))
      s += (s.empty() ? "" : ", ") + write_text(v, json);
    return "[" + s + "]";
  };
  return key;
}

Key axis_order(std::string path, std::string& (*get)(Recipe&), std::string help) {
  Key key = text(std::move(path), get, std::move(help));
  key.type = "tp, cp, dp, pp in any order";
  const auto read = key.set;
  key.set = [read, get](const Key& k, Recipe& r, const Node& node) -> ValueError {
    if (ValueError wrong = read(k, r, node); !wrong.empty()) return wrong;
    std::string error;
    parse_axis_order(get(r), error);
    return error.empty() ? "" : error + "; each of tp, cp, dp, pp once, as in tp-cp-dp-pp";
  };
  return key;
}

}  // namespace ltrain::recipe
