// Table of all settings: key, type, default, range, help, aliases, implications. The parser's checks, the
// reference page, the help text, the dump and the JSON come from it.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/recipe/recipe.h"
#include "runtime/recipe/yaml_tree.h"

namespace ltrain::recipe {

/// Effect of changing a key in a run that resumes from a checkpoint.
enum class Effect : uint8_t {
  unset,     ///< not set yet
  function,  ///< the result of a step: model, update, precision
  schedule,  ///< amount and length: learning rate, batch, number of steps
  data,      ///< training tokens and their meaning
  speed,     ///< time and memory; results change only in rounding
  nothing,   ///< names, logs, saves, checks
};

}  // namespace ltrain::recipe

namespace ltrain {
LT_ENUM_NAMES(recipe::Effect, {recipe::Effect::unset, "unset"}, {recipe::Effect::function, "function"},
              {recipe::Effect::schedule, "schedule"}, {recipe::Effect::data, "data"},
              {recipe::Effect::speed, "speed"}, {recipe::Effect::nothing, "nothing"});
}  // namespace ltrain

namespace ltrain::recipe {

/// Condition under which a run may resume with another value of a model.* key.
enum class OnResume : uint8_t {
  same,       ///< never: parameters or states would differ
  any,        ///< always: dropout, balance losses, capacities, initial values
  both_or_no  ///< if both values are above 0 or both are 0, because a state exists or not
};

/// Error of a value; empty text: no error.
struct ValueError {
  ValueError(std::string text) : text(std::move(text)) {}  // NOLINT: most have no place of their own
  ValueError(const char* text) : text(text) {}             // NOLINT
  ValueError(std::string text, Place place) : text(std::move(text)), place(std::move(place)) {}
  bool empty() const { return text.empty(); }

  std::string text;
  Place place;  ///< location of the invalid part of the value, such as a list entry; default: unknown
};

struct Key {
  std::string path;  ///< "train.micro_batch_size"
  std::string type;  ///< "integer", "number", "true or false", "text", "choice", "list of ..."
  std::string help;
  /// other spellings, valid in the section of the key and at the top level
  std::vector<std::string> aliases;
  std::vector<std::string> choices;  ///< choice: values of this build
  std::vector<std::string> unbuilt;  ///< choice: known values that this build does not support
  std::vector<std::pair<std::string, std::string>>
      other_words;                    ///< choice: other trainers' words and the matching values
  std::optional<double> least, most;  ///< range of a number
  bool open = false;                  ///< exclude the bounds `least` and `most`
  std::string implied;                ///< derivation of the default from other keys, for the reference
  std::string word;                   ///< integer: word for `word_value`
  int64_t word_value = 0;
  bool dumped = true;             ///< false: not part of the resolved recipe (model.from)
  Effect effect = Effect::unset;  ///< set by changes(), else by the section (schema_sections.cpp)

  OnResume on_resume = OnResume::same;  ///< used for model.* keys
  bool on_load_any = false;             ///< model.* key: weights do not depend on its value
  /// model.* key that is younger than checkpoints: what ltrain computed before, as in YAML; "": no meaning
  std::function<std::string(const Family&)> before;

  /// Sets the value from a node. Returns "" or the error ("must be at least 1; ...").
  std::function<ValueError(const Key&, Recipe&, const Node&)> set;
  /// Returns the value as YAML, or as JSON if `json`.
  std::function<std::string(const Key&, const Recipe&, bool json)> write;
  /// Derives the default. Called in table order if the key was not given.
  std::function<void(Recipe&)> imply;
  /// Returns whether the key has a meaning in this recipe. If not, it is omitted from the dump, and giving it
  /// is an error (`strict`) or a note. Null: always.
  std::function<bool(const Recipe&)> applies;
  std::string applies_when;  ///< "model.architecture: llama"
  bool strict = false;

  std::string section() const {
    const size_t dot = path.rfind('.');
    return dot == std::string::npos ? "" : path.substr(0, dot);
  }
  std::string leaf() const { return path.substr(path.rfind('.') + 1); }
  /// Allowed values for people: "1 to 4096", "auto or at least 1", "fp32, bf16".
  std::string allowed() const;
  /// Default as in YAML, or the description of a derived default.
  std::string default_text() const;

  /// Sets the effect of changing the key on resume, if it differs from the section's.
  Key& changes(Effect e) {
    effect = e;
    return *this;
  }
  Key& resumes(OnResume r) {
    on_resume = r;
    return *this;
  }
  Key& loads_with_any() {
    on_load_any = true;
    return *this;
  }
  Key& was(std::function<std::string(const Family&)> f) {
    before = std::move(f);
    return *this;
  }
  Key& alias(std::vector<std::string> names) {
    aliases = std::move(names);
    return *this;
  }
  Key& say(std::vector<std::pair<std::string, std::string>> words) {
    other_words = std::move(words);
    return *this;
  }
  Key& at_least(double v) {
    least = v;
    return *this;
  }
  Key& between(double lo, double hi) {
    least = lo;
    most = hi;
    return *this;
  }
  Key& inside(double lo, double hi) {
    open = true;
    return between(lo, hi);
  }  ///< excludes the bounds
  Key& above(double lo) {
    least = lo;
    open = true;
    return *this;
  }
  Key& or_word(std::string w, int64_t v) {
    word = std::move(w);
    word_value = v;
    return *this;
  }
  Key& when(std::string text, bool is_strict, std::function<bool(const Recipe&)> f) {
    applies_when = std::move(text);
    strict = is_strict;
    applies = std::move(f);
    return *this;
  }
  Key& derived(std::string how, std::function<void(Recipe&)> f) {
    implied = std::move(how);
    imply = std::move(f);
    return *this;
  }
  bool in_dump(const Recipe& r) const { return dumped && (!applies || applies(r)); }
};

const std::vector<Key>& schema();
const Key* find_key(const std::string& path);    ///< finds by canonical path
const Key* find_alias(const std::string& path);  ///< finds by "section.alias" or "alias"
bool is_section(const std::string& path);        ///< returns whether any key's path begins with "path."
std::string section_help(const std::string& section);
std::vector<std::string> sections();  ///< in table order, "" first
std::vector<std::string> words_in_section(const std::string& section, bool with_aliases);

// Typed reading of a scalar by the YAML 1.2 core rules. Returns "" or the error.
std::string read_integer(const Node& node, int64_t& out, const std::string& or_word = "");
std::string read_number(const Node& node, double& out);
std::string read_bool(const Node& node, bool& out);
std::string read_text(const Node& node, std::string& out);
std::string check_range(const Key& key, double value, bool integer);

std::string write_number(double v);  ///< shortest text that reads back to the same double
std::string write_text(const std::string& v, bool json);  ///< quoted if YAML needs it; always for JSON

}  // namespace ltrain::recipe
