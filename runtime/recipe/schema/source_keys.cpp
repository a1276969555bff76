// Rows of lists of data sources: data.train, data.eval, data.stages.
#include <algorithm>

#include "runtime/data/sample_order.h"
#include "runtime/recipe/schema/fields_value.h"
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/where_value.h"

namespace ltrain::recipe {
namespace {

constexpr size_t kMostStages = 64;

std::string unknown_source_key(const std::string& word, const std::vector<std::string>& keys) {
  const std::string near = nearest_word(word, keys);
  return fmt::format(
      "has an unknown key `{}`; {}", word,
      near.empty() ? "the keys of a source are " + join(keys) : "did you mean `" + near + "`?");
}

/// Keys of a source that are optional texts.
constexpr std::pair<const char*, std::string DataSource::*> kSourceTexts[] = {
    {"text", &DataSource::text}, {"split", &DataSource::split}, {"config", &DataSource::config}};

ValueError read_max_epochs(const Node& node, DataSource& out) {
  double value = 0;
  std::string wrong = read_number(node, value);
  if (wrong.empty() && !(value > 0)) wrong = "must be above 0; leave it out to set no limit";
  out.max_epochs = value;
  return {wrong, node.place};
}

ValueError read_source(const Node& node, bool named, DataSource& out) {
  if (node.kind == Node::scalar) return {read_text(node, out.path), node.place};
  if (node.kind != Node::map) return {"needs {path: PREFIX, weight: 1.0}", node.place};
  std::vector<std::string> keys{"path", "weight"}, seen;
  keys.emplace_back(named ? "name" : "max_epochs");
  for (const auto& [key, member] : kSourceTexts) keys.emplace_back(key);
  for (const char* key : {"where", "fields"}) keys.emplace_back(key);
  for (const Node::Entry& e : node.entries) {
    if (std::find(keys.begin(), keys.end(), e.key) == keys.end())
      return {unknown_source_key(e.key, keys), e.place};
    if (std::find(seen.begin(), seen.end(), e.key) != seen.end())
      return {fmt::format("has `{}` twice", e.key), e.place};
    seen.push_back(e.key);
    std::string wrong;
    if (e.key == "where") {
      if (ValueError bad = read_where(e.value, out.where); !bad.empty())
        return {"where " + bad.text, bad.place};
    } else if (e.key == "fields") {
      if (ValueError bad = read_fields(e.value, out.fields); !bad.empty())
        return {"fields " + bad.text, bad.place};
    } else if (e.key == "max_epochs") {
      wrong = read_max_epochs(e.value, out).text;
    } else if (e.key == "path") {
      wrong = read_text(e.value, out.path);
    } else if (e.key == "name") {
      wrong = read_text(e.value, out.name);
      if (wrong.empty() && !is_set_name(out.name))
        wrong = "must be of letters, digits, `-`, `_` and `.`, 64 at most";
    } else if (e.key == "weight") {
      wrong = read_number(e.value, out.weight);
      if (wrong.empty() && out.weight <= 0) wrong = "must be above 0; leave the source out to give it none";
    } else {
      for (const auto& [key, member] : kSourceTexts)
        if (e.key == key) wrong = read_text(e.value, out.*member);
    }
    if (!wrong.empty()) return {e.key + " " + wrong, e.value.place};
  }
  if (std::find(seen.begin(), seen.end(), "path") != seen.end()) return "";
  return {"needs a path: {path: PREFIX, weight: 1.0}", node.place};
}

ValueError read_source_list(const Node& node, bool named, std::vector<DataSource>& list) {
  if (node.kind != Node::list) return "needs a list: [{path: PREFIX, weight: 1.0}]";
  if (node.items.size() > data::kMaxSources)
    return fmt::format(
        "has {} sources; at most {} are possible: one pattern, path: shard-*, names many files",
        node.items.size(), data::kMaxSources);
  for (size_t i = 0; i < node.items.size(); ++i) {
    DataSource source;
    const Place& place = node.items[i].place;
    if (ValueError wrong = read_source(node.items[i], named, source); !wrong.empty())
      return {fmt::format("source {} {}", i + 1, wrong.text), wrong.place};
    for (const DataSource& other : list)
      if (other.path == source.path && other.split == source.split && other.config == source.config &&
          other.where == source.where && other.fields == source.fields)
        return {fmt::format(
                    "source {} has the path of an earlier one, {}; give it once, with the sum of the weights",
                    i + 1, source.path),
                place};
    if (i > 0 && source.name.empty() != list[0].name.empty())
      return {fmt::format("source {} has {} name, and source 1 has {}; give all of them names, or none",
                          i + 1, source.name.empty() ? "no" : "a", source.name.empty() ? "one" : "none"),
              place};
    list.push_back(std::move(source));
  }
  return "";
}

std::string write_source_list(const std::vector<DataSource>& list, bool json) {
  std::string s;
  for (const DataSource& d : list) {
    s += fmt::format("{}{{{}: {}, {}: {}", s.empty() ? "" : ", ", json ? "\"path\"" : "path",
                     write_text(d.path, json), json ? "\"weight\"" : "weight", write_number(d.weight));
    const auto add = [&](const char* name, const std::string& value) {
      if (value.empty()) return;
      s += fmt::format(", {0}{1}{0}: {2}", json ? "\"" : "", name, write_text(value, json));
    };
    add("name", d.name);
    for (const auto& [name, member] : kSourceTexts) add(name, d.*member);
    if (d.max_epochs)
      s += fmt::format(", {0}max_epochs{0}: {1}", json ? "\"" : "", write_number(*d.max_epochs));
    if (!d.where.empty())
      s += fmt::format(", {0}where{0}: {1}", json ? "\"" : "", write_where(d.where, json));
    if (!d.fields.empty())
      s += fmt::format(", {0}fields{0}: {1}", json ? "\"" : "", write_fields(d.fields, json));
    s += "}";
  }
  return "[" + s + "]";
}

}  // namespace

Key sources(std::string path, std::vector<DataSource>& (*get)(Recipe&), bool named, std::string help) {
  Key key;
  key.path = std::move(path);
  key.type = named ? "list of {path, weight, name, text, split, config, where, fields}"
                   : "list of {path, weight, text, split, config, where, fields, max_epochs}";
  key.help = std::move(help);
  key.set = [get, named](const Key&, Recipe& r, const Node& node) -> ValueError {
    std::vector<DataSource> list;
    ValueError wrong = read_source_list(node, named, list);
    if (wrong.empty()) get(r) = std::move(list);
    return wrong;
  };
  key.write = [get](const Key&, const Recipe& r, bool json) {
    return write_source_list(get(const_cast<Recipe&>(r)), json);
  };
  return key;
}

namespace {

ValueError read_stage(const Node& node, DataStage& out) {
  constexpr const char* kForm = "needs {from_step: STEP, train: [{path: PREFIX}]}, or from_tokens: TOKENS";
  if (node.kind != Node::map) return {kForm, node.place};
  std::vector<std::string> seen;
  for (const Node::Entry& e : node.entries) {
    if (std::find(seen.begin(), seen.end(), e.key) != seen.end())
      return {fmt::format("has `{}` twice", e.key), e.place};
    seen.push_back(e.key);
    ValueError wrong = "";
    if (e.key == "from_step") {
      wrong = {read_integer(e.value, out.from_step), e.value.place};
      if (wrong.empty() && out.from_step < 2)
        wrong = {"must be at least 2; data.train is the mix from step 1 on", e.value.place};
    } else if (e.key == "from_tokens") {
      wrong = {read_integer(e.value, out.from_tokens), e.value.place};
      if (wrong.empty() && out.from_tokens < 1) wrong = {"must be at least 1", e.value.place};
    } else if (e.key == "seq_length" || e.key == "sequence_length") {
      wrong = {read_integer(e.value, out.seq_length), e.value.place};
      if (wrong.empty() && out.seq_length < 1) wrong = {"must be at least 1", e.value.place};
    } else if (e.key == "train") {
      wrong = read_source_list(e.value, false, out.train);
      if (wrong.empty() && out.train.empty()) wrong = {"needs at least one source", e.value.place};
    } else {
      return {fmt::format("has an unknown key `{}`; a stage has from_step or from_tokens, seq_length, train",
                          e.key),
              e.place};
    }
    if (!wrong.empty()) return {e.key + " " + wrong.text, wrong.place};
  }
  if ((out.from_step == 0) == (out.from_tokens == 0) || out.train.empty()) return {kForm, node.place};
  return "";
}

}  // namespace

Key data_stages(std::string path, std::string help) {
  Key key;
  key.path = std::move(path);
  key.type = "list of {from_step or from_tokens, seq_length, train}";
  key.help = std::move(help);
  key.set = [](const Key&, Recipe& r, const Node& node) -> ValueError {
    std::vector<DataStage> stages;
    if (node.kind != Node::list || node.items.size() > kMostStages)
      return fmt::format(
          "needs a list of at most {} stages: [{{from_step: STEP, train: [{{path: PREFIX}}]}}]", kMostStages);
    for (const Node& item : node.items) {
      DataStage stage;
      if (ValueError wrong = read_stage(item, stage); !wrong.empty())
        return {fmt::format("stage {} {}", stages.size() + 1, wrong.text), wrong.place};
      stages.push_back(std::move(stage));
    }
    r.data.stages = std::move(stages);
    return "";
  };
  key.write = [](const Key&, const Recipe& r, bool json) {
    std::string all;
    const char* quote = json ? "\"" : "";
    for (const DataStage& stage : r.data.stages) {
      const std::string length =
          stage.seq_length > 0 ? fmt::format("{0}seq_length{0}: {1}, ", quote, stage.seq_length) : "";
      all += fmt::format("{0}{{{1}{2}{1}: {3}, {5}{1}train{1}: {4}}}", all.empty() ? "" : ", ", quote,
                         stage.from_tokens > 0 ? "from_tokens" : "from_step",
                         std::max(stage.from_tokens, stage.from_step), write_source_list(stage.train, json),
                         length);
    }
    return "[" + all + "]";
  };
  return key;
}

}  // namespace ltrain::recipe
