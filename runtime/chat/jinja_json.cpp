// Values of a template engine as text: str(), repr() and json.dumps; and from JSON.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/chat/jinja_ast.h"
#include "runtime/chat/jinja_value.h"

namespace ltrain::chat {
namespace {

constexpr std::string_view kRole = "role";

Value from_json_at(Session& session, const nlohmann::ordered_json& json, bool data, int levels) {
  if (levels > kMaxJinjaDataDepth) session.fail("JSON is nested deeper than {} levels", kMaxJinjaDataDepth);
  session.step();
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    session.fail("JSON: {} is larger than 2^63 - 1", json.get<uint64_t>());
  if (json.is_number()) return json.get<int64_t>();
  const auto text = [&](const std::string& s) {
    if (valid_utf8(s) != s.size()) session.fail("JSON: a text is not UTF-8");
    return make_text(session, s, {.data = data});
  };
  if (json.is_string()) return text(json.get_ref<const std::string&>());
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(from_json_at(session, item, data, levels + 1));
    return make_sequence(session, std::move(items));
  }
  if (!json.is_object()) session.fail("JSON: a value of an unknown type");
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, item] : json.items())
    items.emplace_back(text(key), from_json_at(session, item, data, levels + 1));
  return make_dict(session, std::move(items));
}

}  // namespace

Value from_json(Session& session, const nlohmann::ordered_json& json, bool data) {
  return from_json_at(session, json, data, 1);
}

Value messages_from_json(Session& session, const nlohmann::ordered_json& json) {
  if (!json.is_array()) return from_json(session, json, true);
  std::vector<Value> messages;
  for (const auto& message : json) {
    if (!message.is_object()) {
      messages.push_back(from_json(session, message, true));
      continue;
    }
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [key, item] : message.items())
      items.emplace_back(make_text(session, key), from_json_at(session, item, key != kRole, 3));
    messages.push_back(make_dict(session, std::move(items)));
  }
  return make_sequence(session, std::move(messages));
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[64];
  const auto scientific = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific);
  const std::string text(digits, scientific.ptr);
  const int exponent = std::atoi(text.c_str() + text.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return text;
  const auto fixed = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed);
  std::string plain(digits, fixed.ptr);
  return plain.find('.') == std::string::npos ? plain + ".0" : plain;
}

void add_text(Session& session, const Value& value, TextBuilder& out) {
  if (const auto* text = value.get_if<TextPtr>())
    out.add(**text);
  else if (!value.undefined())
    add_repr(session, value, out);
}

TextPtr to_text(Session& session, const Value& value) {
  if (value.text()) return value.as<TextPtr>();
  TextBuilder out(session);
  add_text(session, value, out);
  return out.finish();
}

namespace {

void add_items(Session& session, const std::vector<Value>& items, TextBuilder& out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.add(", ");
    add_repr(session, items[i], out);
  }
}

void add_sequence(Session& session, const Sequence& s, TextBuilder& out) {
  switch (s.kind) {
    case Sequence::Kind::range:
      out.add(s.by == 1 ? fmt::format("range({}, {})", s.start, s.stop)
                        : fmt::format("range({}, {}, {})", s.start, s.stop, s.by));
      return;
    case Sequence::Kind::iterator:
      session.fail("an iterator has no text; the filter list or join gives it one");
    case Sequence::Kind::tuple:
      out.add("(");
      add_items(session, s.items, out);
      return out.add(s.items.size() == 1 ? ",)" : ")");
    case Sequence::Kind::list:
      out.add("[");
      break;
    case Sequence::Kind::keys:
      out.add("dict_keys([");
      break;
    case Sequence::Kind::values:
      out.add("dict_values([");
      break;
    case Sequence::Kind::items:
      out.add("dict_items([");
      break;
  }
  add_items(session, s.items, out);
  out.add(s.kind == Sequence::Kind::list ? "]" : "])");
}

}  // namespace

void add_repr(Session& session, const Value& value, TextBuilder& out) {
  const Deeper deeper(session);
  session.step();
  if (value.undefined()) return out.add("Undefined");
  if (value.is<None>()) return out.add("None");
  if (value.is<bool>()) return out.add(value.as<bool>() ? "True" : "False");
  if (value.is<int64_t>()) return out.add(std::to_string(value.as<int64_t>()));
  if (value.is<double>()) return out.add(float_repr(value.as<double>()));
  if (value.text()) return add_repr(*value.as<TextPtr>(), out);
  if (value.is<SequencePtr>()) return add_sequence(session, *value.as<SequencePtr>(), out);
  if (value.dict()) {
    out.add("{");
    bool first = true;
    for (const auto& [key, item] : value.as<DictPtr>()->items) {
      if (!first) out.add(", ");
      first = false;
      add_repr(session, key, out);
      out.add(": ");
      add_repr(session, item, out);
    }
    return out.add("}");
  }
  if (value.is<SpacePtr>()) {
    out.add("<Namespace {");
    bool first = true;
    for (const auto& [key, item] : value.as<SpacePtr>()->items) {
      if (!first) out.add(", ");
      first = false;
      add_repr(*make_text(session, key), out);
      out.add(": ");
      add_repr(session, item, out);
    }
    return out.add("}>");
  }
  if (value.is<LoopPtr>()) {
    Loop& loop = *value.as<LoopPtr>();
    return out.add(fmt::format("<LoopContext {}/{}>", loop.index0 + 1, loop.length(session)));
  }
  const auto* callable = value.get_if<CallablePtr>();
  if (!callable || !(*callable)->macro) session.fail("a {} has no text", type_name(value));
  out.add("<Macro ");
  add_repr(*(*callable)->name, out);
  out.add(">");
}

namespace {

/// Writes json.dumps of a value.
class JsonWriter {
 public:
  JsonWriter(Session& session, const JsonStyle& style, TextBuilder& out)
      : session_(session), style_(style), out_(out) {
    item_ = style.item_separator ? style.item_separator : make_text(session, style.indent ? "," : ", ");
    key_ = style.key_separator ? style.key_separator : make_text(session, ": ");
  }

  void write(const Value& value, int level) {
    const Deeper deeper(session_);
    session_.step();
    if (value.text()) return add_json(*value.as<TextPtr>(), style_.ensure_ascii, out_);
    if (value.is<None>() || value.number()) return out_.add(scalar(value));
    if (const auto* s = value.get_if<SequencePtr>();
        s && ((*s)->kind == Sequence::Kind::list || (*s)->kind == Sequence::Kind::tuple))
      return write_list((*s)->items, level);
    if (value.dict()) return write_dict(*value.as<DictPtr>(), level);
    if (const auto* undefined = value.get_if<Undefined>()) fail_undefined(session_, *undefined);
    session_.fail("tojson: a {} has no form in JSON", type_name(value));
  }

 private:
  static std::string scalar(const Value& value) {
    if (value.is<None>()) return "null";
    if (value.is<bool>()) return value.as<bool>() ? "true" : "false";
    if (value.is<int64_t>()) return std::to_string(value.as<int64_t>());
    const double d = value.as<double>();
    return std::isnan(d) ? "NaN" : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : float_repr(d);
  }

  void line(int level) {
    if (!style_.indent) return;
    out_.add("\n");
    for (int i = 0; i < level; ++i) out_.add(*style_.indent);
  }

  void write_list(const std::vector<Value>& items, int level) {
    if (items.empty()) return out_.add("[]");
    out_.add("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.add(*item_);
      line(level + 1);
      write(items[i], level + 1);
    }
    line(level);
    out_.add("]");
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.items.empty()) return out_.add("{}");
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys)
      std::stable_sort(items.begin(), items.end(),
                       [&](auto* a, auto* b) { return compare(session_, a->first, b->first) < 0; });
    out_.add("{");
    bool first = true;
    for (const auto* item : items) {
      if (!first) out_.add(*item_);
      first = false;
      line(level + 1);
      const Value& key = item->first;
      if (!key.text() && !key.is<None>() && !key.number())
        session_.fail("tojson: a key of type {}; expected str, int, float, bool or None", type_name(key));
      add_json(key.text() ? *key.as<TextPtr>() : *make_text(session_, scalar(key)), style_.ensure_ascii,
               out_);
      out_.add(*key_);
      write(item->second, level + 1);
    }
    line(level);
    out_.add("}");
  }

  Session& session_;
  const JsonStyle& style_;
  TextBuilder& out_;
  TextPtr item_, key_;
};

}  // namespace

TextPtr to_json(Session& session, const Value& value, const JsonStyle& style) {
  TextBuilder out(session);
  JsonWriter(session, style, out).write(value, 0);
  return out.finish();
}

}  // namespace ltrain::chat
