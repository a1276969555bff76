// Values of a template engine with the semantics of Python objects.
#pragma once
#include <compare>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <variant>

#include "base/json/json.h"
#include "runtime/chat/jinja_text.h"

namespace ltrain::chat {

struct Sequence;
struct Dict;
struct Space;
struct Callable;
struct Loop;
using SequencePtr = std::shared_ptr<const Sequence>;
using DictPtr = std::shared_ptr<const Dict>;
using SpacePtr = std::shared_ptr<Space>;
using CallablePtr = std::shared_ptr<const Callable>;
using LoopPtr = std::shared_ptr<Loop>;

/// Result of a name or attribute that does not exist. Differs from none.
struct Undefined {
  enum class Of : uint8_t { name, attribute, hint, refused };
  Of of = Of::hint;
  TextPtr what;  ///< the name, or the message of a hint; null: unknown
};
struct None {};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, TextPtr, SequencePtr, DictPtr, SpacePtr,
                            CallablePtr, LoopPtr>;
  Value() = default;
  Value(Undefined v) : data_(std::move(v)) {}
  Value(None v) : data_(v) {}
  Value(bool v) : data_(v) {}
  Value(int64_t v) : data_(v) {}
  Value(double v) : data_(v) {}
  Value(TextPtr v) : data_(std::move(v)) {}
  Value(SequencePtr v) : data_(std::move(v)) {}
  Value(DictPtr v) : data_(std::move(v)) {}
  Value(SpacePtr v) : data_(std::move(v)) {}
  Value(CallablePtr v) : data_(std::move(v)) {}
  Value(LoopPtr v) : data_(std::move(v)) {}
  template <class T>
  Value(T*) = delete;  // a pointer would become a bool

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  template <class T>
  const T& as() const {
    return std::get<T>(data_);
  }
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  bool undefined() const { return is<Undefined>(); }
  bool text() const { return is<TextPtr>(); }
  bool dict() const { return is<DictPtr>(); }
  /// An int or a bool, which Python takes for an int.
  bool integral() const { return is<int64_t>() || is<bool>(); }
  bool number() const { return integral() || is<double>(); }
  int64_t integer() const { return is<bool>() ? static_cast<int64_t>(as<bool>()) : as<int64_t>(); }
  double real() const { return is<double>() ? as<double>() : static_cast<double>(integer()); }

 private:
  Data data_;
};

struct Sequence {
  enum class Kind : uint8_t { list, tuple, range, keys, values, items, iterator };
  Kind kind = Kind::list;
  std::vector<Value> items;
  int depth = 1;          ///< levels of lists and mappings in it, with itself
  mutable size_t at = 0;  ///< iterator: items that were taken
  std::string error;      ///< iterator: error behind its last item, since Python's are lazy; "": none
  int64_t start = 0, stop = 0, by = 1;  ///< range
  void check_end() const;               ///< throws the error
  /// len() and indexes exist.
  bool sized() const { return kind != Kind::iterator; }
  bool indexed() const { return kind == Kind::list || kind == Kind::tuple || kind == Kind::range; }
};

/// A dict, in the order of insertion. Immutable.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  std::unordered_map<std::string_view, size_t> index;  ///< positions of text keys; large dicts only
  int depth = 1;
  const Value* find(Session& session, const Value& key) const;
  const Value* find(std::string_view key) const;
};

/// A namespace(): the only mutable object.
struct Space final : Kept {
  std::vector<std::pair<std::string, Value>> items;
  Value* find(std::string_view name);
  void clear() override { items.clear(); }
};

/// The variable `loop`. Items are taken lazily, since the filter of a loop may depend on its body.
struct Loop {
  SequencePtr source;
  std::function<bool(const Value&)> keep;  ///< filter of the loop; empty: none
  int64_t index0 = -1;
  int64_t depth0 = 0;
  Value before, current;
  std::optional<Value> after;  ///< the next item, if it was looked at
  bool over = false;
  bool next(Session& session);          ///< moves to the next item; false: none
  const Value* peek(Session& session);  ///< the next item; null: none
  int64_t length(Session& session);
  void end();  ///< drops what must not outlive the loop

 private:
  size_t at_ = 0;
  std::vector<Value> rest_;  // items that length() took early
  size_t rest_at_ = 0;
  bool took_rest_ = false;
  int64_t length_ = -1;
  bool take(Session& session, Value& item);
};

Value make_sequence(Session& session, std::vector<Value> items, Sequence::Kind kind = Sequence::Kind::list);
Value make_range(Session& session, int64_t start, int64_t stop, int64_t step);
/// Later values of equal keys win, at the place of the first. Throws Error for a key that cannot be hashed.
Value make_dict(Session& session, std::vector<std::pair<Value, Value>> items);
int depth_of(const Value& value);

/// Converts JSON. Text is `data` or not; in the elements of a list of messages, the value of "role" is not.
Value from_json(Session& session, const nlohmann::ordered_json& json, bool data);
Value messages_from_json(Session& session, const nlohmann::ordered_json& json);

bool truth(const Value& value);
std::string type_name(const Value& value);  ///< name of the Python type, for messages
/// Throws Error that says why the undefined value is undefined.
[[noreturn]] void fail_undefined(Session& session, const Undefined& value);

bool equal(Session& session, const Value& a, const Value& b);
/// Order of two values. Throws Error for types without one.
std::partial_ordering compare(Session& session, const Value& a, const Value& b);
bool contains(Session& session, const Value& container, const Value& item);
/// Items of an iterable: takes those of an iterator. Throws Error for other types.
std::vector<Value> iterate(Session& session, const Value& value);
bool iterable(const Value& value);
int64_t length(Session& session, const Value& value);

TextPtr to_text(Session& session, const Value& value);  ///< str()
void add_text(Session& session, const Value& value, TextBuilder& out);
void add_repr(Session& session, const Value& value, TextBuilder& out);
std::string float_repr(double value);

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;      ///< white space of one level; unset: one line
  TextPtr item_separator, key_separator;  ///< null: Python's defaults
};
/// json.dumps. Throws Error for a value that JSON has no form for.
TextPtr to_json(Session& session, const Value& value, const JsonStyle& style);

/// The integer of a value, for the parameter `what` of a function. Throws Error for another type.
int64_t integer_of(Session& session, const Value& value, const char* what);
const TextPtr& text_of(Session& session, const Value& value, const char* what);

}  // namespace ltrain::chat
