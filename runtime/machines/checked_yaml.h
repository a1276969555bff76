// Checked reading of maps in YAML files written by people. Missing, unknown, duplicate and out-of-range keys
// are collected with their lines.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/machines/figures.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/yaml_tree.h"

namespace ltrain {

/// State of one file.
struct CheckedFile {
  recipe::Diagnostics problems;
  /// References that published and measured figures may name.
  std::map<std::string, std::string> references;
};

class CheckedMap {
 public:
  /// Reports `node` if it is not a map.
  CheckedMap(CheckedFile& file, const recipe::Node& node, std::string path);

  bool has(const std::string& key) const { return find(key) != nullptr; }
  std::string text(const std::string& key, bool required = true);
  std::string choice(const std::string& key, const std::vector<std::string>& allowed);
  int64_t whole(const std::string& key, int64_t low, int64_t high, int64_t otherwise);
  std::vector<std::string> words(const std::string& key);
  Figure figure(const std::string& key, double low, double high, bool required = true);
  Curve curve(const std::string& key, double low, double high, bool required = true);
  /// Rows of `columns` numbers above zero.
  std::vector<std::vector<double>> rows(const std::string& key, size_t columns);
  CheckedMap map(const std::string& key);
  std::vector<CheckedMap> maps(const std::string& key);
  std::vector<std::string> keys() const;
  std::string path_of(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  void wrong(const std::string& key, const std::string& rule);
  /// Reports keys that were not read.
  void finish();

 private:
  const recipe::Node::Entry* find(const std::string& key) const;
  const recipe::Node* look_up(const std::string& key, bool required);
  double number(const recipe::Node& node, const std::string& path, double low, double high);
  void origin(CheckedMap& from, FigureSource& source, std::string& reference);
  CheckedFile* file_;
  const recipe::Node* node_;
  std::string path_;
  std::set<std::string> looked_up_;
};

}  // namespace ltrain
