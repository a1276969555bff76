// Filters, tests, methods and global functions of the template engine, as tables. The parser resolves names
// with them, so that an unknown name is an error before anything is rendered.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/jinja_ast.h"

namespace ltrain::chat {

/// Arguments of a call.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Arguments bound to the parameters of a signature such as "old new count?": names, `?` for optional ones;
/// "..." leaves them as they are.
class Bound {
 public:
  /// Throws Error for a missing, superfluous or unknown argument of `what`.
  Bound(Session& session, std::string_view what, std::string_view signature, Args args);
  bool has(size_t i) const { return i < values_.size() && values_[i].has_value(); }
  const Value& at(size_t i) const { return *values_[i]; }
  bool flag(size_t i, bool otherwise = false) const { return has(i) ? truth(at(i)) : otherwise; }
  const Args& raw() const { return raw_; }

 private:
  std::vector<std::optional<Value>> values_;
  Args raw_;
};

struct FilterRow {
  std::string_view name, signature;
  Value (*apply)(Session&, const Value& input, const Bound&);
};
struct TestRow {
  std::string_view name, signature;
  bool (*apply)(Session&, const Value& input, const Bound&);
};
struct MethodRow {
  std::string_view name, signature;
  Value (*apply)(Session&, const Value& self, const Bound&);
};
struct GlobalRow {
  std::string_view name, signature;
  Value (*apply)(Session&, const Bound&);
};

const FilterRow* find_filter(std::string_view name);  ///< null: unknown
const TestRow* find_test(std::string_view name);
const GlobalRow* find_global(std::string_view name);
std::vector<std::string> filter_names();
std::vector<std::string> test_names();
std::vector<std::string> global_names();
/// Names that may be called after a dot: methods of all types.
std::vector<std::string> method_names();
bool is_method_name(std::string_view name);

Value apply_filter(Session& session, const FilterRow& row, const Value& input, Args args);
bool apply_test(Session& session, const TestRow& row, const Value& input, Args args);
/// Calls a method that get_attribute() returned, or a global function.
Value call_callable(Session& session, const Callable& callable, Args args);

/// Jinja's `value.name`: a method or attribute first, then the key of a dict. Undefined if there is neither.
Value get_attribute(Session& session, const Value& value, const TextPtr& name);
/// Jinja's `value[key]`: the item first, then the attribute.
Value get_item(Session& session, const Value& value, const Value& key);
Value get_slice(Session& session, const Value& value, const Value& start, const Value& stop,
                const Value& step);
/// A bound method of a value; undefined if the type has none of this name. `refused`: it would change the
/// value.
Value find_method(Session& session, const Value& self, const TextPtr& name);

Value add_values(Session& session, const Value& a, const Value& b);
Value arithmetic(Session& session, const std::string& op, const Value& a, const Value& b);
Value negated(Session& session, const Value& value);
bool compared(Session& session, const std::string& op, const Value& a, const Value& b);

/// Date that strftime_now() formats, as "YYYY-MM-DD". Throws Error (usage) for another form.
void check_template_date(const std::string& date);

}  // namespace ltrain::chat
