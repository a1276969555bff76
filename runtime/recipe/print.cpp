// Output generated from the schema: the resolved recipe, the reference page, the help text.
#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/json/json.h"
#include "runtime/recipe/keys_about.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain {

using namespace recipe;

namespace {

/// Walks the dumped keys in table order. Calls `open` and `close` for each section and `value` for each key.
template <class Open, class Close, class Value>
void walk(const Recipe& r, const std::string& section, Open open, Close close, Value value) {
  const std::string prefix = section.empty() ? "" : section + ".";
  std::vector<std::string> done;
  for (const Key& key : schema()) {
    if (!key.in_dump(r) || key.path.compare(0, prefix.size(), prefix) != 0) continue;
    const std::string rest = key.path.substr(prefix.size());
    const size_t dot = rest.find('.');
    if (dot == std::string::npos) {
      value(key, rest);
      continue;
    }
    const std::string name = rest.substr(0, dot);
    bool seen = false;
    for (const std::string& d : done) seen = seen || d == name;
    if (seen) continue;
    done.push_back(name);
    open(name);
    walk(r, prefix + name, open, close, value);
    close();
  }
}

std::string escape_cell(const std::string& s) {
  std::string t;
  for (char c : s) t += c == '|' ? std::string("\\|") : std::string(1, c);
  return t;
}

std::string aliases_of(const Key& key) {
  std::string s;
  for (const std::string& a : key.aliases) s += (s.empty() ? "`" : ", `") + a + "`";
  return s;
}

}  // namespace

std::string dump_yaml(const Recipe& r) {
  std::string out;
  int depth = 0;
  const auto indent = [&] { return std::string(static_cast<size_t>(2 * depth), ' '); };
  walk(
      r, "",
      [&](const std::string& name) {
        out += indent() + name + ":\n";
        ++depth;
      },
      [&] { --depth; },
      [&](const Key& key, const std::string& leaf) {
        out += indent() + leaf + ": " + key.write(key, r, false) + "\n";
      });
  return out;
}

std::string job_settings(const Recipe& r) {
  std::string out;
  for (const Key& key : schema())
    if (key.in_dump(r) && key.path != "launch.interface" && key.path != "launch.threads_per_rank")
      out += fmt::format("{}: {}\n", key.path, key.write(key, r, false));
  return out;
}

std::string dump_json(const Recipe& r) {
  std::string out = "{";
  bool first = true;
  const auto comma = [&] {
    if (!first) out += ",";
    first = false;
  };
  walk(
      r, "",
      [&](const std::string& name) {
        comma();
        out += "\"" + name + "\":{";
        first = true;
      },
      [&] {
        out += "}";
        first = false;
      },
      [&](const Key& key, const std::string& leaf) {
        comma();
        out += "\"" + leaf + "\":" + key.write(key, r, true);
      });
  return out + "}";
}

std::vector<std::pair<std::string, std::string>> model_settings(const ModelConfig& model) {
  Recipe r;
  r.model = model;
  std::vector<std::pair<std::string, std::string>> settings;
  for (const Key& key : schema())
    if (key.in_dump(r) && key.path.compare(0, 6, "model.") == 0)
      settings.emplace_back(key.path.substr(6), key.write(key, r, false));
  return settings;
}

std::string recipe_reference_markdown() {
  std::string out =
      "# Recipe keys\n\n"
      "Generated from the table that reads recipes (`scripts/update-recipe-docs.sh`). Every key has a "
      "default. Other\n"
      "spellings are accepted in the key's section and at the top level, and reported. Values are YAML 1.2: "
      "`true` and\n"
      "`false` are the only truth values, `1e-4` is a number, and a leading zero is refused. "
      "`${section.key}` stands for\n"
      "another key's value. On the command line: `key=value`, `--section.key=value`, `~key` (back to the "
      "default),\n"
      "`data.train.0.weight=2`; lists replace.\n";
  for (const std::string& section : sections()) {
    std::string rows;
    for (const Key& key : schema()) {
      if (key.section() != section) continue;
      std::string about = key.help;
      if (!key.unbuilt.empty()) {
        about += " Known, not in this build: ";
        for (size_t i = 0; i < key.unbuilt.size(); ++i) about += (i ? ", " : "") + key.unbuilt[i];
        about += ".";
      }
      if (key.applies) about += " Only with " + key.applies_when + ".";
      const std::string allowed = key.allowed();
      rows += fmt::format("| `{}` | {} | {} | {}{} |\n", key.leaf(),
                          escape_cell(key.type + (allowed.empty() ? "" : ": " + allowed)),
                          escape_cell(key.default_text()), escape_cell(about),
                          key.aliases.empty() ? "" : " Also " + aliases_of(key) + ".");
    }
    if (rows.empty()) continue;
    out += fmt::format("\n## {}\n\n{}\n\n| key | value | default | |\n|---|---|---|---|\n{}",
                       section.empty() ? "Top level" : section, section_help(section), rows);
  }
  return out;
}

namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// Returns whether name, aliases, values or help of the key contain each of `words`.
bool is_about(const Key& key, const std::vector<std::string>& words) {
  std::string text = lower(key.path + " " + key.help + " " + key.allowed());
  for (const std::string& alias : key.aliases) text += " " + lower(alias);
  return std::all_of(words.begin(), words.end(),
                     [&](const std::string& word) { return text.find(lower(word)) != std::string::npos; });
}

}  // namespace

std::string recipe_reference_text() { return keys_about({}); }

std::string keys_about(const std::vector<std::string>& words) {
  std::string out = "Recipe keys (YAML; on the command line key=value, --section.key=value or ~key)\n";
  for (const std::string& section : sections()) {
    bool any = false;
    for (const Key& key : schema()) {
      if (key.section() != section || !is_about(key, words)) continue;
      if (!any)
        out += fmt::format("\n{}: {}\n", section.empty() ? "Top level" : section, section_help(section));
      any = true;
      const std::string allowed = key.allowed();
      out += fmt::format("  {:<32} {}\n  {:<32} {} [default: {}]\n", key.path, key.help, "",
                         key.type + (allowed.empty() ? "" : ": " + allowed), key.default_text());
    }
  }
  return out;
}

std::string recipe_reference_json() {
  nlohmann::ordered_json j = {{"schema", 1}, {"keys", nlohmann::ordered_json::array()}};
  for (const Key& key : schema())
    j["keys"].push_back({{"path", key.path},
                         {"type", key.type},
                         {"default", key.default_text()},
                         {"allowed", key.allowed()},
                         {"help", key.help},
                         {"aliases", key.aliases},
                         {"choices", key.choices},
                         {"not_in_this_build", key.unbuilt},
                         {"changes", std::string(to_string(key.effect))}});
  return j.dump();
}

}  // namespace ltrain
