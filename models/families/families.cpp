#include "base/error.h"
#include "models/families/family.h"

/// Every family of this build: NAME.cpp defines NAME_family().
#define LT_FAMILIES(family)                                                                            \
  family(gpt2) family(llama) family(mistral) family(qwen2) family(qwen3) family(olmo2) family(smollm3) \
      family(phi3) family(mixtral) family(qwen3_moe) family(olmoe) family(gemma2) family(gemma3_text)  \
          family(gpt_oss) family(deepseek_v2) family(deepseek_v3)

namespace ltrain {

#define LT_DECLARE_FAMILY(name) Family name##_family();
LT_FAMILIES(LT_DECLARE_FAMILY)
#undef LT_DECLARE_FAMILY

namespace {

/// What a family must say for layers and recipes to be able to obey it.
const Family& checked(const Family& f) {
  const ModelTraits& t = f.traits;
  LT_CHECK(!f.name.empty() && f.hf_keys, "a family without a name, or keys of a config.json");
  LT_CHECK((t.positions == PositionEmbedding::learned) == !f.names.positions.empty(),
           "{}: a name for positions goes with learned positions", f.name);
  LT_CHECK(has_gate(t.feed_forward) == !f.names.gate.empty(),
           "{}: a name for the gate goes with a feed-forward that has one", f.name);
  LT_CHECK(f.names.fused_gate_up.empty() || !f.names.gate.empty(),
           "{}: gate and up in one tensor, and no gate", f.name);
  LT_CHECK(f.experts == Experts::never || has_gate(t.feed_forward), "{}: experts have a gate", f.name);
  LT_CHECK(t.latent_attention == !f.names.key_value_down.empty(),
           "{}: names for latents go with latent attention", f.name);
  LT_CHECK(!t.latent_attention || (!t.qkv_bias && !t.attention_output_bias && !t.attention_sinks &&
                                   t.query_key_norm == QueryKeyNorm::none && !f.grouped_queries),
           "{}: biases, sinks, norms or groups of heads beside latent attention", f.name);
  LT_CHECK(t.multi_token_prediction == !f.names.mtp_projection.empty(),
           "{}: names of its modules go with multi-token prediction", f.name);
  LT_CHECK(!t.multi_token_prediction || (t.positions == PositionEmbedding::rotary && !t.scaled_embedding &&
                                         f.windows == WindowLayers::none && !f.layers_without_positions),
           "{}: multi-token prediction with layers that differ", f.name);
  LT_CHECK(t.attention_sinks == !f.names.sinks.empty(), "{}: a name for sinks goes with sinks", f.name);
  LT_CHECK((f.defaults.no_rope_layer_interval == 0) || f.layers_without_positions,
           "{}: layers without positions that a recipe cannot name", f.name);
  LT_CHECK((f.experts == Experts::always) == (f.defaults.num_experts > 0),
           "{}: defaults.num_experts goes with Experts::always", f.name);
  LT_CHECK((t.norm_placement == NormPlacement::both) == !f.names.attention_output_norm.empty() &&
               f.names.attention_output_norm.empty() == f.names.feed_forward_output_norm.empty(),
           "{}: names for norms after sublayers go with norms before and after", f.name);
  LT_CHECK(f.soft_caps || (!f.defaults.attn_logit_softcapping && !f.defaults.final_logit_softcapping),
           "{}: soft-caps that a recipe cannot name", f.name);
  LT_CHECK((f.windows == WindowLayers::but_every_nth) == (f.defaults.full_attention_interval > 0),
           "{}: defaults.full_attention_interval goes with WindowLayers::but_every_nth", f.name);
  LT_CHECK(f.local_rotation == (f.defaults.rope_local_base_freq > 0),
           "{}: defaults.rope_local_base_freq goes with local_rotation", f.name);
  return f;
}

}  // namespace

const std::vector<const Family*>& families() {
  static const std::vector<const Family*> all = [] {
    std::vector<const Family*> list;
#define LT_LIST_FAMILY(name)                           \
  static const Family name##_listed = name##_family(); \
  list.push_back(&checked(name##_listed));
    LT_FAMILIES(LT_LIST_FAMILY)
#undef LT_LIST_FAMILY
    return list;
  }();
  return all;
}

const Family* find_family(std::string_view name) {
  for (const Family* f : families())
    if (f->name == name) return f;
  return nullptr;
}

const Family& family_of(std::string_view name) {
  const Family* f = find_family(name);
  LT_CHECK(f, "no family of models is called {}", name);
  return *f;
}

std::vector<std::string> family_names(const std::function<bool(const Family&)>& which) {
  std::vector<std::string> names;
  for (const Family* f : families())
    if (which(*f)) names.push_back(f->name);
  return names;
}

int64_t Family::default_intermediate_size(int64_t h) const {
  return !has_gate(traits.feed_forward) ? 4 * h : ((8 * h + 2) / 3 + 255) / 256 * 256;
}

}  // namespace ltrain
