// Operators, indexes and attributes of the template engine.
#include <cmath>

#include "base/printable.h"
#include "runtime/chat/jinja_filters.h"

namespace ltrain::chat {
namespace {

Undefined missing(const TextPtr& name) { return {Undefined::Of::attribute, name}; }

void check_defined(Session& session, const Value& v) {
  if (const auto* undefined = v.get_if<Undefined>()) fail_undefined(session, *undefined);
}

[[noreturn]] void no_operator(Session& session, const std::string& op, const Value& a, const Value& b) {
  session.fail("{} of {} and {}", op, type_name(a), type_name(b));
}

[[noreturn]] void too_large(Session& session, const std::string& op) {
  session.fail("{}: the result is outside of 64 bits", op);
}

Value power(Session& session, const Value& a, const Value& b) {
  if (!a.integral() || !b.integral() || b.integer() < 0) {
    const double result = std::pow(a.real(), b.real());
    if (a.real() == 0 && b.real() < 0) session.fail("0 to a negative power");
    if (std::isnan(result) && !std::isnan(a.real()) && !std::isnan(b.real()))
      session.fail("a negative number to a power that is not an integer");
    return result;
  }
  int64_t result = 1, base = a.integer();
  for (int64_t left = b.integer(); left > 0; left >>= 1) {
    if ((left & 1) && __builtin_mul_overflow(result, base, &result)) too_large(session, "**");
    if (left > 1 && __builtin_mul_overflow(base, base, &base)) too_large(session, "**");
  }
  return result;
}

/// Python's // and %: the quotient is rounded down.
Value divided(Session& session, const std::string& op, const Value& a, const Value& b) {
  if (b.real() == 0) session.fail("{} by zero", op);
  if (a.integral() && b.integral() && op != "/") {
    const int64_t x = a.integer(), y = b.integer();
    if (y == -1) {
      int64_t minus = 0;
      if (__builtin_sub_overflow(int64_t{0}, x, &minus)) too_large(session, op);
      return op == "%" ? Value(int64_t{0}) : Value(minus);
    }
    const bool down = x % y != 0 && (x < 0) != (y < 0);
    return op == "%" ? x % y + (down ? y : 0) : x / y - (down ? 1 : 0);
  }
  const double x = a.real(), y = b.real();
  if (op == "/") return x / y;
  double rest = std::fmod(x, y);
  if (op == "%") {
    if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
    return rest == 0 ? std::copysign(0.0, y) : rest;
  }
  double quotient = (x - rest) / y;
  if (rest != 0 && (rest < 0) != (y < 0)) quotient -= 1;
  return std::round(quotient);
}

Value repeated(Session& session, const Value& sequence, int64_t count) {
  if (sequence.text()) return repeat(session, sequence.as<TextPtr>(), count);
  const Sequence& s = *sequence.as<SequencePtr>();
  std::vector<Value> items;
  for (; count > 0 && !s.items.empty(); --count) {
    session.allocate(s.items.size() * sizeof(Value));
    session.step(s.items.size());
    items.insert(items.end(), s.items.begin(), s.items.end());
  }
  return make_sequence(session, std::move(items), s.kind);
}

bool repeatable(const Value& v) {
  if (v.text()) return true;
  const auto* s = v.get_if<SequencePtr>();
  return s && ((*s)->kind == Sequence::Kind::list || (*s)->kind == Sequence::Kind::tuple);
}

}  // namespace

Value add_values(Session& session, const Value& a, const Value& b) {
  check_defined(session, a);
  check_defined(session, b);
  if (a.text() && b.text()) {
    const bool markup = a.as<TextPtr>()->markup || b.as<TextPtr>()->markup;
    TextBuilder out(session);
    for (const Value* v : {&a, &b})
      out.add(markup ? *escape_html(session, v->as<TextPtr>()) : *v->as<TextPtr>());
    return out.finish(markup);
  }
  if (a.integral() && b.integral()) {
    int64_t sum = 0;
    if (__builtin_add_overflow(a.integer(), b.integer(), &sum)) too_large(session, "+");
    return sum;
  }
  if (a.number() && b.number()) return a.real() + b.real();
  if (a.is<SequencePtr>() && b.is<SequencePtr>() && repeatable(a) &&
      a.as<SequencePtr>()->kind == b.as<SequencePtr>()->kind) {
    std::vector<Value> items = a.as<SequencePtr>()->items;
    const std::vector<Value>& more = b.as<SequencePtr>()->items;
    items.insert(items.end(), more.begin(), more.end());
    session.step(items.size() / 4);
    return make_sequence(session, std::move(items), a.as<SequencePtr>()->kind);
  }
  no_operator(session, "+", a, b);
}

Value arithmetic(Session& session, const std::string& op, const Value& a, const Value& b) {
  if (op == "+") return add_values(session, a, b);
  check_defined(session, a);
  check_defined(session, b);
  if (op == "*") {
    if (repeatable(a) && b.integral()) return repeated(session, a, b.integer());
    if (repeatable(b) && a.integral()) return repeated(session, b, a.integer());
  }
  if (op == "%" && a.text()) session.fail("% of a str formats it, which is not supported; use ~");
  if (!a.number() || !b.number()) no_operator(session, op, a, b);
  if (op == "/" || op == "//" || op == "%") return divided(session, op, a, b);
  if (op == "**") return power(session, a, b);
  if (a.integral() && b.integral()) {
    int64_t result = 0;
    const bool large = op == "-" ? __builtin_sub_overflow(a.integer(), b.integer(), &result)
                                 : __builtin_mul_overflow(a.integer(), b.integer(), &result);
    if (large) too_large(session, op);
    return result;
  }
  return op == "-" ? a.real() - b.real() : a.real() * b.real();
}

Value negated(Session& session, const Value& value) {
  check_defined(session, value);
  if (value.is<double>()) return -value.as<double>();
  if (!value.integral()) session.fail("- of {}", type_name(value));
  return arithmetic(session, "-", int64_t{0}, value);
}

bool compared(Session& session, const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return equal(session, a, b);
  if (op == "!=") return !equal(session, a, b);
  if (op == "in") return contains(session, b, a);
  if (op == "not in") return !contains(session, b, a);
  const std::partial_ordering order = compare(session, a, b);
  return op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
}

Value get_attribute(Session& session, const Value& value, const TextPtr& name) {
  check_defined(session, value);
  if (name->bytes.starts_with("__")) return Undefined{Undefined::Of::refused, name};
  if (const auto* space = value.get_if<SpacePtr>()) {
    const Value* found = (*space)->find(name->bytes);
    return found ? *found : Value(missing(name));
  }
  if (const auto* loop = value.get_if<LoopPtr>()) {
    Loop& l = **loop;
    const std::string& n = name->bytes;
    if (n == "index0") return l.index0;
    if (n == "index") return l.index0 + 1;
    if (n == "first") return l.index0 == 0;
    if (n == "last") return l.peek(session) == nullptr;
    if (n == "length") return l.length(session);
    if (n == "revindex") return l.length(session) - l.index0;
    if (n == "revindex0") return l.length(session) - l.index0 - 1;
    if (n == "depth") return l.depth0 + 1;
    if (n == "depth0") return l.depth0;
    if (n == "previtem")
      return l.index0 > 0
                 ? l.before
                 : Value(Undefined{Undefined::Of::hint, make_text(session, "there is no previous item")});
    if (n == "nextitem") {
      const Value* next = l.peek(session);
      return next ? *next
                  : Value(Undefined{Undefined::Of::hint, make_text(session, "there is no next item")});
    }
  }
  Value method = find_method(session, value, name);
  if (!method.undefined() || method.as<Undefined>().of == Undefined::Of::refused) return method;
  if (const auto* dict = value.get_if<DictPtr>())
    if (const Value* item = (*dict)->find(name->bytes)) return *item;
  return missing(name);
}

Value get_item(Session& session, const Value& value, const Value& key) {
  check_defined(session, value);
  session.step();
  const bool indexed = value.text() || (value.is<SequencePtr>() && value.as<SequencePtr>()->indexed());
  if (indexed && key.integral()) {
    const int64_t size = length(session, value),
                  at = key.integer() < 0 ? key.integer() + size : key.integer();
    if (at >= 0 && at < size)
      return value.text() ? Value(pick(session, value.as<TextPtr>(), at, 1, 1))
                          : value.as<SequencePtr>()->items[static_cast<size_t>(at)];
  } else if (const auto* dict = value.get_if<DictPtr>()) {
    const auto* list = key.get_if<SequencePtr>();  // a key that cannot be hashed is not there
    if (!key.dict() && (!list || (*list)->kind != Sequence::Kind::list))
      if (const Value* item = (*dict)->find(session, key)) return *item;
  }
  if (!key.text())
    return Undefined{Undefined::Of::attribute, key.undefined() ? nullptr : to_text(session, key)};
  // The attribute of this name, but not the key again.
  if (value.dict()) {
    if (key.as<TextPtr>()->bytes.starts_with("__"))
      return Undefined{Undefined::Of::refused, key.as<TextPtr>()};
    Value method = find_method(session, value, key.as<TextPtr>());
    if (method.undefined() && method.as<Undefined>().of != Undefined::Of::refused)
      return missing(key.as<TextPtr>());
    return method;
  }
  return get_attribute(session, value, key.as<TextPtr>());
}

Value get_slice(Session& session, const Value& value, const Value& start, const Value& stop,
                const Value& step) {
  check_defined(session, value);
  for (const Value* v : {&start, &stop, &step}) check_defined(session, *v);
  const bool sliced = value.text() || (value.is<SequencePtr>() && value.as<SequencePtr>()->indexed());
  for (const Value* v : {&start, &stop, &step})
    if (!v->is<None>() && !v->integral())
      return Undefined{Undefined::Of::hint, make_text(session, "a slice with bounds that are not integers")};
  if (!sliced)
    return Undefined{Undefined::Of::hint,
                     make_text(session, fmt::format("a slice of a {}", type_name(value)))};
  const int64_t size = length(session, value), by = step.is<None>() ? 1 : step.integer();
  if (by == 0) session.fail("a slice with the step 0");
  const auto bound = [&](const Value& v, int64_t otherwise) {
    if (v.is<None>()) return otherwise;
    const int64_t at =
        v.integer() < 0 ? std::max<int64_t>(v.integer(), -size - 1) + size : std::min(v.integer(), size);
    return by > 0 ? std::max<int64_t>(at, 0) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t from = bound(start, by > 0 ? 0 : size - 1), to = bound(stop, by > 0 ? size : -1);
  const int64_t span = by > 0 ? to - from : from - to;
  const int64_t stride = by > 0 ? by : (by == INT64_MIN ? INT64_MAX : -by);
  const int64_t count = span <= 0 ? 0 : (span - 1) / stride + 1;
  const int64_t move = by > 0 ? stride : -stride;
  session.step(static_cast<uint64_t>(count) / 16);
  if (value.text()) {
    if (count == 0) {
      TextBuilder out(session);
      return out.finish(value.as<TextPtr>()->markup);
    }
    return pick(session, value.as<TextPtr>(), from, count == 1 ? 1 : move, count);
  }
  const Sequence& s = *value.as<SequencePtr>();
  if (s.kind == Sequence::Kind::range) {
    const int64_t first = s.start + from * s.by;
    if (count <= 1) return make_range(session, first, first + count, 1);
    return make_range(session, first, first + count * move * s.by, move * s.by);
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < count; ++i) items.push_back(s.items[static_cast<size_t>(from + i * move)]);
  return make_sequence(session, std::move(items), s.kind);
}

}  // namespace ltrain::chat
