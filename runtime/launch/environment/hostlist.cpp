#include "runtime/launch/environment/hostlist.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain {
namespace {

constexpr size_t kMaxHosts = 65536;
constexpr size_t kMaxNameBytes = 255;  // limit of DNS
constexpr size_t kMostShown = 200;     // bytes of the text in a message

struct Parser {
  std::string_view text, what;
  size_t at = 0;

  [[noreturn]] void wrong(std::string_view why) const {
    fail(ExitCode::usage, "{}=\"{}\": {} at character {}", what, printable(text, kMostShown), why, at + 1);
  }
  bool done() const { return at >= text.size(); }
  char peek() const { return done() ? '\0' : text[at]; }

  std::string_view digits() {
    const size_t begin = at;
    while (!done() && peek() >= '0' && peek() <= '9') ++at;
    if (at == begin) wrong("a number is missing");
    if (at - begin > 9) wrong("a number is too long");
    return text.substr(begin, at - begin);
  }
  static int value(std::string_view digits) {
    int v = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), v);
    return v;
  }

  /// Contents of "[001-003,010]": the numbers as text, with their padding.
  std::vector<std::string> bracket() {
    std::vector<std::string> numbers;
    ++at;
    while (true) {
      const std::string_view first = digits();
      int last = value(first);
      if (peek() == '-') {
        ++at;
        last = value(digits());
      }
      if (last < value(first)) wrong("a range runs backwards");
      // Count before names are made, because a text of 100 KB can request 10^9.
      if (numbers.size() + static_cast<size_t>(last - value(first)) >= kMaxHosts)
        wrong("more than 65536 hosts");
      for (int v = value(first); v <= last; ++v) {
        std::string n = std::to_string(v);
        if (n.size() < first.size()) n.insert(0, first.size() - n.size(), '0');
        numbers.push_back(std::move(n));
      }
      if (peek() == ']') break;
      if (peek() != ',') wrong("expected , or ]");
      ++at;
    }
    ++at;
    return numbers;
  }

  /// One comma-separated element: alternating literal text and brackets.
  std::vector<std::string> element() {
    std::vector<std::string> hosts{""};
    bool empty = true;
    while (!done() && peek() != ',') {
      empty = false;
      if (peek() != '[') {
        const char c = peek();
        const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                           c == '-' || c == '.' || c == '_';
        if (!plain) wrong("a character that no host name has");
        if (hosts[0].size() >= kMaxNameBytes) wrong("a host name of more than 255 bytes");
        for (std::string& h : hosts) h += c;
        ++at;
        continue;
      }
      std::vector<std::string> longer;
      const std::vector<std::string> numbers = bracket();
      if (hosts.size() * numbers.size() > kMaxHosts) wrong("more than 65536 hosts");
      if (hosts[0].size() + numbers.back().size() > kMaxNameBytes)
        wrong("a host name of more than 255 bytes");
      for (const std::string& h : hosts)
        for (const std::string& n : numbers) longer.push_back(h + n);
      hosts = std::move(longer);
    }
    if (empty) wrong("an empty host name");
    return hosts;
  }
};

}  // namespace

std::vector<std::string> parse_hostlist(std::string_view text, std::string_view what) {
  Parser p{text, what};
  std::vector<std::string> hosts;
  while (true) {
    std::vector<std::string> more = p.element();
    if (hosts.size() + more.size() > kMaxHosts) p.wrong("more than 65536 hosts");
    for (std::string& h : more) hosts.push_back(std::move(h));
    if (p.done()) return hosts;
    ++p.at;
  }
}

std::vector<int> parse_tasks_per_node(std::string_view text, std::string_view what) {
  Parser p{text, what};
  std::vector<int> tasks;
  while (true) {
    const int n = Parser::value(p.digits());
    int times = 1;
    if (p.peek() == '(') {
      if (p.text.substr(p.at, 2) != "(x") p.wrong("expected (x");
      p.at += 2;
      times = Parser::value(p.digits());
      if (p.peek() != ')') p.wrong("expected )");
      ++p.at;
    }
    if (tasks.size() + static_cast<size_t>(times) > kMaxHosts) p.wrong("more than 65536 nodes");
    tasks.insert(tasks.end(), static_cast<size_t>(times), n);
    if (p.done()) return tasks;
    if (p.peek() != ',') p.wrong("expected ,");
    ++p.at;
  }
}

std::string format_ranges(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    if (!text.empty()) text += ", ";
    text += std::to_string(numbers[i]);
    if (j > i) text += (j == i + 1 ? ", " : "-") + std::to_string(numbers[j]);
    i = j + 1;
  }
  return text;
}

}  // namespace ltrain
