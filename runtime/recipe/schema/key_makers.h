// Makers of schema rows. A row reads, writes and checks one member of Recipe.
#pragma once
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/schema/schema.h"

/// Accessor of a member of Recipe, for the functions below.
#define LT_MEMBER(member) \
  [](Recipe & r) -> auto& { return r.member; }

namespace ltrain::recipe {

std::string join(const std::vector<std::string>& words);  ///< "a, b, c"
std::string either(std::vector<std::string> words);       ///< "a, b or c"

template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};
template <class Get>
using member_t = std::remove_reference_t<std::invoke_result_t<Get, Recipe&>>;

/// Row of a T or an optional<T> member. Null is allowed for an optional.
template <class T, class Get, class Read, class Write>
Key scalar_key(std::string path, std::string type, std::string help, Get get, Read read, Write write) {
  using Member = member_t<Get>;
  Key key;
  key.path = std::move(path);
  key.type = std::move(type);
  key.help = std::move(help);
  key.set = [get, read](const Key& k, Recipe& r, const Node& node) -> std::string {
    if constexpr (is_optional<Member>::value) {
      if (node.kind == Node::null) return get(r).reset(), "";
    }
    T value{};
    std::string wrong = read(k, node, value);
    if (wrong.empty()) get(r) = value;
    return wrong;
  };
  key.write = [get, write](const Key& k, const Recipe& r, bool json) -> std::string {
    const Member& value = get(const_cast<Recipe&>(r));
    if constexpr (is_optional<Member>::value)
      return value ? write(k, *value, json) : "null";
    else
      return write(k, value, json);
  };
  return key;
}

template <class Get>
Key integer(std::string path, Get get, std::string help) {
  return scalar_key<int64_t>(
      std::move(path), "integer", std::move(help), get,
      [](const Key& k, const Node& node, int64_t& v) -> std::string {
        if (!k.word.empty() && node.kind == Node::scalar && node.text == k.word) return v = k.word_value, "";
        std::string wrong = read_integer(node, v, k.word);
        return wrong.empty() ? check_range(k, static_cast<double>(v), true) : wrong;
      },
      [](const Key& k, int64_t v, bool json) {
        if (!k.word.empty() && v == k.word_value) return write_text(k.word, json);
        return std::to_string(v);
      });
}

template <class Get>
Key number(std::string path, Get get, std::string help) {
  return scalar_key<double>(
      std::move(path), "number", std::move(help), get,
      [](const Key& k, const Node& node, double& v) {
        std::string wrong = read_number(node, v);
        return wrong.empty() ? check_range(k, v, false) : wrong;
      },
      [](const Key&, double v, bool) { return write_number(v); });
}

template <class Get>
Key truth(std::string path, Get get, std::string help) {
  return scalar_key<bool>(
      std::move(path), "true or false", std::move(help), get,
      [](const Key&, const Node& node, bool& v) { return read_bool(node, v); },
      [](const Key&, bool v, bool) { return std::string(v ? "true" : "false"); });
}

template <class Get>
Key text(std::string path, Get get, std::string help) {
  return scalar_key<std::string>(
      std::move(path), "text", std::move(help), get,
      [](const Key&, const Node& node, std::string& v) { return read_text(node, v); },
      [](const Key&, const std::string& v, bool json) { return write_text(v, json); });
}

std::string read_choice(const Key& key, const Node& node, std::string& out);  // schema.cpp

/// Row of an enum member. `values`: in the order of the names.
template <class Enum, class Get>
Key choice(std::string path, Get get, std::vector<std::pair<std::string, Enum>> values,
           std::vector<std::string> unbuilt, std::string help) {
  Key key = scalar_key<Enum>(
      std::move(path), "choice", std::move(help), get,
      [values](const Key& k, const Node& node, Enum& v) {
        std::string name;
        std::string wrong = read_choice(k, node, name);
        for (const auto& [n, e] : values)
          if (n == name) v = e;
        return wrong;
      },
      [values](const Key&, Enum v, bool json) {
        for (const auto& [n, e] : values)
          if (e == v) return write_text(n, json);
        return std::string("null");
      });
  for (const auto& [n, e] : values) key.choices.push_back(n);
  key.unbuilt = std::move(unbuilt);
  return key;
}

/// Row of an enum member with the enum's own names (LT_ENUM_NAMES).
template <class Get>
Key choice(std::string path, Get get, std::vector<std::string> unbuilt, std::string help) {
  using Enum = member_t<Get>;
  std::vector<std::pair<std::string, Enum>> values;
  for (const auto& [value, name] : EnumNames<Enum>::table) values.emplace_back(name, value);
  return choice<Enum>(std::move(path), get, std::move(values), std::move(unbuilt), std::move(help));
}

/// Row of a text member that must be one of `values`.
template <class Get>
Key name_choice(std::string path, Get get, std::vector<std::string> values, std::vector<std::string> unbuilt,
                std::string help) {
  Key key = scalar_key<std::string>(
      std::move(path), "choice", std::move(help), get,
      [](const Key& k, const Node& node, std::string& v) { return read_choice(k, node, v); },
      [](const Key&, const std::string& v, bool json) { return write_text(v, json); });
  key.choices = std::move(values);
  key.unbuilt = std::move(unbuilt);
  return key;
}

/// Row of an axis order: "tp-cp-dp-pp".
Key axis_order(std::string path, std::string& (*get)(Recipe&), std::string help);

/// Row of a level: `one_level` (the word for kOneLevel), "node" (kNode), or a number of ranks, at least 2.
Key level_ranks(std::string path, int64_t& (*get)(Recipe&), std::string one_level, std::string help);

/// Row of a list of integers, each at least `low`.
Key integers(std::string path, std::vector<int64_t>& (*get)(Recipe&), std::string help, int64_t low = 1,
             int64_t high = INT64_MAX);
/// Row of a list of numbers above 0.
Key numbers(std::string path, std::vector<double>& (*get)(Recipe&), std::string help);
/// Row of a list of enum names (LT_ENUM_NAMES).
template <class Enum>
Key words(std::string path, std::vector<Enum>& (*get)(Recipe&), std::string help) {
  Key key;
  key.path = std::move(path);
  key.help = std::move(help);
  std::string names;
  for (const auto& [value, name] : EnumNames<Enum>::table)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  key.type = "list of " + names;
  key.set = [get, names](const Key&, Recipe& r, const Node& node) -> std::string {
    if (node.kind != Node::list) return fmt::format("needs a list of words: {}", names);
    std::vector<Enum> list;
    for (size_t i = 0; i < node.items.size(); ++i) {
      std::string word;
      if (std::string wrong = read_text(node.items[i], word); !wrong.empty())
        return fmt::format("word {} {}", i + 1, wrong);
      const size_t before = list.size();
      for (const auto& [value, name] : EnumNames<Enum>::table)
        if (name == word) list.push_back(value);
      if (list.size() == before)
        return fmt::format("word {} is {}, and must be one of {}", i + 1, printable(word), names);
    }
    get(r) = std::move(list);
    return "";
  };
  key.write = [get](const Key&, const Recipe& r, bool json) {
    std::string s;
    for (const Enum v : get(const_cast<Recipe&>(r)))
      s += fmt::format("{}{}", s.empty() ? "" : ", ", write_text(std::string(to_string(v)), json));
    return "[" + s + "]";
  };
  return key;
}
/// Row of a list of texts: patterns of parameter names, or keys. `example`: a list for the message.
Key texts(std::string path, std::vector<std::string>& (*get)(Recipe&), std::string what, std::string example,
          std::string help);
/// Row of token files: data.train, data.eval. `named`: sources may have names.
Key sources(std::string path, std::vector<DataSource>& (*get)(Recipe&), bool named, std::string help);
/// List of later mixes.
Key data_stages(std::string path, std::string help);

}  // namespace ltrain::recipe
