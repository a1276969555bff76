#include "models/families/hf_tensors.h"

#include <charconv>

namespace ltrain {
namespace {

/// A name in ltrain and the matching one in Hugging Face's files. For experts, `hf` is the part before the
/// number and `hf_end` the part after it.
struct Row {
  std::string ours, hf, hf_end;
  bool transposed = false;
  int64_t matrix = -1;  ///< 0 or above: matrix of an expert
  bool stacked = false;
};

struct Rows {
  std::vector<Row> model, layer;  ///< layer: without "model.layers.3."
};

/// Rows of a family, part by part in the order of the tensors.
class RowsOf {
 public:
  explicit RowsOf(const Family& family) : f(family) {}

  Rows all_rows() {
    add_model();
    add_attention();
    if (t.multi_token_prediction) add_prediction();
    add_feed_forward();
    if (f.experts == Experts::always) add_experts();
    return std::move(all);
  }

 private:
  static void same(std::vector<Row>& to, const std::string& name, bool transposed = false) {
    to.push_back({name, name, "", transposed});
  }
  void norm(std::vector<Row>& to, const std::string& name) const {
    same(to, name + ".weight");
    if (t.norm == NormKind::layer) same(to, name + ".bias");
  }
  void linear(const std::string& name, bool bias) {
    same(all.layer, name + ".weight", f.hf_layout.transposed_linear);
    if (bias) same(all.layer, name + ".bias");
  }

  void add_model() {
    same(all.model, n.tokens + ".weight");
    if (t.positions == PositionEmbedding::learned) same(all.model, n.positions + ".weight");
    norm(all.model, n.final_norm);
    same(all.model, n.output + ".weight");
    same(all.model, n.score + ".weight");
  }

  void add_attention() {
    norm(all.layer, n.attention_norm);
    if (t.norm_placement == NormPlacement::both)
      for (const std::string& name : {n.attention_output_norm, n.feed_forward_output_norm})
        norm(all.layer, name);
    const std::string attention = n.attention + ".";
    const bool qkv_bias = t.qkv_bias || f.attention_biases,
               output_bias = t.attention_output_bias || f.attention_biases;
    if (t.latent_attention)
      for (const std::string& name : {n.query, n.query_down, n.query_latent_norm, n.query_up,
                                      n.key_value_down, n.key_value_latent_norm, n.key_value_up})
        linear(attention + name, false);
    else if (n.fused_qkv.empty())
      for (const std::string& name : {n.query, n.key, n.value}) linear(attention + name, qkv_bias);
    else
      linear(attention + n.fused_qkv, qkv_bias);
    linear(attention + n.attention_output, output_bias);
    if (t.attention_sinks) same(all.layer, attention + n.sinks);
    if (t.query_key_norm != QueryKeyNorm::none)
      for (const std::string& name : {n.query_norm, n.key_norm})
        same(all.layer, attention + name + ".weight");
  }

  /// Rows of the modules that predict further tokens.
  void add_prediction() {
    for (const std::string& name : {n.mtp_embedding_norm, n.mtp_hidden_norm, n.mtp_output_norm})
      norm(all.layer, name);
    linear(n.mtp_projection, false);
  }

  void add_feed_forward() {
    norm(all.layer, n.feed_forward_norm);
    const std::string mlp = n.feed_forward + ".";
    if (!n.fused_gate_up.empty()) {
      linear(mlp + n.fused_gate_up, t.feed_forward_bias);
    } else {
      if (!n.gate.empty()) linear(mlp + n.gate, t.feed_forward_bias);
      linear(mlp + n.up, t.feed_forward_bias);
    }
    linear(mlp + n.down, t.feed_forward_bias);
  }

  void add_experts() {
    const std::string moe = n.moe + ".", experts = moe + "experts.";
    same(all.layer, moe + n.router + ".weight");
    if (t.router_bias) same(all.layer, moe + n.router + ".bias");
    if (t.correction_bias) same(all.layer, n.correction_bias());
    if (f.defaults.shared_experts > 0)
      for (const std::string& name : {n.gate, n.up, n.down})
        linear(moe + n.shared_experts + "." + name, t.feed_forward_bias);
    if (f.hf_layout.stacked_experts) {
      const auto stack = [&](const char* name, bool transposed) {
        all.layer.push_back({experts + name, experts + name, "", transposed, -1, true});
      };
      stack("gate_up_proj", true);
      stack("down_proj", true);
      if (!t.expert_bias) return;
      stack("gate_up_proj_bias", false);
      same(all.layer, experts + "down_proj_bias");
      return;
    }
    const auto expert = [&](const char* ours, const std::string& hf, int64_t matrix) {
      all.layer.push_back(
          {experts + ours, experts, "." + hf + ".weight", f.hf_layout.transposed_linear, matrix});
    };
    expert("gate_up_proj", f.hf_layout.expert_gate, 0);
    expert("gate_up_proj", f.hf_layout.expert_up, 1);
    expert("down_proj", f.hf_layout.expert_down, 0);
  }

  const Family& f;
  const ModelTraits& t = f.traits;
  const ParameterNames& n = f.names;
  Rows all;
};

Rows rows_of(const Family& f) { return RowsOf(f).all_rows(); }

/// Parses the number at the front of `text` and moves `text` past it; -1: none.
int64_t take_number(std::string_view& text) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const size_t digits = static_cast<size_t>(end - text.data());
  if (error != std::errc() || number < 0 || digits != std::to_string(number).size()) return -1;
  text.remove_prefix(digits);
  return number;
}

/// Splits a name into "model.layers.3.", or nothing, and the rest.
std::pair<std::string, std::string> split_layer(const Family& f, const std::string& name) {
  const std::string prefix = f.names.layers + ".";
  if (!name.starts_with(prefix)) return {"", name};
  std::string_view rest = std::string_view(name).substr(prefix.size());
  if (take_number(rest) < 0 || !rest.starts_with(".")) return {"", name};
  rest.remove_prefix(1);
  return {name.substr(0, name.size() - rest.size()), std::string(rest)};
}

}  // namespace

std::vector<TensorName> hf_tensors(const Family& f, const std::string& name, int64_t experts) {
  const Rows rows = rows_of(f);
  const auto [layer, rest] = split_layer(f, name);
  std::vector<TensorName> found;
  for (const Row& r : layer.empty() ? rows.model : rows.layer) {
    if (r.ours != rest) continue;
    if (r.matrix < 0) return {{layer + r.hf, r.transposed, r.stacked}};
    for (int64_t e = 0; e < experts; ++e)
      found.push_back({layer + r.hf + std::to_string(e) + r.hf_end, r.transposed, false, e, r.matrix});
  }
  return found;
}

std::optional<TensorName> ltrain_tensor(const Family& f, const std::string& name) {
  const Rows rows = rows_of(f);
  const auto [layer, rest] = split_layer(f, name);
  for (const Row& r : layer.empty() ? rows.model : rows.layer) {
    if (r.matrix < 0) {
      if (r.hf == rest) return TensorName{layer + r.ours, r.transposed, r.stacked};
      continue;
    }
    if (!rest.starts_with(r.hf)) continue;
    std::string_view behind = std::string_view(rest).substr(r.hf.size());
    if (const int64_t e = take_number(behind); e >= 0 && behind == r.hf_end)
      return TensorName{layer + r.ours, r.transposed, false, e, r.matrix};
  }
  return std::nullopt;
}

}  // namespace ltrain
