// Keys of LoRA, with PEFT's names.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {
namespace {

std::string read_value(const Node& node, int64_t& v) {
  std::string wrong = read_integer(node, v);
  return wrong.empty() && (v < 1 || v > kMaxLoraRank) ? fmt::format("must be 1 to {}", kMaxLoraRank) : wrong;
}

std::string read_value(const Node& node, double& v) {
  std::string wrong = read_number(node, v);
  return wrong.empty() && v <= 0 ? "must be above 0.0" : wrong;
}

std::string write_value(int64_t v) { return std::to_string(v); }
std::string write_value(double v) { return write_number(v); }

/// Row of a map of modules to values of T.
template <class T>
Key pattern_key(std::string path, std::vector<std::pair<std::string, T>>& (*get)(Recipe&), std::string type,
                std::string example, std::string help) {
  Key key;
  key.path = std::move(path);
  key.type = std::move(type);
  key.help = std::move(help);
  key.set = [get, example](const Key&, Recipe& r, const Node& node) -> ValueError {
    if (node.kind != Node::map) return "needs a map of modules: " + example;
    std::vector<std::pair<std::string, T>> list;
    for (const Node::Entry& e : node.entries) {
      T value{};
      if (std::string wrong = read_value(e.value, value); !wrong.empty())
        return {fmt::format("{} {}", printable(e.key), wrong), e.value.place};
      for (const auto& [module, before] : list)
        if (module == e.key) return {fmt::format("has {} twice", printable(e.key)), e.place};
      list.emplace_back(e.key, value);
    }
    get(r) = std::move(list);
    return "";
  };
  key.write = [get](const Key&, const Recipe& r, bool json) {
    std::string s;
    for (const auto& [module, value] : get(const_cast<Recipe&>(r)))
      s += fmt::format("{}{}: {}", s.empty() ? "" : ", ", write_text(module, json), write_value(value));
    return "{" + s + "}";
  };
  return key;
}

/// Adds a key with a meaning only beside adapters.
void add_with_rank(std::vector<Key>& t, Key key) {
  key.when("lora.r above 0", true, [](const Recipe& r) { return r.model.lora.on(); });
  t.push_back(std::move(key));
}

/// Adds QLoRA, PiSSA, rsLoRA and DoRA.
void add_variant_keys(std::vector<Key>& t) {
  const auto with_rank = [&t](Key key) { add_with_rank(t, std::move(key)); };
  with_rank(
      choice<LoraBase>("lora.base", LT_MEMBER(model.lora.base),
                       {{"full", LoraBase::full}, {"nf4", LoraBase::nf4}}, {},
                       "Frozen matrices of linear layers. full: in the type of the matmuls. nf4: 4.5 bits "
                       "an element, in blocks of 64 as bitsandbytes has them (QLoRA, arXiv:2305.14314), "
                       "dequantised before each matmul.")
          .alias({"bnb_4bit_quant_type"}));
  with_rank(
      choice<LoraInit>("lora.init", LT_MEMBER(model.lora.init),
                       {{"zero", LoraInit::zero}, {"pissa", LoraInit::pissa}}, {},
                       "First values of adapters. zero: B is zero, so that the run begins with the model "
                       "itself. pissa: the largest singular vectors of the weights, which keep the rest "
                       "(arXiv:2404.02948).")
          .alias({"init_lora_weights"})
          .say({{"true", "zero"}}));
  with_rank(truth("lora.use_rslora", LT_MEMBER(model.lora.use_rslora),
                  "Adapters are multiplied by alpha / sqrt(r) instead (arXiv:2312.03732)."));
  with_rank(truth("lora.dora", LT_MEMBER(model.lora.dora),
                  "DoRA (arXiv:2402.09353): the rows of each adapted matrix have trained magnitudes, which "
                  "begin as the norms of its rows.")
                .alias({"use_dora"}));
}

}  // namespace

void add_lora_keys(std::vector<Key>& t) {
  t.push_back(
      integer("lora.r", LT_MEMBER(model.lora.rank),
              "Rank of the trained factors A and B of each adapted matrix. 0: no LoRA, all parameters train.")
          .between(0, kMaxLoraRank)
          .alias({"lora_r", "lora_rank"}));
  const auto with_rank = [&t](Key key) { add_with_rank(t, std::move(key)); };
  with_rank(number("lora.alpha", LT_MEMBER(model.lora.alpha),
                   "Adapters are multiplied by alpha / r. Twice the rank is usual.")
                .above(0)
                .alias({"lora_alpha"}));
  with_rank(
      number("lora.dropout", LT_MEMBER(model.lora.dropout), "Dropout of the inputs of adapters, in training.")
          .between(0, 0.999)
          .alias({"lora_dropout"}));
  add_variant_keys(t);
  with_rank(texts(
      "lora.target_modules", LT_MEMBER(model.lora.target_modules), "module", "[q_proj, v_proj]",
      "Linear layers with adapters: the last part of their names, patterns of whole names with * and ?, or "
      "all-linear for those of attention and feed-forward. Names and patterns stand for experts too, all of "
      "a "
      "layer (\"*.experts.*\"), and all-linear does not."));
  with_rank(pattern_key<int64_t>(
      "lora.rank_pattern", LT_MEMBER(model.lora.rank_pattern), "map of module to integer: 1 to 4096",
      "{q_proj: 8, down_proj: 32}",
      "Ranks of single modules instead of r. Modules are named as in target_modules; the first entry that "
      "names one counts."));
  with_rank(pattern_key<double>(
      "lora.alpha_pattern", LT_MEMBER(model.lora.alpha_pattern), "map of module to number: above 0.0",
      "{q_proj: 16, down_proj: 64}",
      "Alphas of single modules instead of alpha, as in rank_pattern. Adapters of a module are multiplied by "
      "its own alpha / its own rank."));
  with_rank(text("lora.adapter", LT_MEMBER(checkpoint.adapter),
                 "Folder of PEFT (adapter_config.json) whose adapters a fresh run begins with. null: B is "
                 "zero, so that "
                 "the run begins with the model itself.")
                .changes(Effect::nothing));
  with_rank(texts("lora.modules_to_save", LT_MEMBER(model.lora.modules_to_save), "module",
                  "[lm_head, embed_tokens]",
                  "Modules beside the adapters that train, whole; all others are frozen.")
                .derived("[score] for task: reward, else []", [](Recipe& r) {
                  if (r.task == Task::reward) r.model.lora.modules_to_save = {r.model.names().score};
                }));
}

}  // namespace ltrain::recipe
