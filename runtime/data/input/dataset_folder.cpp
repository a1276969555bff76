#include "runtime/data/input/dataset_folder.h"

#include <fnmatch.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/file.h"

namespace fs = std::filesystem;

namespace ltrain::data {
namespace {

constexpr int64_t kMaxReadme = 4 << 20;

/// Words that name a split in a path, by the rules of the datasets library.
const std::pair<const char*, std::vector<std::string_view>> kSplitWords[] = {
    {"train", {"train", "training"}},
    {"validation", {"validation", "valid", "dev", "val"}},
    {"test", {"test", "testing", "eval", "evaluation"}},
};

bool parts_words(char c) {
  return c == '-' || c == '.' || c == '_' || c == ' ' || c == '/' || (c >= '0' && c <= '9');
}

bool has_word(std::string_view path, std::string_view word) {
  for (size_t at = path.find(word); at != path.npos; at = path.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || parts_words(path[at - 1])) && (end == path.size() || parts_words(path[end]))) return true;
  }
  return false;
}

std::string below(const fs::path& file, const fs::path& folder) {
  return file.lexically_relative(folder).generic_string();
}

/// `**` also stands for no folder at all.
bool matches(std::string pattern, const std::string& path) {
  if (::fnmatch(pattern.c_str(), path.c_str(), 0) == 0) return true;
  const size_t stars = pattern.find("**/");
  return stars != pattern.npos && matches(pattern.erase(stars, 3), path);
}

using Patterns = std::vector<std::string>;

struct Config {
  std::string name;
  bool is_default = false;
  std::string data_dir;                    ///< folder of its files, below that of the dataset; "": all of it
  std::map<std::string, Patterns> splits;  ///< patterns below data_dir; none: names tell the split
};

Patterns patterns_of(const YAML::Node& node) {
  Patterns patterns;
  if (node.IsScalar()) patterns.push_back(node.as<std::string>());
  if (node.IsSequence())
    for (const YAML::Node& item : node)
      if (item.IsScalar()) patterns.push_back(item.as<std::string>());
  return patterns;
}

/// data_files: a pattern, a list of patterns, or a list of {split, path}.
Config read_config(const YAML::Node& node) {
  Config config;
  config.name = node["config_name"] ? node["config_name"].as<std::string>() : "default";
  config.is_default = config.name == "default" || (node["default"] && node["default"].as<bool>());
  if (node["data_dir"]) config.data_dir = node["data_dir"].as<std::string>();
  const YAML::Node files = node["data_files"];
  if (!files) return config;
  bool by_split = false;
  if (files.IsSequence())
    for (const YAML::Node& item : files)
      if (item.IsMap() && item["split"] && item["path"]) {
        by_split = true;
        for (std::string& p : patterns_of(item["path"]))
          config.splits[item["split"].as<std::string>()].push_back(std::move(p));
      }
  if (!by_split) config.splits["train"] = patterns_of(files);
  return config;
}

std::vector<Config> read_configs(const std::string& front, const std::string& path) {
  std::vector<Config> configs;
  try {
    const YAML::Node root = YAML::Load(front);
    if (!root.IsMap() || !root["configs"] || !root["configs"].IsSequence()) return {};
    for (const YAML::Node& node : root["configs"])
      if (node.IsMap()) configs.push_back(read_config(node));
  } catch (const YAML::Exception& e) {
    fail(ExitCode::data,
         "{}: the settings between the lines --- are not readable: {}: correct them, or name the "
         "files instead of the folder",
         path, e.what());
  }
  std::erase_if(configs, [](const Config& c) { return c.splits.empty() && c.data_dir.empty(); });
  return configs;
}

template <class Names>
std::string listed(const Names& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + printable(name, 60);
  return text;
}

const Config& choose_config(const std::vector<Config>& configs, const std::string& name,
                            const fs::path& folder) {
  std::vector<std::string> names;
  for (const Config& c : configs) {
    if (!name.empty() ? c.name == name : c.is_default || configs.size() == 1) return c;
    names.push_back(c.name);
  }
  fail(ExitCode::data,
       "{}: {}; its README.md has the configurations: {}. Choose one with --dataset-config (in a "
       "recipe: config)",
       folder.string(),
       name.empty() ? "no configuration is the default" : "no configuration " + printable(name, 60),
       listed(names));
}

const Patterns& choose_split(const Config& config, const std::string& split, const fs::path& folder) {
  const std::string wanted = !split.empty()                    ? split
                             : config.splits.contains("train") ? "train"
                                                               : config.splits.begin()->first;
  if (const auto found = config.splits.find(wanted); found != config.splits.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, patterns] : config.splits) names.push_back(name);
  fail(ExitCode::data,
       "{}: no split {}; the configuration {} has: {}. Choose one with --dataset-split (in a "
       "recipe: split)",
       folder.string(), printable(split, 60), printable(config.name, 60), listed(names));
}

/// Keeps the files for which `keep` holds.
template <class Keep>
DatasetFiles parted(std::vector<fs::path>& files, Keep keep) {
  DatasetFiles d;
  for (fs::path& f : files) {
    auto& list = keep(f) ? d.files : d.others;
    list.push_back(std::move(f));
  }
  return d;
}

std::string readme_of(const fs::path& folder) {
  const fs::path path = folder / "README.md";
  if (!file_exists(path.string())) return "";
  const InputFile file(path.string());
  std::string text(static_cast<size_t>(std::min<int64_t>(file.size(), kMaxReadme)), '\0');
  text.resize(static_cast<size_t>(file.read_some(text.data(), 0, static_cast<int64_t>(text.size()))));
  return text;
}

bool is_dataset(const std::vector<fs::path>& files, const std::string& front) {
  return front.find("dataset_info:") != front.npos ||
         std::any_of(files.begin(), files.end(), [](const fs::path& f) {
           return f.extension() == ".parquet" || f.extension() == ".arrow";
         });
}

DatasetFiles by_name(std::vector<fs::path> files, const fs::path& folder, const std::string& split,
                     bool given) {
  std::map<std::string, int64_t> found;
  for (const fs::path& f : files)
    if (const std::string s = split_of(below(f, folder)); !s.empty()) ++found[s];
  // Without a name that tells a split, all files are of train.
  if (!found.contains(split)) {
    if (!given || (found.empty() && split == "train")) return {std::move(files), {}};
    std::vector<std::string> names;
    for (const auto& [name, count] : found) names.push_back(name);
    fail(ExitCode::data,
         "{}: no file is of the split {}; names of its files say: {}. Choose one with "
         "--dataset-split (in a recipe: split), or name files",
         folder.string(), printable(split, 60), names.empty() ? "no split" : listed(names));
  }
  return parted(files, [&](const fs::path& f) { return split_of(below(f, folder)) == split; });
}

/// Files of a configuration's folder, by the names of splits in their paths below it.
DatasetFiles in_data_dir(std::vector<fs::path> files, const fs::path& folder, const DatasetPart& part) {
  DatasetFiles within = parted(files, [&](const fs::path& f) {
    const std::string path = below(f, folder);
    return !path.empty() && !path.starts_with("..");
  });
  if (within.files.empty())
    fail(ExitCode::data, "{}: has no file, and README.md names it as data_dir: is the download complete?",
         folder.string());
  DatasetFiles d = by_name(std::move(within.files), folder, part.split.empty() ? "train" : part.split,
                           !part.split.empty());
  d.others.insert(d.others.end(), within.others.begin(), within.others.end());
  return d;
}

}  // namespace

std::string split_of(const std::string& path) {
  for (const auto& [split, words] : kSplitWords)
    for (const std::string_view word : words)
      if (has_word(path, word)) return split;
  return "";
}

std::string front_matter(const std::string& readme) {
  if (!readme.starts_with("---\n") && !readme.starts_with("---\r\n")) return "";
  const size_t end = readme.find("\n---", 3);
  return end == readme.npos ? "" : readme.substr(4, end - 3);
}

DatasetFiles select_dataset(std::vector<fs::path> files, const fs::path& folder, const DatasetPart& part) {
  return select_dataset(std::move(files), folder, part, readme_of(folder));
}

DatasetFiles select_dataset(std::vector<fs::path> files, const fs::path& folder, const DatasetPart& part,
                            const std::string& readme) {
  const std::string front = front_matter(readme);
  const std::vector<Config> configs = read_configs(front, (folder / "README.md").string());
  if (!configs.empty()) {
    const Config& config = choose_config(configs, part.config, folder);
    const fs::path own = config.data_dir.empty() ? folder : (folder / config.data_dir).lexically_normal();
    if (config.splits.empty()) return in_data_dir(std::move(files), own, part);
    const Patterns& patterns = choose_split(config, part.split, folder);
    DatasetFiles d = parted(files, [&](const fs::path& f) {
      return std::any_of(patterns.begin(), patterns.end(),
                         [&](const std::string& p) { return matches(p, below(f, own)); });
    });
    if (d.files.empty())
      fail(ExitCode::data,
           "{}: no file matches {}, which README.md names for the configuration {}: is the download "
           "complete?",
           folder.string(), listed(patterns), printable(config.name, 60));
    return d;
  }
  if (!part.config.empty())
    fail(ExitCode::data, "{}: no README.md with configs: names the configuration {}; name its files instead",
         folder.string(), printable(part.config, 60));
  const bool given = !part.split.empty();
  if (!given && !is_dataset(files, front)) return {std::move(files), {}};
  return by_name(std::move(files), folder, given ? part.split : "train", given);
}

}  // namespace ltrain::data
