// The one table of settings: key, type, default, range, help, aliases, implications. It generates the
// parser's checks, the reference page, the help text, the dump and the JSON.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/recipe/recipe.h"
#include "runtime/recipe/yaml_tree.h"

namespace ltrain::recipe {

/// What another value of a key changes in a run that goes on from a checkpoint.
enum class Effect : uint8_t {
  unset,     ///< of a row that is not in the table yet
  function,  ///< what a step computes: the model, the update, the precision
  schedule,  ///< how much and how far: learning rate, batch, length of the run
  data,      ///< which tokens are trained on, and what they mean
  speed,     ///< time and memory; results but for the rounding of sums
  nothing,   ///< neither: names, logs, saves, checks
};

}  // namespace ltrain::recipe

namespace ltrain {
LT_ENUM_NAMES(recipe::Effect, {recipe::Effect::unset, "unset"}, {recipe::Effect::function, "function"},
              {recipe::Effect::schedule, "schedule"}, {recipe::Effect::data, "data"},
              {recipe::Effect::speed, "speed"}, {recipe::Effect::nothing, "nothing"});
}  // namespace ltrain

namespace ltrain::recipe {

/// Whether a run may go on from a checkpoint with another value of a model.* key.
enum class OnResume : uint8_t {
  same,       ///< it may not: parameters or states would be others
  any,        ///< it may: dropout, losses for balance, capacities, initial values
  both_or_no  ///< it may where both are above 0 or both are 0: there is a state, or there is none
};

/// What is wrong with a value; an empty text: nothing.
struct ValueError {
  ValueError(std::string text) : text(std::move(text)) {}  // NOLINT: most have no place of their own
  ValueError(const char* text) : text(text) {}             // NOLINT
  ValueError(std::string text, Place place) : text(std::move(text)), place(std::move(place)) {}
  bool empty() const { return text.empty(); }

  std::string text;
  Place place;  ///< of the part of the value that is wrong, such as an entry of a list; default: not known
};

struct Key {
  std::string path;  ///< "train.micro_batch_size"
  std::string type;  ///< "integer", "number", "true or false", "text", "choice", "list of ..."
  std::string help;
  std::vector<std::string> aliases;  ///< other spellings, valid in the key's section and at the top
  std::vector<std::string> choices;  ///< of a choice: in this build
  std::vector<std::string> unbuilt;  ///< of a choice: known, refused by this build
  std::vector<std::pair<std::string, std::string>>
      other_words;                    ///< of a choice: others' word, and ours for it
  std::optional<double> least, most;  ///< of a number
  bool open = false;                  ///< least and most themselves are not allowed
  std::string implied;                ///< how the default is derived from other keys, for the reference
  std::string word;                   ///< integer: a word that stands for `word_value`
  int64_t word_value = 0;
  bool dumped = true;             ///< false: not part of the resolved recipe (model.from)
  Effect effect = Effect::unset;  ///< of changes(), else its section's (schema_sections.cpp)

  OnResume on_resume = OnResume::same;  ///< read of model.* keys
  bool on_load_any = false;             ///< a model.* key: weights do not depend on its value

  /// Sets the value from a node; returns "" or what is wrong ("must be at least 1; ...").
  std::function<ValueError(const Key&, Recipe&, const Node&)> set;
  /// The value as YAML, or as JSON when `json`.
  std::function<std::string(const Key&, const Recipe&, bool json)> write;
  /// Derives the default; called in table order when the key was not given.
  std::function<void(Recipe&)> imply;
  /// Whether the key has a meaning in this recipe; without one it is left out of the dump, and giving it is
  /// refused
  /// (`strict`) or noted. Null: always.
  std::function<bool(const Recipe&)> applies;
  std::string applies_when;  ///< "model.architecture: llama"
  bool strict = false;

  std::string section() const {
    const size_t dot = path.rfind('.');
    return dot == std::string::npos ? "" : path.substr(0, dot);
  }
  std::string leaf() const { return path.substr(path.rfind('.') + 1); }
  /// "1 to 4096", "auto or at least 1", "fp32, bf16": the allowed values for people.
  std::string allowed() const;
  /// The default as in YAML; derived ones as their description.
  std::string default_text() const;

  /// What a run that goes on with another value does otherwise, where that is not what the section says.
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
  }  ///< without the ends
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
const Key* find_key(const std::string& path);    ///< by canonical path
const Key* find_alias(const std::string& path);  ///< by "section.alias" or "alias"
bool is_section(const std::string& path);        ///< some key's path begins with "path."
std::string section_help(const std::string& section);
std::vector<std::string> sections();  ///< in table order, "" first
std::vector<std::string> words_in_section(const std::string& section, bool with_aliases);

// Typed reading of a scalar, YAML 1.2 core rules; each returns "" or what is wrong.
std::string read_integer(const Node& node, int64_t& out, const std::string& or_word = "");
std::string read_number(const Node& node, double& out);
std::string read_bool(const Node& node, bool& out);
std::string read_text(const Node& node, std::string& out);
std::string check_range(const Key& key, double value, bool integer);

std::string write_number(double v);  ///< shortest text that reads back to the same double
std::string write_text(const std::string& v, bool json);  ///< quoted when YAML needs it, or always

}  // namespace ltrain::recipe
