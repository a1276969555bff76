// Methods of values ("x.name(...)") and global functions of the template engine.
#include <algorithm>
#include <charconv>
#include <ctime>

#include "base/printable.h"
#include "runtime/chat/jinja_filters.h"

namespace ltrain::chat {
namespace {

const TextPtr& own(const Value& v) { return v.as<TextPtr>(); }
const Text* optional_text(Session& s, const Bound& a, size_t i, const char* what) {
  return a.has(i) && !a.at(i).is<None>() ? text_of(s, a.at(i), what).get() : nullptr;
}

template <Case to>
Value case_method(Session& s, const Value& v, const Bound&) {
  return change_case(s, own(v), to);
}
template <bool left, bool right>
Value strip_method(Session& s, const Value& v, const Bound& a) {
  return strip(s, own(v), optional_text(s, a, 0, "strip"), left, right);
}

template <bool from_right>
Value split_method(Session& s, const Value& v, const Bound& a) {
  const int64_t most = a.has(1) ? integer_of(s, a.at(1), "split") : -1;
  std::vector<Value> parts;
  for (TextPtr& p : split(s, own(v), optional_text(s, a, 0, "split"), most, from_right))
    parts.emplace_back(std::move(p));
  return make_sequence(s, std::move(parts));
}

/// startswith and endswith, with one or several texts, in the text from `start` to `stop`.
template <bool at_end>
Value with_method(Session& s, const Value& v, const Bound& a) {
  TextPtr text = own(v);
  if (a.has(1) || a.has(2)) {
    const Value start = a.has(1) ? a.at(1) : Value(None{}), stop = a.has(2) ? a.at(2) : Value(None{});
    text = text_of(s, get_slice(s, v, start, stop, None{}), "startswith");
  }
  const std::string& bytes = text->bytes;
  const auto has = [&](const Value& part) {
    const std::string& p = text_of(s, part, at_end ? "endswith" : "startswith")->bytes;
    return at_end ? bytes.ends_with(p) : bytes.starts_with(p);
  };
  const auto* several = a.at(0).get_if<SequencePtr>();
  if (several && (*several)->kind == Sequence::Kind::tuple)
    return std::any_of((*several)->items.begin(), (*several)->items.end(), has);
  return has(a.at(0));
}

Value replace_method(Session& s, const Value& v, const Bound& a) {
  const int64_t count = a.has(2) ? integer_of(s, a.at(2), "replace") : -1;
  TextPtr old = text_of(s, a.at(0), "replace"), by = text_of(s, a.at(1), "replace");
  if (own(v)->markup) by = escape_html(s, by);
  return replace(s, own(v), *old, *by, count);
}

template <bool last, bool fails>
Value find_text(Session& s, const Value& v, const Bound& a) {
  const std::string &bytes = own(v)->bytes, &part = text_of(s, a.at(0), "find")->bytes;
  if (a.has(1)) s.fail("find: a start is not supported; slice the text");
  s.step(1 + bytes.size() / 64);
  const size_t at = last ? bytes.rfind(part) : bytes.find(part);
  if (at == std::string::npos && fails) s.fail("index: the text is not in it");
  if (at == std::string::npos) return int64_t{-1};
  return length(s, part_of(s, own(v), 0, at));
}

Value count_text(Session& s, const Value& v, const Bound& a) {
  const TextPtr& part = text_of(s, a.at(0), "count");
  if (part->bytes.empty()) return length(s, v) + 1;
  int64_t count = 0;
  const std::string& bytes = own(v)->bytes;
  for (size_t at = 0; (at = bytes.find(part->bytes, at)) != std::string::npos; at += part->bytes.size())
    ++count;
  s.step(1 + bytes.size() / 64);
  return count;
}

Value join_method(Session& s, const Value& v, const Bound& a) {
  TextBuilder out(s);
  bool first = true;
  for (const Value& item : iterate(s, a.at(0))) {
    if (!first) out.add(*own(v));
    first = false;
    const TextPtr& text = text_of(s, item, "join");
    out.add(own(v)->markup ? *escape_html(s, text) : *text);
  }
  return out.finish(own(v)->markup);
}

template <bool right>
Value partition(Session& s, const Value& v, const Bound& a) {
  const TextPtr& by = text_of(s, a.at(0), "partition");
  if (by->bytes.empty()) s.fail("partition: the separator is empty");
  const std::string& bytes = own(v)->bytes;
  const size_t at = right ? bytes.rfind(by->bytes) : bytes.find(by->bytes);
  const TextPtr none = make_text(s, "");
  if (at == std::string::npos)
    return make_sequence(
        s, right ? std::vector<Value>{none, none, own(v)} : std::vector<Value>{own(v), none, none},
        Sequence::Kind::tuple);
  const size_t end = at + by->bytes.size();
  return make_sequence(
      s, {part_of(s, own(v), 0, at), part_of(s, own(v), at, end), part_of(s, own(v), end, bytes.size())},
      Sequence::Kind::tuple);
}

template <bool at_end>
Value remove_affix(Session& s, const Value& v, const Bound& a) {
  const std::string &bytes = own(v)->bytes, &part = text_of(s, a.at(0), "removeprefix")->bytes;
  if (at_end ? !bytes.ends_with(part) : !bytes.starts_with(part)) return v;
  return at_end ? part_of(s, own(v), 0, bytes.size() - part.size())
                : part_of(s, own(v), part.size(), bytes.size());
}

Value lines_method(Session& s, const Value& v, const Bound& a) {
  std::vector<Value> lines;
  for (TextPtr& line : split_lines(s, own(v), a.flag(0))) lines.emplace_back(std::move(line));
  return make_sequence(s, std::move(lines));
}

template <bool (*good)(unsigned char)>
Value all_ascii(Session& s, const Value& v, const Bound&) {
  if (!own(v)->ascii) s.fail("isdigit, isalpha and isalnum of a text beyond ASCII are not supported");
  const std::string& b = own(v)->bytes;
  return !b.empty() &&
         std::all_of(b.begin(), b.end(), [](char c) { return good(static_cast<unsigned char>(c)); });
}
bool digit(unsigned char c) { return c >= '0' && c <= '9'; }
bool letter(unsigned char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }
bool letter_or_digit(unsigned char c) { return letter(c) || digit(c); }
Value all_space(Session& s, const Value& v, const Bound&) {
  return !own(v)->bytes.empty() && strip(s, own(v), nullptr, true, true)->bytes.empty();
}
Value upper_text(Session&, const Value& v, const Bound&) { return is_upper(*own(v)); }
Value lower_text(Session&, const Value& v, const Bound&) { return is_lower(*own(v)); }

constexpr MethodRow kTextMethods[] = {
    {"capitalize", "", case_method<Case::capitalize>},
    {"count", "sub", count_text},
    {"endswith", "suffix start? end?", with_method<true>},
    {"find", "sub start? end?", find_text<false, false>},
    {"index", "sub start? end?", find_text<false, true>},
    {"isalnum", "", all_ascii<letter_or_digit>},
    {"isalpha", "", all_ascii<letter>},
    {"isdigit", "", all_ascii<digit>},
    {"islower", "", lower_text},
    {"isspace", "", all_space},
    {"isupper", "", upper_text},
    {"join", "iterable", join_method},
    {"lower", "", case_method<Case::lower>},
    {"lstrip", "chars?", strip_method<true, false>},
    {"partition", "sep", partition<false>},
    {"removeprefix", "prefix", remove_affix<false>},
    {"removesuffix", "suffix", remove_affix<true>},
    {"replace", "old new count?", replace_method},
    {"rfind", "sub start? end?", find_text<true, false>},
    {"rindex", "sub start? end?", find_text<true, true>},
    {"rpartition", "sep", partition<true>},
    {"rsplit", "sep? maxsplit?", split_method<true>},
    {"rstrip", "chars?", strip_method<false, true>},
    {"split", "sep? maxsplit?", split_method<false>},
    {"splitlines", "keepends?", lines_method},
    {"startswith", "prefix start? end?", with_method<false>},
    {"strip", "chars?", strip_method<true, true>},
    {"swapcase", "", case_method<Case::swap>},
    {"title", "", case_method<Case::title>},
    {"upper", "", case_method<Case::upper>},
};

template <Sequence::Kind kind>
Value dict_view(Session& s, const Value& v, const Bound&) {
  std::vector<Value> items;
  for (const auto& [key, value] : v.as<DictPtr>()->items)
    items.push_back(kind == Sequence::Kind::keys     ? key
                    : kind == Sequence::Kind::values ? value
                                                     : make_sequence(s, {key, value}, Sequence::Kind::tuple));
  return make_sequence(s, std::move(items), kind);
}

Value dict_get(Session& s, const Value& v, const Bound& a) {
  if (const Value* found = v.as<DictPtr>()->find(s, a.at(0))) return *found;
  return a.has(1) ? a.at(1) : Value(None{});
}

Value same_value(Session&, const Value& v, const Bound&) { return v; }

constexpr MethodRow kDictMethods[] = {
    {"copy", "", same_value},
    {"get", "key default?", dict_get},
    {"items", "", dict_view<Sequence::Kind::items>},
    {"keys", "", dict_view<Sequence::Kind::keys>},
    {"values", "", dict_view<Sequence::Kind::values>},
};

Value list_count(Session& s, const Value& v, const Bound& a) {
  int64_t count = 0;
  for (const Value& item : v.as<SequencePtr>()->items) count += equal(s, item, a.at(0));
  return count;
}

Value list_index(Session& s, const Value& v, const Bound& a) {
  const std::vector<Value>& items = v.as<SequencePtr>()->items;
  for (size_t i = 0; i < items.size(); ++i)
    if (equal(s, items[i], a.at(0))) return static_cast<int64_t>(i);
  s.fail("index: the value is not in the list");
}

constexpr MethodRow kListMethods[] = {
    {"copy", "", same_value},
    {"count", "value", list_count},
    {"index", "value", list_index},
};

Value loop_cycle(Session& s, const Value& v, const Bound& a) {
  if (a.raw().positional.empty()) s.fail("cycle: expected at least one value");
  return a.raw().positional[static_cast<size_t>(std::max<int64_t>(v.as<LoopPtr>()->index0, 0)) %
                            a.raw().positional.size()];
}

constexpr MethodRow kLoopMethods[] = {{"cycle", "...", loop_cycle}};

/// Methods that the sandbox refuses, because they change the value.
constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};

std::span<const MethodRow> methods_of(const Value& v) {
  if (v.text()) return kTextMethods;
  if (v.dict()) return kDictMethods;
  if (v.is<LoopPtr>()) return kLoopMethods;
  if (const auto* s = v.get_if<SequencePtr>()) {
    if ((*s)->kind == Sequence::Kind::list) return kListMethods;
    if ((*s)->indexed()) return std::span(kListMethods).subspan(1);
  }
  return {};
}

const MethodRow* row_of(const Value& v, std::string_view name) {
  for (const MethodRow& row : methods_of(v))
    if (row.name == name) return &row;
  return nullptr;
}

Value call_raise(Session& s, const Bound& a) { s.fail("{}", printable(to_text(s, a.at(0))->bytes, 500)); }

Value call_range(Session& s, const Bound& a) {
  const int64_t first = integer_of(s, a.at(0), "range");
  const int64_t step = a.has(2) ? integer_of(s, a.at(2), "range") : 1;
  return a.has(1) ? make_range(s, first, integer_of(s, a.at(1), "range"), step) : make_range(s, 0, first, 1);
}

/// Items of dict(...) or namespace(...).
std::vector<std::pair<Value, Value>> pairs_of(Session& s, const Args& args, const char* what) {
  if (args.positional.size() > 1) s.fail("{}: expected at most one argument without a name", what);
  std::vector<std::pair<Value, Value>> items;
  if (!args.positional.empty()) {
    if (const auto* dict = args.positional[0].get_if<DictPtr>()) {
      items = (*dict)->items;
      s.step(items.size());
    } else {
      for (const Value& pair : iterate(s, args.positional[0])) {
        std::vector<Value> both = iterate(s, pair);
        if (both.size() != 2) s.fail("{}: expected pairs, got {} items", what, both.size());
        items.emplace_back(both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) items.emplace_back(make_text(s, name), value);
  return items;
}

Value call_dict(Session& s, const Bound& a) { return make_dict(s, pairs_of(s, a.raw(), "dict")); }

Value call_namespace(Session& s, const Bound& a) {
  auto space = std::make_shared<Space>();
  s.allocate(sizeof(Space));
  for (auto& [key, value] : pairs_of(s, a.raw(), "namespace")) {
    const std::string& name = text_of(s, key, "namespace")->bytes;
    if (name.starts_with('_')) s.fail("namespace: the name \"{}\" begins with _", printable(name, 40));
    if (Value* found = space->find(name))
      *found = value;
    else
      space->items.emplace_back(name, value);
  }
  s.keep(space);
  return space;
}

Value call_strftime(Session& s, const Bound& a) {
  const std::string& format = text_of(s, a.at(0), "strftime_now")->bytes;
  if (format.size() > 200)
    s.fail("strftime_now: expected a format of at most 200 bytes, got {}", format.size());
  std::tm date{};
  date.tm_year = std::stoi(s.date.substr(0, 4)) - 1900;
  date.tm_mon = std::stoi(s.date.substr(5, 2)) - 1;
  date.tm_mday = std::stoi(s.date.substr(8, 2));
  timegm(&date);  // the day of the week and of the year
  char text[4096];
  const size_t size = std::strftime(text, sizeof text, format.c_str(), &date);
  if (valid_utf8(std::string_view(text, size)) != size) s.fail("strftime_now: the result is not UTF-8");
  return make_text(s, std::string_view(text, size));
}

constexpr GlobalRow kGlobals[] = {
    {"dict", "...", call_dict},
    {"namespace", "...", call_namespace},
    {"raise_exception", "message", call_raise},
    {"range", "start stop? step?", call_range},
    {"strftime_now", "format", call_strftime},
};

}  // namespace

const GlobalRow* find_global(std::string_view name) {
  for (const GlobalRow& row : kGlobals)
    if (row.name == name) return &row;
  return nullptr;
}

std::vector<std::string> global_names() {
  std::vector<std::string> names;
  for (const GlobalRow& row : kGlobals) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const auto rows : {std::span<const MethodRow>(kTextMethods), std::span<const MethodRow>(kDictMethods),
                          std::span<const MethodRow>(kListMethods), std::span<const MethodRow>(kLoopMethods)})
    for (const MethodRow& row : rows) names.emplace_back(row.name);
  return names;
}

bool is_method_name(std::string_view name) {
  const std::vector<std::string> names = method_names();
  const auto in = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), name) != std::end(list);
  };
  return in(names) || in(kListChanges) || in(kDictChanges);
}

Value find_method(Session& session, const Value& self, const TextPtr& name) {
  const auto in = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), name->bytes) != std::end(list);
  };
  const bool list = self.is<SequencePtr>() && self.as<SequencePtr>()->kind == Sequence::Kind::list;
  if ((self.dict() && in(kDictChanges)) || (list && in(kListChanges)))
    return Undefined{Undefined::Of::refused, name};
  if (!row_of(self, name->bytes)) return Undefined{Undefined::Of::attribute, name};
  session.allocate(sizeof(Callable));
  auto method = std::make_shared<Callable>();
  method->self = self;
  method->name = name;
  return CallablePtr(std::move(method));
}

Value call_callable(Session& session, const Callable& callable, Args args) {
  if (callable.global)
    return callable.global->apply(
        session, Bound(session, callable.global->name, callable.global->signature, std::move(args)));
  const MethodRow* row = row_of(callable.self, callable.name->bytes);
  LT_CHECK(row, "expected a method, got {}", printable(callable.name->bytes, 40));
  return row->apply(session, callable.self, Bound(session, row->name, row->signature, std::move(args)));
}

void check_template_date(const std::string& date) {
  const bool form = date.size() == 10 && date[4] == '-' && date[7] == '-' &&
                    std::count_if(date.begin(), date.end(), [](char c) { return c >= '0' && c <= '9'; }) == 8;
  const int month = form ? std::stoi(date.substr(5, 2)) : 0, day = form ? std::stoi(date.substr(8, 2)) : 0;
  if (month < 1 || month > 12 || day < 1 || day > 31)
    fail(ExitCode::usage, "date of chat templates: expected YYYY-MM-DD, got \"{}\"", printable(date, 40));
}

}  // namespace ltrain::chat
