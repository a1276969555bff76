#include "runtime/recipe/schema/where_value.h"

#include <algorithm>

#include "base/printable.h"
#include "runtime/recipe/schema/key_makers.h"

namespace ltrain::recipe {
namespace {

constexpr size_t kMostConditions = 32, kMostValues = 1024;

ValueError read_bounds(const Node& node, data::FieldCondition& out) {
  for (const Node::Entry& e : node.entries) {
    std::optional<double>* bound = e.key == "min" ? &out.min : e.key == "max" ? &out.max : nullptr;
    if (!bound)
      return {fmt::format("has an unknown key `{}`; bounds are min, max", printable(e.key, 60)), e.place};
    if (*bound) return {fmt::format("has `{}` twice", e.key), e.place};
    double value = 0;
    if (std::string wrong = read_number(e.value, value); !wrong.empty())
      return {e.key + " " + wrong, e.value.place};
    *bound = value;
  }
  if (!out.min && !out.max) return {"needs min or max", node.place};
  if (out.min && out.max && *out.min > *out.max)
    return {fmt::format("has min {} above max {}, which no number meets", *out.min, *out.max), node.place};
  return "";
}

ValueError read_values(const Node& node, data::FieldCondition& out) {
  if (node.kind == Node::map) return read_bounds(node, out);
  const bool one = node.kind == Node::scalar;
  if (one) out.values.push_back(node.text);
  if (!one && (node.items.empty() || node.items.size() > kMostValues))
    return {fmt::format("needs a value, a list of 1 to {} values, or {{min: A, max: B}}", kMostValues),
            node.place};
  for (const Node& item : node.items) {
    if (item.kind != Node::scalar) return {"needs values that are texts or numbers", item.place};
    out.values.push_back(item.text);
  }
  return "";
}

}  // namespace

ValueError read_where(const Node& node, data::RecordFilter& out) {
  if (node.kind != Node::map || node.entries.empty() || node.entries.size() > kMostConditions)
    return {fmt::format("needs 1 to {} fields with values: {{language: en}}, {{language: [en, de]}}, or "
                        "{{score: {{min: 0.5}}}}",
                        kMostConditions),
            node.place};
  for (const Node::Entry& e : node.entries) {
    data::FieldCondition condition;
    condition.field = e.key;
    const auto same = [&](const data::FieldCondition& c) { return c.field == e.key; };
    if (e.key.empty()) return {"has a field without a name", e.place};
    if (std::any_of(out.begin(), out.end(), same))
      return {fmt::format("has the field `{}` twice", printable(e.key, 60)), e.place};
    if (ValueError wrong = read_values(e.value, condition); !wrong.empty())
      return {printable(e.key, 60) + " " + wrong.text, wrong.place};
    out.push_back(std::move(condition));
  }
  return "";
}

std::string write_where(const data::RecordFilter& where, bool json) {
  const auto name = [&](const std::string& text) { return write_text(text, json); };
  std::string all;
  for (const data::FieldCondition& c : where) {
    std::string one;
    for (const std::string& value : c.values) one += (one.empty() ? "[" : ", ") + name(value);
    if (!c.values.empty()) one += "]";
    if (c.min) one += fmt::format("{{{}: {}", name("min"), write_number(*c.min));
    if (c.max) one += fmt::format("{}{}: {}", c.min ? ", " : "{", name("max"), write_number(*c.max));
    if (c.min || c.max) one += "}";
    all += fmt::format("{}{}: {}", all.empty() ? "" : ", ", name(c.field), one);
  }
  return "{" + all + "}";
}

}  // namespace ltrain::recipe
