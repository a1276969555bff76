#include "runtime/recipe/raw_values.h"

#include <set>

#include "base/error.h"
#include "runtime/recipe/other_names.h"
#include "runtime/recipe/schema/schema.h"
#include "runtime/recipe/yaml_hints.h"

namespace ltrain::recipe {

namespace {

std::string dotted(const std::string& section, const std::string& word) {
  return section.empty() ? word : section + "." + word;
}

std::string list_words(const std::vector<std::string>& words, size_t most) {
  std::string s;
  for (size_t i = 0; i < words.size() && i < most; ++i) s += (s.empty() ? "" : ", ") + words[i];
  return words.size() > most ? s + ", ..." : s;
}

/// "unknown key; did you mean `x`?" for a word in `section`.
std::string unknown_key(const std::string& section, const std::string& word) {
  if (const std::string hint = missing_space_hint(word); !hint.empty()) return "unknown key; " + hint;
  if (section == "launch" && word == "hosts")
    return "unknown key; start `ltrain run` on each host, with PET_NODE_RANK, as docs/launch.md shows";
  if (word == "<<") return "unknown key; YAML merge keys are not supported: repeat the keys";
  // The same word in another section is a better guess than a similar word in this section.
  for (const Key& key : schema()) {
    bool same = key.leaf() == word;
    for (const std::string& alias : key.aliases) same = same || alias == word;
    if (same && key.leaf() != "path" && key.leaf() != "device" && key.leaf() != "kind")
      return fmt::format("unknown key; did you mean `{}`?", key.path);
  }
  if (word == "gradient_accumulation_steps" || word == "num_microbatches")
    return "unknown key; it follows from train.global_batch_size / (train.micro_batch_size * parallel.data)";
  for (const std::string& name : {word, section + "_" + word})
    if (const std::string other = in_other_trainers(name); !other.empty()) return "unknown key; " + other;
  const std::string near = nearest_word(word, words_in_section(section, true));
  if (!near.empty()) return fmt::format("unknown key; did you mean `{}`?", dotted(section, near));
  std::vector<std::string> all;
  for (const Key& key : schema()) {
    // in many sections
    if (key.leaf() == "path" || key.leaf() == "device" || key.leaf() == "kind") continue;
    all.push_back(key.leaf());
    all.insert(all.end(), key.aliases.begin(), key.aliases.end());
  }
  if (const std::string far = nearest_word(word, all); !far.empty())
    for (const Key& key : schema()) {
      bool same = key.leaf() == far;
      for (const std::string& alias : key.aliases) same = same || alias == far;
      if (same) return fmt::format("unknown key; did you mean `{}`?", key.path);
    }
  return fmt::format("unknown key; {} has {}", section.empty() ? "the top level" : "section " + section,
                     list_words(words_in_section(section, false), 30));
}

/// Walks the node of a section and adds one entry per key to `found`.
class Flattener {
 public:
  Flattener(std::map<std::string, RawValue>& found, std::vector<std::string>& notes, Diagnostics& diagnostics)
      : found_(found), notes_(notes), diagnostics_(diagnostics) {}

  void section(const std::string& path, const Node& node, const Place& place) {
    if (node.kind == Node::null) return;
    if (node.kind != Node::map) {
      const std::string hint = node.kind == Node::scalar ? missing_space_hint(node.text) : "";
      diagnostics_.add(
          place, fmt::format("{} = {}: is a section; {}", path, show(node),
                             hint.empty() ? "it has the keys " + list_words(words_in_section(path, false), 6)
                                          : hint));
      return;
    }
    for (const Node::Entry& e : node.entries) entry(path, e.key, e.place, e.value);
  }

  void entry(const std::string& section_path, const std::string& word, const Place& place,
             const Node& value) {
    const std::string path = dotted(section_path, word);
    if (is_section(path)) {
      const auto [it, fresh] = sections_.emplace(path, place);
      if (!fresh)
        return diagnostics_.add(
            place, fmt::format("{}: section given twice, first at line {}", path, it->second.line));
      return section(path, value, place);
    }
    const Key* key = word.find('.') == std::string::npos || section_path.empty() ? find_key(path) : nullptr;
    if (!key) {
      key = find_alias(path);
      if (key && key->path != path)
        notes_.push_back(fmt::format("{}: `{}` is read as {}", place.text(), path, key->path));
    }
    // Checkpoints before 2026-11-28 have this key in their recipe, with this value.
    if (path == "launch.hosts" && value.kind == Node::scalar && value.text == "local") return;
    if (!key) return diagnostics_.add(place, fmt::format("{}: {}", path, unknown_key(section_path, word)));
    const auto [it, fresh] = found_.emplace(key->path, RawValue{value, place, path});
    if (fresh) return;
    const RawValue& first = it->second;
    diagnostics_.add(place, fmt::format("{}: given twice, first at line {}{}", path, first.place.line,
                                        first.written_as == path ? "" : " as " + first.written_as));
  }

 private:
  std::map<std::string, RawValue>& found_;
  std::vector<std::string>& notes_;
  Diagnostics& diagnostics_;
  std::map<std::string, Place> sections_;
};

/// Key named by an override, or null. A name with a dot ("train.lr") is looked up verbatim.
const Key* key_of(const std::string& path) {
  const Key* key = find_key(path);
  return key ? key : find_alias(path);
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }
std::string but_last_part(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

/// Sets the location of `node` and all its children to `place`, because lines and columns of an argument mean
/// nothing to the user.
void put_place(Node& node, const Place& place) {
  node.place = place;
  for (Node& item : node.items) put_place(item, place);
  for (Node::Entry& e : node.entries) {
    e.place = place;
    put_place(e.value, place);
  }
}

Node parse_value(const std::string& text, const Place& place, const Key* key) {
  const bool is_text = key && (key->type == "text" || key->type == "choice");
  const bool quoted = !text.empty() && (text[0] == '"' || text[0] == '\'');
  Node node;
  if (is_text && !quoted && text != "null" && text != "~" && !text.empty() && text[0] != '[') {
    node.kind = Node::scalar;  // "a: b" in p=a: b and "*x" in p=*x are texts
    node.text = text;
  } else {
    node = parse_yaml(text, place.source);
  }
  put_place(node, place);
  return node;
}

/// Sets entry `index` of a list key: data.train.0.weight.
bool set_list_item(const Key& key, const std::string& rest, const Node& value, RawValues& given,
                   const Place& place, const std::string& name, Diagnostics& diagnostics) {
  const std::string index_text = rest.substr(0, rest.find('.'));
  if (index_text.empty() || index_text.size() > 6 ||
      index_text.find_first_not_of("0123456789") != std::string::npos)
    return false;
  const size_t index = std::stoul(index_text);
  auto it = given.values.find(key.path);
  const size_t size = it == given.values.end() ? 0 : it->second.value.items.size();
  if (index >= size) {
    diagnostics.add(place, fmt::format("{}: {} has {} entries here, numbered from 0", name, key.path, size));
    return true;
  }
  Node& item = it->second.value.items[index];
  if (rest.size() == index_text.size()) {
    item = value;
    return true;
  }
  const std::string field = rest.substr(index_text.size() + 1);
  if (item.kind == Node::scalar) {  // short form of a source: its path
    Node map;
    map.kind = Node::map;
    map.place = item.place;
    map.entries.push_back({"path", item.place, item});
    item = map;
  }
  for (Node::Entry& e : item.entries)
    if (e.key == field) return e.value = value, true;
  item.entries.push_back({field, place, value});
  return true;
}

}  // namespace

void add_document(const Node& root, RawValues& given, Diagnostics& diagnostics) {
  if (root.kind != Node::null && root.kind != Node::map) {
    const std::string hint = root.kind == Node::scalar ? missing_space_hint(root.text) : "";
    diagnostics.add(root.place, fmt::format("a recipe is a map of sections, not {}{}", show(root),
                                            hint.empty() ? "" : "; " + hint));
    return;
  }
  Flattener(given.values, given.notes, diagnostics).section("", root, root.place);
}

void add_override(const std::string& argument, RawValues& given, Diagnostics& diagnostics) {
  const Place place{"command line", 0, 0};
  std::string text = argument;
  if (text.compare(0, 2, "--") == 0) text = text.substr(2);
  if (!text.empty() && text[0] == '~') {
    const std::string path = text.substr(1);
    const Key* key = key_of(path);
    size_t removed = 0;
    if (key) {
      removed = given.values.erase(key->path);
    } else if (is_section(path)) {
      removed = std::erase_if(
          given.values, [&](const auto& v) { return v.first.compare(0, path.size() + 1, path + ".") == 0; });
    } else {
      return diagnostics.add(
          place, fmt::format("{}: {}", argument, unknown_key(but_last_part(path), last_part(path))));
    }
    if (removed == 0)
      diagnostics.add(place, fmt::format("{}: is not set, so there is nothing to remove", argument));
    return;
  }
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return diagnostics.add(
        place, fmt::format("{}: an override is key=value, --section.key=value or ~key", argument));
  const std::string path = text.substr(0, equals);
  const Key* key = key_of(path);
  const Node value = parse_value(text.substr(equals + 1), place, key);
  std::map<std::string, RawValue> found;
  if (key) {
    if (key->path != path)
      given.notes.push_back(fmt::format("command line: `{}` is read as {}", path, key->path));
    found.emplace(key->path, RawValue{value, place, path});
  } else if (is_section(path)) {
    Node map = value;
    for (Node::Entry& e : map.entries) e.place = place;
    Flattener(found, given.notes, diagnostics).section(path, map, place);
  } else {
    for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1))
      if (const Key* list = key_of(path.substr(0, dot));
          list && set_list_item(*list, path.substr(dot + 1), value, given, place, path, diagnostics))
        return;
    std::string section = but_last_part(path);
    if (!is_section(section)) section = "";
    return diagnostics.add(place, fmt::format("{}: {}", path, unknown_key(section, last_part(path))));
  }
  for (auto& [name, v] : found) {
    v.place = place;
    given.values[name] = std::move(v);
  }
}

namespace {

class Interpolation {
 public:
  Interpolation(RawValues& given, Diagnostics& diagnostics) : given_(given), diagnostics_(diagnostics) {}

  void node(Node& n, const std::string& path, const Place& place) {
    if (n.kind == Node::scalar) n.text = expand(n.text, path, place);
    for (Node& item : n.items) node(item, path, place);
    for (Node::Entry& e : n.entries) node(e.value, path, place);
  }

 private:
  static constexpr size_t kLongestText = 4096;

  /// Expands references in `text`. It is passed by value because the node that holds it may be rewritten if
  /// it refers to itself.
  std::string expand(std::string text, const std::string& path, const Place& place) {
    std::string out;
    size_t at = 0;
    while (true) {
      const size_t begin = text.find("${", at);
      if (begin == std::string::npos) return out + text.substr(at);
      const size_t end = text.find('}', begin);
      if (end == std::string::npos) {
        diagnostics_.add(place, fmt::format("{} = {}: `${{` without `}}`", path, text));
        return text;
      }
      out += text.substr(at, begin - at) + value_of(text.substr(begin + 2, end - begin - 2), path, place);
      at = end + 1;
      if (out.size() > kLongestText) {
        diagnostics_.add(
            place, fmt::format("{}: longer than {} bytes once `${{...}}` is replaced", path, kLongestText));
        return "";
      }
    }
  }

  std::string value_of(const std::string& name, const std::string& path, const Place& place) {
    const Key* key = key_of(name);
    if (!key) {
      diagnostics_.add(place, fmt::format("{}: `${{{}}}` names no key", path, name));
      return "";
    }
    auto it = given_.values.find(key->path);
    if (it == given_.values.end()) {
      if (!key->implied.empty()) {
        diagnostics_.add(
            place,
            fmt::format("{}: `${{{}}}` is not given, and its default follows from other keys", path, name));
        return "";
      }
      static const Recipe defaults;
      return key->write(*key, defaults, false);
    }
    if (!visiting_.insert(key->path).second) {
      diagnostics_.add(place, fmt::format("{}: `${{{}}}` refers to itself", path, name));
      return "";
    }
    node(it->second.value, key->path, it->second.place);
    visiting_.erase(key->path);
    if (it->second.value.kind != Node::scalar) {
      diagnostics_.add(place, fmt::format("{}: `${{{}}}` is not a single value", path, name));
      return "";
    }
    return it->second.value.text;
  }

  RawValues& given_;
  Diagnostics& diagnostics_;
  std::set<std::string> visiting_;
};

}  // namespace

void interpolate(RawValues& given, Diagnostics& diagnostics) {
  Interpolation interpolation(given, diagnostics);
  for (auto& [path, value] : given.values) interpolation.node(value.value, path, value.place);
}

}  // namespace ltrain::recipe
