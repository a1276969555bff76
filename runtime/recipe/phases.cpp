// `precision` as a list: one precision per phase of a run.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain {

bool computes_in(const Recipe& r, Precision p) {
  if (r.phases.empty()) return r.precision == p;
  for (const PrecisionScheduleEntry& phase : r.phases)
    if (phase.precision == p) return true;
  return false;
}

Precision precision_at(const Recipe& r, int64_t step) {
  for (const PrecisionScheduleEntry& phase : r.phases)
    if (phase.until_step == 0 || step <= phase.until_step) return phase.precision;
  return r.precision;
}

std::string precision_text(const Recipe& r) {
  std::string text;
  for (const PrecisionScheduleEntry& p : r.phases)
    text += fmt::format("{}{}{}", text.empty() ? "" : ", then ", to_string(p.precision),
                        p.until_step > 0 ? fmt::format(" until step {}", p.until_step) : "");
  return text.empty() ? std::string(to_string(r.precision)) : text;
}

namespace recipe {
namespace {

/// Storage precision, in which all phases must agree.
Precision storage(Precision p) {
  return p == Precision::fp8 ? Precision::bf16 : p == Precision::tf32 ? Precision::fp32 : p;
}

ValueError read_precision_schedule(const Key& key,
                                   const std::function<ValueError(const Key&, Recipe&, const Node&)>& one,
                                   const Node& node, std::vector<PrecisionScheduleEntry>& phases) {
  if (node.items.empty()) return "needs a phase: [{until_step: 100, precision: fp8}, {precision: bf16}]";
  for (size_t i = 0; i < node.items.size(); ++i) {
    const Node& item = node.items[i];
    const std::string name = fmt::format("phase {}", i + 1);
    if (item.kind != Node::map) return {name + " needs a map: {until_step: 100, precision: fp8}", item.place};
    PrecisionScheduleEntry phase;
    bool given = false;
    for (const Node::Entry& e : item.entries) {
      if (e.key == "until_step") {
        if (std::string wrong = read_integer(e.value, phase.until_step); !wrong.empty())
          return {name + ": until_step " + wrong, e.value.place};
        const int64_t last = phases.empty() ? 0 : phases.back().until_step;
        if (phase.until_step <= last)
          return {fmt::format("{}: until_step = {} must be above {}, where the phase before ends", name,
                              phase.until_step, last),
                  e.value.place};
      } else if (e.key == "precision") {
        Recipe read;
        if (e.value.kind != Node::scalar)
          return {name + ": precision must be one of the choices", e.value.place};
        if (ValueError wrong = one(key, read, e.value); !wrong.empty())
          return {fmt::format("{}: precision = {}: {}", name, e.value.text, wrong.text), e.value.place};
        phase.precision = read.precision;
        given = true;
      } else {
        return {fmt::format("{} has an unknown key, {}; a phase has until_step, precision", name, e.key),
                e.place};
      }
    }
    if (!given) return {name + " needs a precision", item.place};
    const bool last = i + 1 == node.items.size();
    if (last && phase.until_step > 0)
      return {fmt::format("{} is the last and has no until_step: it lasts to the end", name), item.place};
    if (!last && phase.until_step == 0)
      return {name + " needs until_step: only the last phase has none", item.place};
    if (!phases.empty() && storage(phase.precision) != storage(phases[0].precision))
      return {
          fmt::format("{}: {} stores other weights than {}; a run changes between fp8 and bf16, or between "
                      "tf32 and fp32",
                      name, to_string(phase.precision), to_string(phases[0].precision)),
          item.place};
    phases.push_back(phase);
  }
  return "";
}

}  // namespace

Key with_precision_schedule(Key key) {
  key.type = "choice, or list of {until_step, precision}";
  const auto set = key.set;
  const auto write = key.write;
  key.set = [set](const Key& k, Recipe& r, const Node& node) -> ValueError {
    if (node.kind != Node::list) {
      r.phases.clear();
      return set(k, r, node);
    }
    std::vector<PrecisionScheduleEntry> phases;
    if (ValueError wrong = read_precision_schedule(k, set, node, phases); !wrong.empty()) return wrong;
    r.precision = phases.front().precision;
    if (phases.size() == 1) phases.clear();
    r.phases = std::move(phases);
    return "";
  };
  key.write = [write](const Key& k, const Recipe& r, bool json) {
    if (r.phases.empty()) return write(k, r, json);
    std::string s;
    const auto name = [&](const char* n) { return json ? fmt::format("\"{}\"", n) : std::string(n); };
    for (const PrecisionScheduleEntry& p : r.phases) {
      s += s.empty() ? "{" : ", {";
      if (p.until_step > 0) s += fmt::format("{}: {}, ", name("until_step"), p.until_step);
      s += fmt::format("{}: {}}}", name("precision"), write_text(std::string(to_string(p.precision)), json));
    }
    return "[" + s + "]";
  };
  return key;
}

}  // namespace recipe
}  // namespace ltrain
