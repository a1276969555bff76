#include "runtime/chat/jinja_ast.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/printable.h"

namespace ltrain::chat {
namespace {

constexpr size_t kIndexedDict = 8;  // smaller dicts are searched item by item

int checked_depth(Session& session, int depth) {
  if (depth > kMaxJinjaDataDepth)
    session.fail("lists and mappings are nested deeper than {} levels", kMaxJinjaDataDepth);
  return depth;
}

/// Throws Error for a value that Python cannot hash.
void check_key(Session& session, const Value& key) {
  if (const auto* s = key.get_if<SequencePtr>()) {
    if ((*s)->kind == Sequence::Kind::tuple) {
      for (const Value& item : (*s)->items) check_key(session, item);
      return;
    }
    if ((*s)->kind == Sequence::Kind::list) session.fail("a list cannot be the key of a dict");
  }
  if (key.dict()) session.fail("a dict cannot be the key of a dict");
}

std::partial_ordering compare_numbers(const Value& a, const Value& b) {
  if (a.integral() && b.integral()) return a.integer() <=> b.integer();
  const auto wide = [](const Value& v) {
    return v.is<double>() ? static_cast<long double>(v.as<double>()) : static_cast<long double>(v.integer());
  };
  return wide(a) <=> wide(b);
}

bool listed(const Value& v, Sequence::Kind kind) {
  return v.is<SequencePtr>() && v.as<SequencePtr>()->kind == kind;
}

}  // namespace

void Sequence::check_end() const {
  if (!error.empty()) throw Error(ExitCode::data, error);
}

const Value* Dict::find(std::string_view key) const {
  if (!index.empty()) {
    const auto it = index.find(key);
    return it == index.end() ? nullptr : &items[it->second].second;
  }
  for (const auto& [k, v] : items)
    if (k.text() && k.as<TextPtr>()->bytes == key) return &v;
  return nullptr;
}

const Value* Dict::find(Session& session, const Value& key) const {
  if (key.text()) return find(key.as<TextPtr>()->bytes);
  check_key(session, key);
  session.step(1 + items.size() / 16);
  for (const auto& [k, v] : items)
    if (equal(session, k, key)) return &v;
  return nullptr;
}

Value* Space::find(std::string_view name) {
  for (auto& [key, value] : items)
    if (key == name) return &value;
  return nullptr;
}

bool Loop::take(Session& session, Value& item) {
  for (;;) {
    if (over || !source) return false;
    size_t& at = source->kind == Sequence::Kind::iterator ? source->at : at_;
    if (at >= source->items.size()) {
      source->check_end();
      return false;
    }
    item = source->items[at++];
    session.step();
    if (!keep || keep(item)) return true;
  }
}

bool Loop::next(Session& session) {
  Value item;
  if (after) {
    item = std::move(*after);
    after.reset();
  } else if (took_rest_ ? rest_at_ >= rest_.size() : !take(session, item)) {
    return false;
  } else if (took_rest_) {
    item = rest_[rest_at_++];
  }
  ++index0;
  before = std::move(current);
  current = std::move(item);
  return true;
}

const Value* Loop::peek(Session& session) {
  if (!after) {
    Value item;
    if (took_rest_ ? rest_at_ >= rest_.size() : !take(session, item)) return nullptr;
    after = took_rest_ ? rest_[rest_at_++] : std::move(item);
  }
  return &*after;
}

int64_t Loop::length(Session& session) {
  if (length_ >= 0) return length_;
  if (!keep && source && source->sized()) return length_ = static_cast<int64_t>(source->items.size());
  for (Value item; take(session, item);) rest_.push_back(item);
  took_rest_ = true;
  return length_ = static_cast<int64_t>(rest_.size()) + index0 + 1 + (after ? 1 : 0);
}

void Loop::end() {
  keep = nullptr;
  over = true;
}

int depth_of(const Value& value) {
  if (const auto* s = value.get_if<SequencePtr>()) return (*s)->depth;
  if (const auto* d = value.get_if<DictPtr>()) return (*d)->depth;
  if (const auto* l = value.get_if<LoopPtr>()) return (*l)->source ? (*l)->source->depth + 1 : 1;
  if (const auto* c = value.get_if<CallablePtr>()) return depth_of((*c)->self) + 1;
  return 0;
}

Value make_sequence(Session& session, std::vector<Value> items, Sequence::Kind kind) {
  session.allocate(sizeof(Sequence) + items.size() * sizeof(Value));
  auto made = std::make_shared<Sequence>();
  made->kind = kind;
  for (const Value& item : items) made->depth = std::max(made->depth, depth_of(item) + 1);
  checked_depth(session, made->depth);
  made->items = std::move(items);
  return SequencePtr(std::move(made));
}

Value make_range(Session& session, int64_t start, int64_t stop, int64_t step) {
  constexpr int64_t kMost = 100'000;  // limit of the sandbox of jinja2
  constexpr int64_t kBound = int64_t{1} << 60;
  if (step == 0) session.fail("range: the step is 0");
  if (std::max({std::abs(start), std::abs(stop), std::abs(step)}) > kBound)
    session.fail("range: expected bounds between -2^60 and 2^60");
  const int64_t span = step > 0 ? stop - start : start - stop;
  const int64_t count = span <= 0 ? 0 : (span - 1) / std::abs(step) + 1;
  if (count > kMost) session.fail("range: {} items; expected at most {}", count, kMost);
  auto made = std::make_shared<Sequence>();
  made->kind = Sequence::Kind::range;
  session.allocate(static_cast<uint64_t>(count) * sizeof(Value));
  for (int64_t i = 0; i < count; ++i) made->items.emplace_back(start + i * step);
  made->start = start;
  made->stop = stop;
  made->by = step;
  return SequencePtr(std::move(made));
}

Value make_dict(Session& session, std::vector<std::pair<Value, Value>> items) {
  auto made = std::make_shared<Dict>();
  session.allocate(sizeof(Dict) + items.size() * 2 * sizeof(Value));
  std::unordered_map<std::string_view, size_t> seen;
  for (auto& [key, value] : items) {
    check_key(session, key);
    made->depth = std::max({made->depth, depth_of(value) + 1, depth_of(key) + 1});
    size_t at = made->items.size();
    if (key.text()) {
      at = seen.emplace(key.as<TextPtr>()->bytes, at).first->second;
    } else {
      session.step(at / 16);
      for (size_t i = 0; i < made->items.size() && at == made->items.size(); ++i)
        if (equal(session, made->items[i].first, key)) at = i;
    }
    if (at == made->items.size())
      made->items.emplace_back(std::move(key), std::move(value));  // text bytes stay where they are
    else
      made->items[at].second = std::move(value);
  }
  checked_depth(session, made->depth);
  if (made->items.size() > kIndexedDict) made->index = std::move(seen);
  return DictPtr(std::move(made));
}

bool truth(const Value& v) {
  if (const auto* b = v.get_if<bool>()) return *b;
  if (const auto* i = v.get_if<int64_t>()) return *i != 0;
  if (const auto* d = v.get_if<double>()) return *d != 0;
  if (const auto* t = v.get_if<TextPtr>()) return !(*t)->bytes.empty();
  if (const auto* s = v.get_if<SequencePtr>()) return !(*s)->sized() || !(*s)->items.empty();
  if (const auto* d = v.get_if<DictPtr>()) return !(*d)->items.empty();
  return !v.undefined() && !v.is<None>();
}

std::string type_name(const Value& v) {
  if (const auto* s = v.get_if<SequencePtr>()) {
    constexpr const char* kNames[] = {"list",        "tuple",      "range",   "dict_keys",
                                      "dict_values", "dict_items", "iterator"};
    return kNames[static_cast<int>((*s)->kind)];
  }
  if (v.undefined()) return "undefined";
  if (v.is<None>()) return "None";
  if (v.is<bool>()) return "bool";
  if (v.is<int64_t>()) return "int";
  if (v.is<double>()) return "float";
  if (v.text()) return "str";
  if (v.dict()) return "dict";
  return v.is<SpacePtr>() ? "namespace" : v.is<LoopPtr>() ? "loop" : "function";
}

void fail_undefined(Session& session, const Undefined& value) {
  const std::string what = value.what ? printable(value.what->bytes, 80) : "value";
  switch (value.of) {
    case Undefined::Of::name:
      session.fail("'{}' is undefined", what);
    case Undefined::Of::attribute:
      session.fail("no attribute or key '{}'", what);
    case Undefined::Of::refused:
      session.fail(
          "'{}' is refused: templates may not change lists and mappings, nor reach Python's internals", what);
    default:
      session.fail("{}", what);
  }
}

bool equal(Session& session, const Value& a, const Value& b) {
  session.step();
  if (a.number() && b.number()) return compare_numbers(a, b) == 0;
  if (a.text() && b.text()) return a.as<TextPtr>()->bytes == b.as<TextPtr>()->bytes;
  if (a.undefined() || b.undefined()) return a.undefined() && b.undefined();
  if (a.is<None>() || b.is<None>()) return a.is<None>() && b.is<None>();
  if (a.is<SequencePtr>() && b.is<SequencePtr>()) {
    const Sequence &x = *a.as<SequencePtr>(), &y = *b.as<SequencePtr>();
    if (&x == &y) return true;
    if (x.kind != y.kind || x.items.size() != y.items.size() || !x.sized() ||
        x.kind == Sequence::Kind::values)
      return false;
    for (size_t i = 0; i < x.items.size(); ++i)
      if (x.indexed() ? !equal(session, x.items[i], y.items[i]) : !contains(session, b, x.items[i]))
        return false;
    return true;
  }
  if (a.dict() && b.dict()) {
    const Dict &x = *a.as<DictPtr>(), &y = *b.as<DictPtr>();
    if (&x == &y) return true;
    if (x.items.size() != y.items.size()) return false;
    for (const auto& [key, value] : x.items) {
      const Value* other = y.find(session, key);
      if (!other || !equal(session, value, *other)) return false;
    }
    return true;
  }
  if (a.is<SpacePtr>() && b.is<SpacePtr>()) return a.as<SpacePtr>() == b.as<SpacePtr>();
  if (a.is<LoopPtr>() && b.is<LoopPtr>()) return a.as<LoopPtr>() == b.as<LoopPtr>();
  return a.is<CallablePtr>() && b.is<CallablePtr>() && a.as<CallablePtr>() == b.as<CallablePtr>();
}

std::partial_ordering compare(Session& session, const Value& a, const Value& b) {
  session.step();
  for (const Value* v : {&a, &b})
    if (const auto* undefined = v->get_if<Undefined>()) fail_undefined(session, *undefined);
  if (a.number() && b.number()) return compare_numbers(a, b);
  if (a.text() && b.text()) return a.as<TextPtr>()->bytes <=> b.as<TextPtr>()->bytes;
  for (const auto kind : {Sequence::Kind::list, Sequence::Kind::tuple})
    if (listed(a, kind) && listed(b, kind)) {
      const std::vector<Value>&x = a.as<SequencePtr>()->items, &y = b.as<SequencePtr>()->items;
      for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
        if (!equal(session, x[i], y[i])) return compare(session, x[i], y[i]);
      return x.size() <=> y.size();
    }
  session.fail("{} and {} have no order", type_name(a), type_name(b));
}

bool contains(Session& session, const Value& container, const Value& item) {
  if (container.undefined()) return false;
  if (const auto* text = container.get_if<TextPtr>()) {
    if (const auto* undefined = item.get_if<Undefined>()) fail_undefined(session, *undefined);
    if (!item.text()) session.fail("in: expected a str on the left of a str, got {}", type_name(item));
    session.step(1 + (*text)->bytes.size() / 64);
    return (*text)->bytes.find(item.as<TextPtr>()->bytes) != std::string::npos;
  }
  if (const auto* dict = container.get_if<DictPtr>()) return (*dict)->find(session, item) != nullptr;
  if (const auto* s = container.get_if<SequencePtr>()) {
    size_t own = 0;
    size_t& at = (*s)->sized() ? own : (*s)->at;
    while (at < (*s)->items.size())
      if (equal(session, (*s)->items[at++], item)) return true;
    (*s)->check_end();
    return false;
  }
  session.fail("in: expected a str, list or mapping on the right, got {}", type_name(container));
}

bool iterable(const Value& v) {
  return v.undefined() || v.text() || v.dict() || v.is<SequencePtr>() || v.is<LoopPtr>();
}

std::vector<Value> iterate(Session& session, const Value& value) {
  std::vector<Value> items;
  const auto put = [&](Value item) {
    session.allocate(sizeof(Value));
    session.step();
    items.push_back(std::move(item));
  };
  if (const auto* s = value.get_if<SequencePtr>()) {
    size_t own = 0;
    size_t& at = (*s)->sized() ? own : (*s)->at;
    while (at < (*s)->items.size()) put((*s)->items[at++]);
    (*s)->check_end();
  } else if (const auto* d = value.get_if<DictPtr>()) {
    for (const auto& item : (*d)->items) put(item.first);
  } else if (const auto* t = value.get_if<TextPtr>()) {
    const size_t count = (*t)->length();
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      size_t end = at + 1;
      while (end < (*t)->bytes.size() && (static_cast<unsigned char>((*t)->bytes[end]) & 0xC0u) == 0x80u)
        ++end;
      TextBuilder out(session);
      out.add(**t, at, end);
      put(out.finish());
      at = end;
    }
  } else if (const auto* loop = value.get_if<LoopPtr>()) {
    while ((*loop)->next(session)) put((*loop)->current);
  } else if (!value.undefined()) {
    session.fail("expected something to iterate over, got {}", type_name(value));
  }
  return items;
}

int64_t length(Session& session, const Value& value) {
  if (value.undefined()) return 0;
  if (const auto* t = value.get_if<TextPtr>()) {
    session.step((*t)->ascii ? 0 : (*t)->bytes.size() / 64);
    return static_cast<int64_t>((*t)->length());
  }
  if (const auto* d = value.get_if<DictPtr>()) return static_cast<int64_t>((*d)->items.size());
  if (const auto* l = value.get_if<LoopPtr>()) return (*l)->length(session);
  if (const auto* s = value.get_if<SequencePtr>(); s && (*s)->sized())
    return static_cast<int64_t>((*s)->items.size());
  session.fail("length: expected a str, list or mapping, got {}", type_name(value));
}

int64_t integer_of(Session& session, const Value& value, const char* what) {
  if (const auto* undefined = value.get_if<Undefined>()) fail_undefined(session, *undefined);
  if (!value.integral()) session.fail("{}: expected an int, got {}", what, type_name(value));
  return value.integer();
}

const TextPtr& text_of(Session& session, const Value& value, const char* what) {
  if (const auto* undefined = value.get_if<Undefined>()) fail_undefined(session, *undefined);
  if (!value.text()) session.fail("{}: expected a str, got {}", what, type_name(value));
  return value.as<TextPtr>();
}

}  // namespace ltrain::chat
