// Lookup and description of schema rows.
#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

namespace {

struct Index {
  std::unordered_map<std::string, const Key*> keys, aliases;
  std::vector<std::string> sections{""};

  Index() {
    for (const Key& key : schema()) {
      LT_CHECK(keys.emplace(key.path, &key).second, "expected one row for the key {}, got two", key.path);
      const std::string section = key.section();
      for (const std::string& alias : key.aliases) {
        const std::string dotted = section.empty() ? alias : section + "." + alias;
        LT_CHECK(aliases.emplace(dotted, &key).second, "expected one row for the alias {}, got two", dotted);
        // Aliases of a section also work at the top level, as on flat command lines. Aliases of a nested
        // section do not, because they are short.
        if (!section.empty() && section.find('.') == std::string::npos)
          LT_CHECK(aliases.emplace(alias, &key).second, "expected one row for the alias {}, got two", alias);
      }
      for (size_t dot = section.empty() ? std::string::npos : section.find('.');;
           dot = section.find('.', dot + 1)) {
        const std::string part = section.substr(0, dot);
        if (std::find(sections.begin(), sections.end(), part) == sections.end()) sections.push_back(part);
        if (dot == std::string::npos) break;
      }
    }
    for (const auto& [alias, key] : aliases)
      LT_CHECK(!keys.count(alias), "expected an alias that is not a key, got {}", alias);
  }
};

const Index& table_index() {
  static const Index built;
  return built;
}

}  // namespace

const Key* find_key(const std::string& path) {
  auto it = table_index().keys.find(path);
  return it == table_index().keys.end() ? nullptr : it->second;
}

const Key* find_alias(const std::string& path) {
  auto it = table_index().aliases.find(path);
  return it == table_index().aliases.end() ? nullptr : it->second;
}

bool is_section(const std::string& path) {
  const auto& all = table_index().sections;
  return !path.empty() && std::find(all.begin(), all.end(), path) != all.end();
}

std::vector<std::string> sections() { return table_index().sections; }

std::vector<std::string> words_in_section(const std::string& section, bool with_aliases) {
  std::vector<std::string> words;
  std::set<std::string> seen;
  auto add = [&](const std::string& w) {
    if (seen.insert(w).second) words.push_back(w);
  };
  const std::string prefix = section.empty() ? "" : section + ".";
  for (const Key& key : schema())
    if (key.path.compare(0, prefix.size(), prefix) == 0) {
      const std::string rest = key.path.substr(prefix.size());
      add(rest.substr(0, rest.find('.')));
    }
  for (const Key& key : schema())
    if (with_aliases && key.section() == section)
      for (const std::string& alias : key.aliases) add(alias);
  return words;
}

std::string Key::allowed() const {
  auto show = [&](double v) {
    return type == "integer" ? std::to_string(static_cast<int64_t>(v)) : write_number(v);
  };
  std::string s;
  if (!choices.empty()) {
    for (const std::string& c : choices) s += (s.empty() ? "" : ", ") + c;
    return s;
  }
  if (!word.empty()) s = word + ", or ";
  if (least && most)
    s += open ? fmt::format("between {} and {}, both excluded", show(*least), show(*most))
              : fmt::format("{} to {}", show(*least), show(*most));
  else if (least)
    s += (open ? "above " : "at least ") + show(*least);
  return s;
}

std::string Key::default_text() const {
  if (!implied.empty()) return implied;
  static const Recipe defaults;
  return write(*this, defaults, false);
}

}  // namespace ltrain::recipe
