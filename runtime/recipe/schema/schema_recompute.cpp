// Keys of recomputation.
#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "models/layers/recompute.h"
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {
namespace {

std::vector<std::string> tensor_names() {
  std::vector<std::string> names;
  for (int i = 0; i < kBlockTensors; ++i) names.emplace_back(block_tensor_name(static_cast<BlockTensor>(i)));
  return names;
}

std::optional<BlockTensor> block_tensor(const std::string& name) {
  for (int i = 0; i < kBlockTensors; ++i)
    if (const BlockTensor t = static_cast<BlockTensor>(i); block_tensor_name(t) == name) return t;
  return std::nullopt;
}

std::vector<std::string> module_names() {
  std::vector<std::string> names;
  for (const auto& [module, name] : EnumNames<RecomputeModule>::table) names.emplace_back(name);
  return names;
}

Key modules_key() {
  Key key;
  key.path = "recompute.modules";
  key.type = "list of " + join(module_names());
  key.help =
      "selective: parts of a layer to recompute. core_attn: attention without its projections. layernorm: "
      "both norms. mlp: up to the last projection. mlp_act: its activation. moe, moe_act: the same for "
      "experts, from their dispatched token rows.";
  key.aliases = {"recompute_modules"};
  key.set = [](const Key&, Recipe& r, const Node& node) -> std::string {
    if (node.kind != Node::list) return "needs a list: [core_attn, layernorm]";
    std::vector<RecomputeModule> list;
    for (const Node& item : node.items) {
      std::string name;
      if (std::string wrong = read_text(item, name); !wrong.empty()) return "module " + wrong;
      const std::optional<RecomputeModule> module = enum_value<RecomputeModule>(name);
      if (!module) return fmt::format("has {}: must be of {}", name, join(module_names()));
      list.push_back(*module);
    }
    r.recompute.modules = std::move(list);
    return "";
  };
  key.write = [](const Key&, const Recipe& r, bool json) {
    std::string s;
    for (RecomputeModule m : r.recompute.modules)
      s += (s.empty() ? "" : ", ") + write_text(std::string(to_string(m)), json);
    return "[" + s + "]";
  };
  return key;
}

Key tensors_key() {
  Key key;
  key.path = "recompute.tensors";
  key.type = "map of tensor to keep, recompute, offload, int8 or fp8";
  key.help =
      "selective: save policy of single tensors of a layer, which overrides modules: " +
      join(tensor_names()) +
      ". offload: to the target of offload.activations, which then moves only these tensors. int8, fp8: "
      "as codes of 8 bits, with a scale for each 128 channels.";
  key.set = [](const Key&, Recipe& r, const Node& node) -> std::string {
    if (node.kind != Node::map) return "needs a map: {mlp_norm: recompute, qkv: keep}";
    std::vector<std::pair<BlockTensor, SavePolicy>> list;
    for (const Node::Entry& e : node.entries) {
      const std::optional<BlockTensor> tensor = block_tensor(e.key);
      if (!tensor) return fmt::format("has {}: must be of {}", e.key, join(tensor_names()));
      std::string what;
      if (std::string wrong = read_text(e.value, what); !wrong.empty()) return e.key + " " + wrong;
      const std::optional<SavePolicy> save_policy = enum_value<SavePolicy>(what);
      if (!save_policy) return e.key + " must be keep, recompute, offload, int8 or fp8";
      list.emplace_back(*tensor, *save_policy);
    }
    r.recompute.tensors = std::move(list);
    return "";
  };
  key.write = [](const Key&, const Recipe& r, bool json) {
    std::string s;
    for (const auto& [tensor, save_policy] : r.recompute.tensors) {
      const std::string name(block_tensor_name(tensor));
      s += fmt::format("{}{}: {}", s.empty() ? "" : ", ", json ? write_text(name, true) : name,
                       write_text(std::string(to_string(save_policy)), json));
    }
    return "{" + s + "}";
  };
  return key;
}

}  // namespace

double read_bytes(const std::string& text) {
  char* end = nullptr;
  const double n = std::strtod(text.c_str(), &end);
  std::string unit(end);
  while (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  const double by = unit.empty()    ? 1
                    : unit == "KiB" ? 0x1p10
                    : unit == "MiB" ? 0x1p20
                    : unit == "GiB" ? 0x1p30
                                    : 0;
  return end == text.c_str() || by == 0 || !(n > 0) || !(n * by < 9e18) ? -1 : n * by;
}

void add_recompute_keys(std::vector<Key>& t) {
  const auto only = [](const char* when, Key key, std::function<bool(RecomputeGranularity)> f) {
    key.when(when, true, [f](const Recipe& r) { return f(r.recompute.granularity); });
    return key;
  };
  const auto full = [](RecomputeGranularity g) { return g == RecomputeGranularity::full; };
  const auto selective = [](RecomputeGranularity g) { return g == RecomputeGranularity::selective; };
  t.push_back(choice("recompute.granularity", LT_MEMBER(recompute.granularity), {},
                     "Activations that the backward recomputes. full: full layers from their input. "
                     "selective: parts of a layer. auto: the fastest policy within the budget.")
                  .alias({"recompute_granularity"}));
  t.push_back(only("recompute.granularity: full",
                   choice("recompute.method", LT_MEMBER(recompute.method), {},
                          "full: uniform saves the input of every num_layers layers. block recomputes the "
                          "first num_layers layers of a stage and saves the others.")
                       .alias({"recompute_method"}),
                   full));
  t.push_back(only(
      "recompute.granularity: full or selective",
      integer("recompute.num_layers", LT_MEMBER(recompute.num_layers),
              "uniform: layers between saved inputs (null: 1; sqrt: the square root of a stage's layers). "
              "block, selective: number of first layers of each stage to recompute (selective: null: all).")
          .or_word("sqrt", 0)
          .between(1, 10000)
          .alias({"recompute_num_layers"}),
      [full, selective](RecomputeGranularity g) { return full(g) || selective(g); }));
  t.push_back(only("recompute.granularity: selective", modules_key(), selective));
  t.push_back(only("recompute.granularity: selective", tensors_key(), selective));
  Key budget = text("recompute.budget", LT_MEMBER(recompute.budget),
                    "auto: total memory that a rank may use, such as 12 GiB; null: its share of the host's "
                    "memory, or the card's.");
  const auto read = budget.set;
  budget.set = [read](const Key& k, Recipe& r, const Node& node) -> ValueError {
    if (ValueError wrong = read(k, r, node); !wrong.empty()) return wrong;
    if (r.recompute.budget && read_bytes(*r.recompute.budget) < 0)
      return "needs a size above 0, in bytes, KiB, MiB or GiB: 12 GiB";
    return "";
  };
  t.push_back(only("recompute.granularity: auto", std::move(budget),
                   [](RecomputeGranularity g) { return g == RecomputeGranularity::automatic; }));
}

}  // namespace ltrain::recipe
