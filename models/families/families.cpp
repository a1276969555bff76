#include "base/error.h"
#include "models/families/family.h"

/// All families of this build: NAME.cpp defines NAME_family().
#define LT_FAMILIES(family)                                                                            \
  family(gpt2) family(llama) family(mistral) family(qwen2) family(qwen3) family(olmo2) family(smollm3) \
      family(phi3) family(mixtral) family(qwen3_moe) family(olmoe) family(gemma2) family(gemma3_text)  \
          family(gpt_oss) family(deepseek_v2) family(deepseek_v3)

namespace ltrain {

#define LT_DECLARE_FAMILY(name) Family name##_family();
LT_FAMILIES(LT_DECLARE_FAMILY)
#undef LT_DECLARE_FAMILY

namespace {

/// Checks that a family is consistent, so that layers and recipes can obey it.
const Family& checked(const Family& f) {
  const ModelTraits& t = f.traits;
  LT_CHECK(!f.name.empty() && f.hf_keys,
           "expected a family with a name and keys of a config.json, got name \"{}\"", f.name);
  LT_CHECK((t.positions == PositionEmbedding::learned) == !f.names.positions.empty(),
           "{}: expected a name for positions exactly with learned positions, got \"{}\"", f.name,
           f.names.positions);
  LT_CHECK(has_gate(t.feed_forward) == !f.names.gate.empty(),
           "{}: expected a name for the gate exactly with a gated feed-forward, got \"{}\"", f.name,
           f.names.gate);
  LT_CHECK(f.names.fused_gate_up.empty() || !f.names.gate.empty(),
           "{}: expected a gate with gate and up in one tensor, got none", f.name);
  LT_CHECK(f.experts == Experts::never || has_gate(t.feed_forward),
           "{}: expected a gated feed-forward with experts, got one without a gate", f.name);
  LT_CHECK(t.latent_attention == !f.names.key_value_down.empty(),
           "{}: expected names for latents exactly with latent attention, got \"{}\"", f.name,
           f.names.key_value_down);
  LT_CHECK(!t.latent_attention ||
               (!t.qkv_bias && !t.attention_output_bias && !f.attention_biases && !t.attention_sinks &&
                t.query_key_norm == QueryKeyNorm::none && !f.grouped_queries),
           "{}: expected latent attention without biases, sinks, norms or grouped heads, got one of them",
           f.name);
  LT_CHECK(t.multi_token_prediction == !f.names.mtp_projection.empty(),
           "{}: expected names of modules exactly with multi-token prediction, got \"{}\"", f.name,
           f.names.mtp_projection);
  LT_CHECK(!t.multi_token_prediction || (t.positions == PositionEmbedding::rotary && !t.scaled_embedding &&
                                         f.windows == WindowLayers::none && !f.layers_without_positions),
           "{}: expected equal rotary layers with multi-token prediction, got other ones", f.name);
  LT_CHECK(t.attention_sinks == !f.names.sinks.empty(),
           "{}: expected a name for sinks exactly with sinks, got \"{}\"", f.name, f.names.sinks);
  LT_CHECK((f.defaults.no_rope_layer_interval == 0) || f.layers_without_positions,
           "{}: expected layers_without_positions with defaults.no_rope_layer_interval {}, got false", f.name,
           f.defaults.no_rope_layer_interval);
  LT_CHECK((f.experts == Experts::always) == (f.defaults.num_experts > 0),
           "{}: expected defaults.num_experts above 0 exactly with Experts::always, got {}", f.name,
           f.defaults.num_experts);
  LT_CHECK(
      (t.norm_placement == NormPlacement::both) == !f.names.attention_output_norm.empty() &&
          f.names.attention_output_norm.empty() == f.names.feed_forward_output_norm.empty(),
      "{}: expected names for norms after sublayers exactly with NormPlacement::both, got \"{}\" and \"{}\"",
      f.name, f.names.attention_output_norm, f.names.feed_forward_output_norm);
  LT_CHECK(!f.clips_qkv || t.query_key_norm != QueryKeyNorm::none,
           "{}: expected norms of queries and keys with clips_qkv, got none", f.name);
  LT_CHECK(f.soft_caps || (!f.defaults.attn_logit_softcapping && !f.defaults.final_logit_softcapping),
           "{}: expected soft_caps with defaults for soft-caps, got false", f.name);
  LT_CHECK((f.windows == WindowLayers::but_every_nth) == (f.defaults.full_attention_interval > 0),
           "{}: expected defaults.full_attention_interval above 0 exactly with WindowLayers::but_every_nth, "
           "got {}",
           f.name, f.defaults.full_attention_interval);
  LT_CHECK(f.local_rotation == (f.defaults.rope_local_base_freq > 0),
           "{}: expected defaults.rope_local_base_freq above 0 exactly with local_rotation, got {}", f.name,
           f.defaults.rope_local_base_freq);
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

std::string dense_families(const Family& moe) {
  std::string names;
  for (const Family* f : families())
    if (f->experts != Experts::always && f->traits == moe.traits)
      names += (names.empty() ? "" : ", ") + f->name;
  return names;
}

const Family& family_of(std::string_view name) {
  const Family* f = find_family(name);
  LT_CHECK(f, "expected the name of a family of models, got {}", name);
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
