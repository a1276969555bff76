#include "runtime/chat/jinja_filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/nearest_word.h"
#include "base/printable.h"

namespace ltrain::chat {
namespace {

TextPtr soft_text(Session& session, const Value& v) { return to_text(session, v); }

Value iterator_of(Session& session, std::vector<Value> items) {
  return make_sequence(session, std::move(items), Sequence::Kind::iterator);
}

/// Returns an iterator over the values that `add` appends for each item of `input`; a false input has no
/// items. An error of `add` is raised when the iterator gets there, as in Python, where iterators are lazy.
template <class Add>
Value lazily(Session& session, const Value& input, Add add) {
  auto made = std::make_shared<Sequence>();
  made->kind = Sequence::Kind::iterator;
  if (truth(input))
    for (const Value& item : iterate(session, input)) {
      try {
        add(item, made->items);
      } catch (const Error& e) {
        made->error = e.what();
        break;
      }
    }
  Value all = make_sequence(session, std::move(made->items), Sequence::Kind::iterator);
  if (made->error.empty()) return all;
  made->items = all.as<SequencePtr>()->items;
  made->depth = all.as<SequencePtr>()->depth;
  return SequencePtr(std::move(made));
}

/// Reads "a.b.0" of an item, as `attribute=` of filters does.
Value attribute_path(Session& session, Value item, const Value& path, const Value* otherwise = nullptr) {
  if (path.is<None>()) return item;
  if (!path.text()) return get_item(session, item, path);
  for (const TextPtr& part : split(session, path.as<TextPtr>(), make_text(session, ".").get(), -1, false)) {
    const std::string& s = part->bytes;
    const bool number = !s.empty() && s.size() < 18 &&
                        std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
    item = get_item(session, item, number ? Value(static_cast<int64_t>(std::stoll(s))) : Value(part));
    if (otherwise && item.undefined()) item = *otherwise;
  }
  return item;
}

Value folded_case(Session& session, const Value& v) {
  return v.text() ? Value(change_case(session, v.as<TextPtr>(), Case::lower)) : v;
}

/// Keys by which items are sorted or compared: their attributes (several after commas), without case.
std::vector<Value> sort_keys(Session& session, const std::vector<Value>& items, const Value* attribute,
                             bool case_sensitive, bool several) {
  std::vector<Value> paths = {attribute ? *attribute : Value(None{})};
  if (several && attribute && attribute->text()) {
    paths.clear();
    for (TextPtr& p : split(session, attribute->as<TextPtr>(), make_text(session, ",").get(), -1, false))
      paths.emplace_back(std::move(p));
  }
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> of_item;
    for (const Value& path : paths) {
      Value key = attribute_path(session, item, path);
      of_item.push_back(case_sensitive ? key : folded_case(session, key));
    }
    keys.push_back(paths.size() == 1 ? of_item[0] : make_sequence(session, std::move(of_item)));
  }
  return keys;
}

/// Items in the order of their keys; equal ones keep their order.
std::vector<Value> sorted(Session& session, const std::vector<Value>& items, const std::vector<Value>& keys,
                          bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? compare(session, keys[b], keys[a]) < 0 : compare(session, keys[a], keys[b]) < 0;
  });
  std::vector<Value> out;
  for (const size_t i : order) out.push_back(items[i]);
  return out;
}

Value absolute(Session& s, const Value& v, const Bound&) {
  if (v.is<double>()) return std::abs(v.as<double>());
  const int64_t i = integer_of(s, v, "abs");
  return i < 0 ? negated(s, i) : Value(i);
}

Value attribute_filter(Session& s, const Value& v, const Bound& a) {
  const TextPtr& name = text_of(s, a.at(0), "attr");
  const Value found = get_attribute(s, v, name);
  const bool key = v.dict() && !found.undefined() && find_method(s, v, name).undefined();
  return key ? Value(Undefined{Undefined::Of::attribute, name}) : found;
}

Value default_filter(Session& s, const Value& v, const Bound& a) {
  const bool replaced = v.undefined() || (a.flag(1) && !truth(v));
  return !replaced ? v : a.has(0) ? a.at(0) : Value(make_text(s, ""));
}

Value dictsort(Session& s, const Value& v, const Bound& a) {
  if (const auto* undefined = v.get_if<Undefined>()) fail_undefined(s, *undefined);
  if (!v.dict()) s.fail("dictsort: expected a mapping, got {}", type_name(v));
  const std::string by = a.has(1) ? text_of(s, a.at(1), "dictsort")->bytes : "key";
  if (by != "key" && by != "value")
    s.fail("dictsort: expected by \"key\" or \"value\", got \"{}\"", printable(by, 40));
  std::vector<Value> items, keys;
  for (const auto& [key, value] : v.as<DictPtr>()->items) {
    const Value& sort_key = by == "key" ? key : value;
    keys.push_back(a.flag(0) ? sort_key : folded_case(s, sort_key));
    items.push_back(make_sequence(s, {key, value}, Sequence::Kind::tuple));
  }
  return make_sequence(s, sorted(s, items, keys, a.flag(2)));
}

Value escape_filter(Session& s, const Value& v, const Bound&) { return escape_html(s, soft_text(s, v)); }
Value force_escape(Session& s, const Value& v, const Bound&) {
  TextBuilder plain(s);
  add_text(s, v, plain);
  return escape_html(s, plain.finish());
}

Value first_filter(Session& s, const Value& v, const Bound&) {
  if (const auto* seq = v.get_if<SequencePtr>(); seq && !(*seq)->sized()) {
    if ((*seq)->at < (*seq)->items.size()) return (*seq)->items[(*seq)->at++];
    (*seq)->check_end();
  } else if (std::vector<Value> items = iterate(s, v); !items.empty()) {
    return items[0];
  }
  return Undefined{Undefined::Of::hint, make_text(s, "first: the sequence is empty")};
}

Value last_filter(Session& s, const Value& v, const Bound&) {
  if (const auto* seq = v.get_if<SequencePtr>(); seq && !(*seq)->sized())
    s.fail("last: expected a list, got an iterator");
  if (v.is<LoopPtr>()) s.fail("last: expected a list, got a loop");
  std::vector<Value> items = iterate(s, v);
  return items.empty() ? Value(Undefined{Undefined::Of::hint, make_text(s, "last: the sequence is empty")})
                       : items.back();
}

Value to_float(Session& s, const Value& v, double otherwise) {
  if (const auto* undefined = v.get_if<Undefined>()) fail_undefined(s, *undefined);
  if (v.number()) return v.real();
  if (!v.text()) return otherwise;
  std::string t = strip(s, v.as<TextPtr>(), nullptr, true, true)->bytes;
  const auto sign = t.starts_with('+') || t.starts_with('-') ? t[0] : '\0';
  const std::string body = sign ? t.substr(1) : t;
  std::string low = body;
  for (char& c : low) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  double value = 0;
  if (low == "inf" || low == "infinity") {
    value = HUGE_VAL;
  } else if (low == "nan") {
    value = NAN;
  } else {
    std::string plain;
    for (size_t i = 0; i < body.size(); ++i) {
      const auto digit = [&](size_t at) { return at < body.size() && body[at] >= '0' && body[at] <= '9'; };
      if (body[i] == '_' && i > 0 && digit(i - 1) && digit(i + 1)) continue;
      plain += body[i];
    }
    if (plain.empty() || plain[0] == '-' || plain[0] == '+') return otherwise;
    const auto read = std::from_chars(plain.data(), plain.data() + plain.size(), value);
    if (read.ptr != plain.data() + plain.size()) return otherwise;
    if (read.ec == std::errc::result_out_of_range) value = std::strtod(plain.c_str(), nullptr);
  }
  return sign == '-' ? -value : value;
}

Value float_filter(Session& s, const Value& v, const Bound& a) {
  return to_float(s, v, a.has(0) && a.at(0).number() ? a.at(0).real() : 0.0);
}

Value int_filter(Session& s, const Value& v, const Bound& a) {
  const Value otherwise = a.has(0) ? a.at(0) : Value(int64_t{0});
  const int64_t base = a.has(1) ? integer_of(s, a.at(1), "int") : 10;
  if (base < 2 || base > 36) s.fail("int: expected a base from 2 to 36, got {}", base);
  if (v.integral()) return v.integer();
  if (v.text()) {
    std::string t = strip(s, v.as<TextPtr>(), nullptr, true, true)->bytes;
    const bool minus = t.starts_with('-');
    if (minus || t.starts_with('+')) t.erase(0, 1);
    const std::string prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
    if (!prefix.empty() && t.size() > 2 && t[0] == '0' && (t[1] | 0x20) == prefix[1]) t.erase(0, 2);
    std::string plain;
    bool good = !t.empty() && t.front() != '_' && t.back() != '_' && t.find("__") == std::string::npos;
    std::copy_if(t.begin(), t.end(), std::back_inserter(plain), [](char c) { return c != '_'; });
    int64_t value = 0;
    if (minus) plain.insert(0, 1, '-');
    const auto read =
        std::from_chars(plain.data(), plain.data() + plain.size(), value, static_cast<int>(base));
    good = good && read.ptr == plain.data() + plain.size();
    if (good && read.ec == std::errc::result_out_of_range)
      s.fail("int: {} is outside of 64 bits", printable(t, 40));
    if (good && read.ec == std::errc()) return value;
  }
  const Value real = to_float(s, v, NAN);
  const double d = std::trunc(real.as<double>());
  if (!std::isfinite(d)) return otherwise;
  if (std::abs(d) >= 9.2e18) s.fail("int: {} is outside of 64 bits", d);
  return static_cast<int64_t>(d);
}

Value indent_filter(Session& s, const Value& v, const Bound& a) {
  const Value width = a.has(0) ? a.at(0) : Value(int64_t{4});
  const TextPtr by =
      width.text() ? width.as<TextPtr>() : repeat(s, make_text(s, " "), integer_of(s, width, "indent"));
  TextBuilder whole(s);
  whole.add(*text_of(s, v, "indent"));
  whole.add("\n");
  const std::vector<TextPtr> lines = split_lines(s, whole.finish(), false);
  TextBuilder out(s);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.add("\n");
    if (i == 0 ? a.flag(1) : (a.flag(2) || !lines[i]->bytes.empty())) out.add(*by);
    out.add(*lines[i]);
  }
  return out.finish();
}

Value items_filter(Session& s, const Value& v, const Bound&) {
  if (v.undefined()) return iterator_of(s, {});
  if (!v.dict()) s.fail("items: expected a mapping, got {}", type_name(v));
  std::vector<Value> items;
  for (const auto& [key, value] : v.as<DictPtr>()->items)
    items.push_back(make_sequence(s, {key, value}, Sequence::Kind::tuple));
  return iterator_of(s, std::move(items));
}

Value join_filter(Session& s, const Value& v, const Bound& a) {
  const TextPtr by = a.has(0) ? to_text(s, a.at(0)) : make_text(s, "");
  TextBuilder out(s);
  bool first = true;
  for (const Value& item : iterate(s, v)) {
    if (!first) out.add(*by);
    first = false;
    add_text(s, a.has(1) ? attribute_path(s, item, a.at(1)) : item, out);
  }
  return out.finish();
}

Value list_filter(Session& s, const Value& v, const Bound&) { return make_sequence(s, iterate(s, v)); }
Value length_filter(Session& s, const Value& v, const Bound&) { return length(s, v); }

Value map_filter(Session& s, const Value& v, const Bound& a) {
  Args rest = a.raw();
  if (rest.positional.empty()) {
    const Bound names(s, "map", "attribute default?", std::move(rest));
    const Value* otherwise = names.has(1) && !names.at(1).is<None>() ? &names.at(1) : nullptr;
    return lazily(s, v, [&](const Value& item, std::vector<Value>& out) {
      out.push_back(attribute_path(s, item, names.at(0), otherwise));
    });
  }
  const std::string name = text_of(s, rest.positional[0], "map")->bytes;
  const FilterRow* filter = find_filter(name);
  if (!filter) s.fail("map: no filter \"{}\"", printable(name, 40));
  rest.positional.erase(rest.positional.begin());
  return lazily(s, v, [&](const Value& item, std::vector<Value>& out) {
    out.push_back(apply_filter(s, *filter, item, rest));
  });
}

/// select, reject, selectattr and rejectattr: items for which a test gives `wanted`.
Value selected(Session& s, const Value& v, Args rest, bool of_attribute, bool wanted, const char* what) {
  Value path = None{};
  const auto take = [&] {
    Value first = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  if (of_attribute) {
    if (rest.positional.empty()) s.fail("{}: expected the name of an attribute", what);
    path = take();
  }
  const TestRow* test = nullptr;
  if (!rest.positional.empty()) {
    const Value name = take();
    test = find_test(text_of(s, name, what)->bytes);
    if (!test) s.fail("{}: no test \"{}\"", what, printable(name.as<TextPtr>()->bytes, 40));
  }
  return lazily(s, v, [&](const Value& item, std::vector<Value>& out) {
    const Value of = attribute_path(s, item, path);
    if ((test ? apply_test(s, *test, of, rest) : truth(of)) == wanted) out.push_back(item);
  });
}

Value select_filter(Session& s, const Value& v, const Bound& a) {
  return selected(s, v, a.raw(), false, true, "select");
}
Value reject_filter(Session& s, const Value& v, const Bound& a) {
  return selected(s, v, a.raw(), false, false, "reject");
}
Value selectattr(Session& s, const Value& v, const Bound& a) {
  return selected(s, v, a.raw(), true, true, "selectattr");
}
Value rejectattr(Session& s, const Value& v, const Bound& a) {
  return selected(s, v, a.raw(), true, false, "rejectattr");
}

Value extreme(Session& s, const Value& v, const Bound& a, bool most) {
  const std::vector<Value> items = iterate(s, v);
  if (items.empty()) return Undefined{Undefined::Of::hint, make_text(s, "min or max: the sequence is empty")};
  const std::vector<Value> keys = sort_keys(s, items, a.has(1) ? &a.at(1) : nullptr, a.flag(0), false);
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i)
    if (most ? compare(s, keys[i], keys[best]) > 0 : compare(s, keys[i], keys[best]) < 0) best = i;
  return items[best];
}
Value max_filter(Session& s, const Value& v, const Bound& a) { return extreme(s, v, a, true); }
Value min_filter(Session& s, const Value& v, const Bound& a) { return extreme(s, v, a, false); }

Value replace_filter(Session& s, const Value& v, const Bound& a) {
  const int64_t count = a.has(2) && !a.at(2).is<None>() ? integer_of(s, a.at(2), "replace") : -1;
  return replace(s, to_text(s, v), *to_text(s, a.at(0)), *to_text(s, a.at(1)), count);
}

Value reverse_filter(Session& s, const Value& v, const Bound&) {
  if (v.text()) return get_slice(s, v, None{}, None{}, int64_t{-1});
  const bool reversible = !v.is<SequencePtr>() || v.as<SequencePtr>()->sized();
  std::vector<Value> items = iterate(s, v);
  std::reverse(items.begin(), items.end());
  return reversible ? iterator_of(s, std::move(items)) : make_sequence(s, std::move(items));
}

Value round_filter(Session& s, const Value& v, const Bound& a) {
  if (const auto* undefined = v.get_if<Undefined>()) fail_undefined(s, *undefined);
  if (!v.number()) s.fail("round: expected a number, got {}", type_name(v));
  const int64_t digits = a.has(0) ? integer_of(s, a.at(0), "round") : 0;
  const std::string method = a.has(1) ? text_of(s, a.at(1), "round")->bytes : "common";
  if (std::abs(digits) > 300) s.fail("round: expected -300 to 300 digits, got {}", digits);
  const double scale = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil") return std::ceil(v.real() * scale) / scale;
  if (method == "floor") return std::floor(v.real() * scale) / scale;
  if (method != "common")
    s.fail("round: expected \"common\", \"ceil\" or \"floor\", got \"{}\"", printable(method, 40));
  if (v.integral() && digits >= 0) return v.integer();
  if (v.integral() || digits < 0) s.fail("round: a negative number of digits is not supported");
  if (!std::isfinite(v.real())) return v;
  return std::strtod(fmt::format("{:.{}f}", v.real(), static_cast<int>(digits)).c_str(), nullptr);
}

Value safe_filter(Session& s, const Value& v, const Bound&) {
  TextBuilder out(s);
  add_text(s, v, out);
  return out.finish(true);
}

Value sort_filter(Session& s, const Value& v, const Bound& a) {
  const std::vector<Value> items = iterate(s, v);
  return make_sequence(
      s, sorted(s, items, sort_keys(s, items, a.has(2) ? &a.at(2) : nullptr, a.flag(1), true), a.flag(0)));
}

Value string_filter(Session& s, const Value& v, const Bound&) { return soft_text(s, v); }

Value sum_filter(Session& s, const Value& v, const Bound& a) {
  Value sum = a.has(1) ? a.at(1) : Value(int64_t{0});
  if (sum.text()) s.fail("sum: expected numbers, got a str; the filter join joins texts");
  for (const Value& item : iterate(s, v))
    sum = add_values(s, sum, a.has(0) ? attribute_path(s, item, a.at(0)) : item);
  return sum;
}

Value tojson(Session& s, const Value& v, const Bound& a) {
  JsonStyle style;
  style.ensure_ascii = a.flag(0);
  style.sort_keys = a.flag(3);
  if (a.has(1) && !a.at(1).is<None>()) {
    if (a.at(1).text()) {
      style.indent = a.at(1).as<TextPtr>()->bytes;
    } else {
      const int64_t width = integer_of(s, a.at(1), "tojson");
      if (width > 1000) s.fail("tojson: expected an indent of at most 1000, got {}", width);
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (a.has(2) && !a.at(2).is<None>()) {
    const std::vector<Value> both = iterate(s, a.at(2));
    if (both.size() != 2) s.fail("tojson: expected two separators, got {}", both.size());
    style.item_separator = text_of(s, both[0], "tojson");
    style.key_separator = text_of(s, both[1], "tojson");
  }
  return to_json(s, v, style);
}

Value trim_filter(Session& s, const Value& v, const Bound& a) {
  const bool chars = a.has(0) && !a.at(0).is<None>();
  return strip(s, soft_text(s, v), chars ? text_of(s, a.at(0), "trim").get() : nullptr, true, true);
}

Value unique_filter(Session& s, const Value& v, const Bound& a) {
  const std::vector<Value> items = iterate(s, v);
  const std::vector<Value> keys = sort_keys(s, items, a.has(1) ? &a.at(1) : nullptr, a.flag(0), false);
  std::vector<Value> out, seen;
  for (size_t i = 0; i < items.size(); ++i) {
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& k) { return equal(s, k, keys[i]); })) continue;
    seen.push_back(keys[i]);
    out.push_back(items[i]);
  }
  return iterator_of(s, std::move(out));
}

template <Case to>
Value case_filter(Session& s, const Value& v, const Bound&) {
  return change_case(s, soft_text(s, v), to);
}
Value title_filter(Session& s, const Value& v, const Bound&) { return jinja_title(s, soft_text(s, v)); }
Value wordcount(Session& s, const Value& v, const Bound&) {
  return static_cast<int64_t>(split(s, soft_text(s, v), nullptr, -1, false).size());
}

constexpr FilterRow kFilters[] = {
    {"abs", "", absolute},
    {"attr", "name", attribute_filter},
    {"capitalize", "", case_filter<Case::capitalize>},
    {"count", "", length_filter},
    {"d", "default_value? boolean?", default_filter},
    {"default", "default_value? boolean?", default_filter},
    {"dictsort", "case_sensitive? by? reverse?", dictsort},
    {"e", "", escape_filter},
    {"escape", "", escape_filter},
    {"first", "", first_filter},
    {"float", "default?", float_filter},
    {"forceescape", "", force_escape},
    {"indent", "width? first? blank?", indent_filter},
    {"int", "default? base?", int_filter},
    {"items", "", items_filter},
    {"join", "d? attribute?", join_filter},
    {"last", "", last_filter},
    {"length", "", length_filter},
    {"list", "", list_filter},
    {"lower", "", case_filter<Case::lower>},
    {"map", "...", map_filter},
    {"max", "case_sensitive? attribute?", max_filter},
    {"min", "case_sensitive? attribute?", min_filter},
    {"reject", "...", reject_filter},
    {"rejectattr", "...", rejectattr},
    {"replace", "old new count?", replace_filter},
    {"reverse", "", reverse_filter},
    {"round", "precision? method?", round_filter},
    {"safe", "", safe_filter},
    {"select", "...", select_filter},
    {"selectattr", "...", selectattr},
    {"sort", "reverse? case_sensitive? attribute?", sort_filter},
    {"string", "", string_filter},
    {"sum", "attribute? start?", sum_filter},
    {"title", "", title_filter},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", tojson},
    {"trim", "chars?", trim_filter},
    {"unique", "case_sensitive? attribute?", unique_filter},
    {"upper", "", case_filter<Case::upper>},
    {"wordcount", "", wordcount},
};

}  // namespace

Bound::Bound(Session& session, std::string_view what, std::string_view signature, Args args) {
  if (signature == "...") {
    raw_ = std::move(args);
    return;
  }
  std::vector<std::pair<std::string_view, bool>> parameters;  // name, optional
  while (!signature.empty()) {
    std::string_view name = signature.substr(0, signature.find(' '));
    signature.remove_prefix(std::min(signature.size(), name.size() + 1));
    const bool optional = name.ends_with('?');
    if (optional) name.remove_suffix(1);
    parameters.emplace_back(name, optional);
  }
  if (args.positional.size() > parameters.size())
    session.fail("{}: expected at most {} arguments, got {}", what, parameters.size(),
                 args.positional.size());
  values_.resize(parameters.size());
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = std::move(args.positional[i]);
  for (auto& [name, value] : args.named) {
    const auto it =
        std::find_if(parameters.begin(), parameters.end(), [&](const auto& p) { return p.first == name; });
    const auto at = static_cast<size_t>(it - parameters.begin());
    if (it == parameters.end()) {
      std::vector<std::string> names;
      for (const auto& p : parameters) names.emplace_back(p.first);
      const std::string near = nearest_word(name, names);
      session.fail("{}: no argument \"{}\"{}", what, printable(name, 40),
                   near.empty() ? "" : "; nearest: " + near);
    }
    if (values_[at]) session.fail("{}: the argument {} is given twice", what, name);
    values_[at] = std::move(value);
  }
  for (size_t i = 0; i < parameters.size(); ++i)
    if (!values_[i] && !parameters[i].second)
      session.fail("{}: expected the argument {}", what, parameters[i].first);
}

const FilterRow* find_filter(std::string_view name) {
  for (const FilterRow& row : kFilters)
    if (row.name == name) return &row;
  return nullptr;
}

std::vector<std::string> filter_names() {
  std::vector<std::string> names;
  for (const FilterRow& row : kFilters) names.emplace_back(row.name);
  return names;
}

Value apply_filter(Session& session, const FilterRow& row, const Value& input, Args args) {
  const Deeper deeper(session);
  session.step();
  return row.apply(session, input, Bound(session, row.name, row.signature, std::move(args)));
}

}  // namespace ltrain::chat
