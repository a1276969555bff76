// The tests of the template engine ("x is NAME").
#include "runtime/chat/jinja_filters.h"

namespace ltrain::chat {
namespace {

bool divisible(Session& s, const Value& v, int64_t by) {
  const Value rest = arithmetic(s, "%", v, by);
  return rest.real() == 0;
}

template <class T>
bool of_type(Session&, const Value& v, const Bound&) {
  return v.is<T>();
}
template <bool wanted>
bool constant(Session&, const Value& v, const Bound&) {
  return v.is<bool>() && v.as<bool>() == wanted;
}

bool sequence(Session&, const Value& v, const Bound&) {
  return v.undefined() || v.text() || v.dict() || (v.is<SequencePtr>() && v.as<SequencePtr>()->indexed());
}

bool same(Session& s, const Value& v, const Bound& a) {
  const Value& b = a.at(0);
  if (v.text() && b.text()) return v.as<TextPtr>() == b.as<TextPtr>() || equal(s, v, b);
  if (v.is<SequencePtr>() && b.is<SequencePtr>()) return v.as<SequencePtr>() == b.as<SequencePtr>();
  if (v.dict() && b.dict()) return v.as<DictPtr>() == b.as<DictPtr>();
  return v.is<bool>() == b.is<bool>() && v.is<int64_t>() == b.is<int64_t>() &&
         v.is<double>() == b.is<double>() && equal(s, v, b);
}

#define LT_COMPARED(name, op) \
  bool name(Session& s, const Value& v, const Bound& a) { return compared(s, op, v, a.at(0)); }
LT_COMPARED(test_eq, "==")
LT_COMPARED(test_ne, "!=")
LT_COMPARED(test_lt, "<")
LT_COMPARED(test_le, "<=")
LT_COMPARED(test_gt, ">")
LT_COMPARED(test_ge, ">=")
#undef LT_COMPARED

constexpr TestRow kTests[] = {
    {"boolean", "", of_type<bool>},
    {"callable", "",
     [](Session&, const Value& v, const Bound&) { return v.is<CallablePtr>() || v.undefined(); }},
    {"defined", "", [](Session&, const Value& v, const Bound&) { return !v.undefined(); }},
    {"divisibleby", "num",
     [](Session& s, const Value& v, const Bound& a) {
       return divisible(s, v, integer_of(s, a.at(0), "divisibleby"));
     }},
    {"eq", "other", test_eq},
    {"equalto", "other", test_eq},
    {"==", "other", test_eq},
    {"escaped", "",
     [](Session&, const Value& v, const Bound&) { return v.text() && v.as<TextPtr>()->markup; }},
    {"even", "", [](Session& s, const Value& v, const Bound&) { return divisible(s, v, 2); }},
    {"false", "", constant<false>},
    {"float", "", of_type<double>},
    {"ge", "other", test_ge},
    {">=", "other", test_ge},
    {"gt", "other", test_gt},
    {"greaterthan", "other", test_gt},
    {">", "other", test_gt},
    {"in", "seq", [](Session& s, const Value& v, const Bound& a) { return contains(s, a.at(0), v); }},
    {"integer", "", of_type<int64_t>},
    {"iterable", "", [](Session&, const Value& v, const Bound&) { return iterable(v); }},
    {"le", "other", test_le},
    {"<=", "other", test_le},
    {"lessthan", "other", test_lt},
    {"lower", "", [](Session& s, const Value& v, const Bound&) { return is_lower(*to_text(s, v)); }},
    {"lt", "other", test_lt},
    {"<", "other", test_lt},
    {"mapping", "", of_type<DictPtr>},
    {"ne", "other", test_ne},
    {"!=", "other", test_ne},
    {"none", "", of_type<None>},
    {"number", "", [](Session&, const Value& v, const Bound&) { return v.number(); }},
    {"odd", "",
     [](Session& s, const Value& v, const Bound&) { return arithmetic(s, "%", v, int64_t{2}).real() == 1; }},
    {"sameas", "other", same},
    {"sequence", "", sequence},
    {"string", "", of_type<TextPtr>},
    {"true", "", constant<true>},
    {"undefined", "", of_type<Undefined>},
    {"upper", "", [](Session& s, const Value& v, const Bound&) { return is_upper(*to_text(s, v)); }},
};

}  // namespace

const TestRow* find_test(std::string_view name) {
  for (const TestRow& row : kTests)
    if (row.name == name) return &row;
  return nullptr;
}

std::vector<std::string> test_names() {
  std::vector<std::string> names;
  for (const TestRow& row : kTests)
    if (row.name[0] >= 'a') names.emplace_back(row.name);
  return names;
}

bool apply_test(Session& session, const TestRow& row, const Value& input, Args args) {
  session.step();
  return row.apply(session, input, Bound(session, row.name, row.signature, std::move(args)));
}

}  // namespace ltrain::chat
