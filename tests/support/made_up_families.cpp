#include "tests/support/made_up_families.h"

namespace ltrain::test {

const std::vector<Family>& made_up_families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> made;
    const auto add = [&](const char* name, const std::function<void(Family&)>& change) {
      Family f = family_of("llama");
      f.name = name;
      f.experts = Experts::never;
      change(f);
      made.push_back(f);
    };
    const auto gelu = [](Family& f) {
      f.traits.feed_forward = FeedForward::gelu;
      f.names.gate.clear();
    };
    const auto learned = [](Family& f) {
      f.traits.positions = PositionEmbedding::learned;
      f.names.positions = "model.embed_positions";
    };
    add("layer norm", [](Family& f) { f.traits.norm = NormKind::layer; });
    add("learned positions", learned);
    add("exact geglu", [](Family& f) { f.traits.feed_forward = FeedForward::geglu_erf; });
    add("exact gelu", [&](Family& f) {
      gelu(f);
      f.traits.feed_forward = FeedForward::gelu_erf;
    });
    add("biases of q, k and v", [](Family& f) { f.traits.qkv_bias = true; });
    add("bias of attention's output", [](Family& f) { f.traits.attention_output_bias = true; });
    add("fused q, k and v", [](Family& f) { f.names.fused_qkv = "qkv_proj"; });
    add("fused gate and up", [](Family& f) { f.names.fused_gate_up = "gate_up_proj"; });
    add("norms of heads", [](Family& f) { f.traits.query_key_norm = QueryKeyNorm::head; });
    add("norms of projections", [](Family& f) { f.traits.query_key_norm = QueryKeyNorm::projection; });
    add("clamped queries, keys and values", [](Family& f) {
      f.traits.query_key_norm = QueryKeyNorm::projection;
      f.clips_qkv = true;
    });
    add("norms after sublayers", [](Family& f) { f.traits.norm_placement = NormPlacement::after; });
    add("gelu", gelu);
    add("biases of the feed-forward", [](Family& f) { f.traits.feed_forward_bias = true; });
    add("norms before and after sublayers", [](Family& f) {
      f.traits.norm_placement = NormPlacement::both;
      f.names.attention_output_norm = "attention_output_norm";
      f.names.feed_forward_output_norm = "feed_forward_output_norm";
    });
    add("norms that scale by 1 + weight", [](Family& f) { f.traits.norm_scales_by_one_more = true; });
    add("norms of heads that scale by 1 + weight", [](Family& f) {
      f.traits.query_key_norm = QueryKeyNorm::head;
      f.traits.norm_scales_by_one_more = true;
    });
    add("norms of projections that scale by 1 + weight", [](Family& f) {
      f.traits.query_key_norm = QueryKeyNorm::projection;
      f.traits.norm_scales_by_one_more = true;
    });
    add("scaled embedding", [](Family& f) { f.traits.scaled_embedding = true; });
    add("geglu", [](Family& f) { f.traits.feed_forward = FeedForward::geglu; });
    add("clamped swiglu", [](Family& f) { f.traits.feed_forward = FeedForward::clamped_swiglu; });
    add("attention sinks", [](Family& f) {
      f.traits.attention_sinks = true;
      f.names.sinks = "sinks";
    });
    add("rotation of neighbours", [](Family& f) { f.traits.interleaved_rotation = true; });
    add("latent attention", [](Family& f) {
      const ParameterNames& n = family_of("deepseek_v2").names;
      f.traits.latent_attention = f.traits.interleaved_rotation = true;
      f.grouped_queries = false;
      f.names.query_down = n.query_down, f.names.query_latent_norm = n.query_latent_norm;
      f.names.query_up = n.query_up;
      f.names.key_value_down = n.key_value_down, f.names.key_value_latent_norm = n.key_value_latent_norm;
      f.names.key_value_up = n.key_value_up;
    });
    add("soft-caps", [](Family& f) { f.soft_caps = true; });
    add("all together", [&](Family& f) {
      gelu(f);
      learned(f);
      f.traits.norm = NormKind::layer;
      f.traits.norm_placement = NormPlacement::after;
      f.traits.qkv_bias = f.traits.attention_output_bias = f.traits.feed_forward_bias = true;
      f.traits.query_key_norm = QueryKeyNorm::projection;
      f.names.fused_qkv = "qkv_proj";
    });
    return made;
  }();
  return all;
}

}  // namespace ltrain::test
