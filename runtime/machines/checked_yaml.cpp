#include "runtime/machines/checked_yaml.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace ltrain {
namespace {

using recipe::Node;

/// Reads a node that is exactly one finite number.
bool read_number(const Node& node, double& value) {
  if (node.kind != Node::scalar || node.quoted || node.text.empty() || std::isspace(node.text[0]))
    return false;
  char* end = nullptr;
  value = std::strtod(node.text.c_str(), &end);
  return *end == '\0' && std::isfinite(value);
}

/// The number with all digits, valid in a file: 1048576, not 1.04858e+06.
std::string limit(double value) {
  const std::string text = fmt::format("{:g}", value);
  return std::strtod(text.c_str(), nullptr) == value ? text : fmt::format("{}", value);
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& words) {
  const std::string near = nearest_word(word, words);
  return near.empty() ? "" : fmt::format("; nearest valid value: {}", near);
}

const std::vector<std::string> kSources{"measured", "published", "assumed"};

}  // namespace

CheckedMap::CheckedMap(CheckedFile& file, const Node& node, std::string path)
    : file_(&file), node_(&node), path_(std::move(path)) {
  if (node.kind != Node::map) {
    file.problems.add(node.place, fmt::format("{} = {}: must be a map of keys",
                                              path_.empty() ? "file" : path_, recipe::show(node)));
    return;
  }
  std::set<std::string> seen;
  for (const Node::Entry& e : node.entries)
    if (!seen.insert(e.key).second)
      file.problems.add(e.place, fmt::format("{}: duplicate key", path_of(e.key)));
}

const Node::Entry* CheckedMap::find(const std::string& key) const {
  for (const Node::Entry& e : node_->entries)
    if (e.key == key) return &e;
  return nullptr;
}

const Node* CheckedMap::look_up(const std::string& key, bool required) {
  looked_up_.insert(key);
  const Node::Entry* e = find(key);
  if (!e && required && node_->kind == Node::map)
    file_->problems.add(node_->place, fmt::format("{}: must be given", path_of(key)));
  return e ? &e->value : nullptr;
}

void CheckedMap::wrong(const std::string& key, const std::string& rule) {
  const Node::Entry* e = find(key);
  file_->problems.add(e ? e->value.place : node_->place,
                      e ? fmt::format("{} = {}: {}", path_of(key), recipe::show(e->value), rule)
                        : fmt::format("{}: {}", path_of(key), rule));
}

std::string CheckedMap::text(const std::string& key, bool required) {
  const Node* n = look_up(key, required);
  if (!n) return "";
  if (n->kind != Node::scalar || n->text.empty()) wrong(key, "must be a text");
  return n->text;
}

std::string CheckedMap::choice(const std::string& key, const std::vector<std::string>& allowed) {
  const Node* n = look_up(key, true);
  if (!n) return "";
  if (n->kind != Node::scalar || std::find(allowed.begin(), allowed.end(), n->text) == allowed.end())
    wrong(key, fmt::format("must be one of {}{}", fmt::join(allowed, ", "), did_you_mean(n->text, allowed)));
  return n->text;
}

double CheckedMap::number(const Node& node, const std::string& path, double low, double high) {
  double value = 0;
  if (!read_number(node, value)) {
    file_->problems.add(node.place, fmt::format("{} = {}: must be a number", path, recipe::show(node)));
  } else if (value < low || value > high) {
    file_->problems.add(node.place, fmt::format("{} = {}: must be from {} to {}; nearest valid value: {}",
                                                path, recipe::show(node), limit(low), limit(high),
                                                limit(value < low ? low : high)));
  } else {
    return value;
  }
  return low;
}

int64_t CheckedMap::whole(const std::string& key, int64_t low, int64_t high, int64_t otherwise) {
  const Node* n = look_up(key, false);
  if (!n) return otherwise;
  const double v = number(*n, path_of(key), static_cast<double>(low), static_cast<double>(high));
  if (v != std::floor(v))
    wrong(key, fmt::format("must be a whole number; nearest valid value: {:.0f}", std::floor(v)));
  return static_cast<int64_t>(v);
}

std::vector<std::string> CheckedMap::words(const std::string& key) {
  std::vector<std::string> out;
  const Node* n = look_up(key, false);
  if (!n) return out;
  if (n->kind != Node::list) wrong(key, "must be a list of words");
  for (const Node& item : n->items) {
    if (item.kind != Node::scalar || item.text.empty()) wrong(key, "must be a list of words");
    out.push_back(item.text);
  }
  return out;
}

void CheckedMap::origin(CheckedMap& from, FigureSource& source, std::string& reference) {
  const std::string said = from.choice("source", kSources);
  for (int i = 0; i < kFigureSourceCount; ++i)
    if (said == figure_source_name(static_cast<FigureSource>(i))) source = static_cast<FigureSource>(i);
  reference = from.text("reference", said != "assumed");
  if (said == "published" || said == "measured") {
    const auto it = file_->references.find(reference);
    if (it != file_->references.end()) {
      reference = it->second;
    } else if (from.has("reference")) {
      std::vector<std::string> known;
      for (const auto& [key, text] : file_->references) known.push_back(key);
      from.wrong("reference", "must be a key of references" + did_you_mean(reference, known));
    }
  }
  from.finish();
}

Figure CheckedMap::figure(const std::string& key, double low, double high, bool required) {
  Figure f;
  const Node* n = look_up(key, required);
  if (!n) return f;
  CheckedMap m(*file_, *n, path_of(key));
  if (n->kind != Node::map) return f;
  if (const Node* value = m.look_up("value", true)) f.value = number(*value, m.path_of("value"), low, high);
  origin(m, f.source, f.reference);
  f.given = true;
  return f;
}

std::vector<std::vector<double>> CheckedMap::rows(const std::string& key, size_t columns) {
  std::vector<std::vector<double>> out;
  const Node* n = look_up(key, false);
  if (!n) return out;
  if (n->kind != Node::list || n->items.empty())
    wrong(key, fmt::format("must be a list of rows of {} numbers", columns));
  for (const Node& row : n->items) {
    if (row.kind != Node::list || row.items.size() != columns) {
      file_->problems.add(row.place, fmt::format("{} = {}: must be a row of {} numbers", path_of(key),
                                                 recipe::show(row), columns));
      continue;
    }
    std::vector<double> values;
    for (const Node& v : row.items) values.push_back(number(v, path_of(key), 1e-12, 1e18));
    out.push_back(std::move(values));
  }
  return out;
}

Curve CheckedMap::curve(const std::string& key, double low, double high, bool required) {
  Curve c;
  const Node* n = look_up(key, required);
  if (!n) return c;
  CheckedMap m(*file_, *n, path_of(key));
  if (n->kind != Node::map) return c;
  m.look_up("value", true);
  for (const std::vector<double>& row : m.rows("value", 2)) {
    if (row[1] < low || row[1] > high)
      m.wrong("value", fmt::format("its second numbers must be from {} to {}", limit(low), limit(high)));
    if (!c.points.empty() && row[0] <= c.points.back().first)
      m.wrong("value", "its first numbers must rise from row to row");
    c.points.emplace_back(row[0], row[1]);
  }
  origin(m, c.source, c.reference);
  return c;
}

CheckedMap CheckedMap::map(const std::string& key) {
  static const Node nothing = [] {
    Node n;
    n.kind = Node::map;
    return n;
  }();
  const Node* n = look_up(key, true);
  return {*file_, n ? *n : nothing, path_of(key)};
}

std::vector<CheckedMap> CheckedMap::maps(const std::string& key) {
  std::vector<CheckedMap> out;
  const Node* n = look_up(key, false);
  if (!n) return out;
  if (n->kind != Node::list) wrong(key, "must be a list of maps");
  for (size_t i = 0; i < n->items.size(); ++i)
    out.emplace_back(*file_, n->items[i], fmt::format("{}[{}]", path_of(key), i));
  return out;
}

std::vector<std::string> CheckedMap::keys() const {
  std::vector<std::string> out;
  for (const Node::Entry& e : node_->entries) out.push_back(e.key);
  return out;
}

void CheckedMap::finish() {
  const std::vector<std::string> known(looked_up_.begin(), looked_up_.end());
  for (const Node::Entry& e : node_->entries)
    if (looked_up_.count(e.key) == 0)
      file_->problems.add(e.place,
                          fmt::format("{}: unknown key{}", path_of(e.key), did_you_mean(e.key, known)));
}

}  // namespace ltrain
