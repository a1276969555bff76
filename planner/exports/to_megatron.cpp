#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "base/error.h"
#include "planner/exports/megatron.h"
#include "planner/exports/megatron_flags.h"

namespace ltrain::exports {
namespace {

bool same_value(const std::string& a, std::string_view b) {
  if (a == b) return true;
  char *end_a = nullptr, *end_b = nullptr;
  const std::string other(b);
  const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(other.c_str(), &end_b);
  return !a.empty() && !other.empty() && *end_a == '\0' && *end_b == '\0' && x == y;
}

class Flags {
 public:
  explicit Flags(const Recipe& recipe) : r_(recipe) {}

  FlagValues write() {
    rows();
    family();
    widths();
    latents();
    batch();
    precision();
    layout();
    recompute();
    experts();
    offload();
    std::vector<std::string> unsaid = unsaid_settings(r_, said_);
    unsaid.insert(unsaid.end(), unsaid_.begin(), unsaid_.end());
    return {std::move(flags_), std::move(unsaid)};
  }

 private:
  void say(const std::string& key) { said_.insert(key); }
  template <typename T>
  void add(std::string_view flag, const T& value) {
    LT_CHECK(find_flag(flag), "expected {} in the table of flags, got no such flag", flag);
    flags_.push_back({std::string(flag), fmt::to_string(value)});
  }
  void add(std::string_view flag) { add(flag, ""); }

  /// Adds flags that match one key.
  void rows() {
    for (const MegatronFlag& f : megatron_flags()) {
      const std::string key(f.key);
      // Other flags express it.
      if (key == "model.head_dim" && r_.model.traits().latent_attention) continue;
      if (f.kind == FlagKind::value) {
        const std::string ours = plain_value(r_, key), word = word_of_megatron(f, ours);
        if (!ours.empty() && word.empty() && ours != f.standard) continue;  // unsaid
        say(key);
        if (ours.empty()) continue;
        const std::string& theirs = word.empty() ? ours : word;
        add(f.flag, theirs);
        flags_.back().standard = same_value(theirs, f.standard);
      } else if (f.kind == FlagKind::on || f.kind == FlagKind::off) {
        say(key);
        if (value_of(r_, key) == (f.kind == FlagKind::on ? "true" : "false")) add(f.flag);
      }
    }
  }

  void family() {
    say("model.architecture");
    std::vector<std::string_view> known;
    for (const MegatronFamily& f : megatron_families()) {
      known.push_back(f.architecture);
      if (f.architecture != r_.model.family->name) continue;
      add("--position-embedding-type", f.rotary ? "rope" : "learned_absolute");
      add("--normalization", f.rms_norm ? "RMSNorm" : "LayerNorm");
      if (f.gated) add("--swiglu");
      if (!f.biases) add("--disable-bias-linear");
      if (f.qkv_bias) add("--add-qkv-bias");
      if (f.qk_norm) add("--qk-layernorm");
      return;
    }
    fail(ExitCode::usage,
         "model.architecture = {}: this build writes no flags of Megatron-LM for it (expected one of {}); "
         "nearest valid value: "
         "another trainer, or the architecture written in Python there",
         r_.model.family->name, fmt::join(known, ", "));
  }

  void widths() {
    const ModelConfig& m = r_.model;
    add("--ffn-hidden-size", m.intermediate_size);
    say("model.intermediate_size");
    say("model.num_key_value_heads");
    if (m.num_key_value_heads != m.num_attention_heads) {
      add("--group-query-attention");
      add("--num-query-groups", m.num_key_value_heads);
    }
    say("model.vocab_size");
    add("--padded-vocab-size", m.vocab_size);
    if (m.resid_pdrop == m.embd_pdrop) {
      say("model.resid_pdrop");
      say("model.embd_pdrop");
      if (m.resid_pdrop != 0.1) add("--hidden-dropout", m.resid_pdrop);
    }
    if (m.rope_scaling.type == RopeType::llama3 && m.rope_scaling.low_freq_factor == 1 &&
        m.rope_scaling.high_freq_factor == 4 && m.rope_scaling.original_max_position_embeddings == 8192) {
      say("model.rope_scaling.rope_type");
      say("model.rope_scaling.factor");
      add("--use-rope-scaling");
      add("--rope-scaling-factor", m.rope_scaling.factor);
    }
  }

  void latents() {
    const ModelConfig& m = r_.model;
    if (!m.traits().latent_attention) return;
    add("--multi-latent-attention");
    say("model.head_dim");
    say("model.q_lora_rank");
    if (m.latent.q_lora_rank) add("--q-lora-rank", *m.latent.q_lora_rank);
    if (m.norm_eps != 1e-6)
      unsaid_.push_back("norms of latents with an epsilon of 1e-06 beside model.rms_norm_eps: one is there");
    const RopeScaling& s = m.rope_scaling;
    const bool yarn = s.type == RopeType::yarn;
    const bool usual = s.original_max_position_embeddings == 4096 && s.beta_fast == 32 && s.beta_slow == 1 &&
                       s.truncate && !s.attention_factor &&
                       s.mscale.has_value() == s.mscale_all_dim.has_value();
    if (s.type != RopeType::none && !(yarn && usual)) return;
    for (const char* key : {"rope_type", "factor", "original_max_position_embeddings", "beta_fast",
                            "beta_slow", "truncate", "mscale", "mscale_all_dim"})
      say(fmt::format("model.rope_scaling.{}", key));
    add("--rope-type", yarn ? "yarn" : "rope");
    if (!yarn) return;
    add("--rotary-scaling-factor", s.factor);
    if (!s.mscale) return;
    add("--mscale", *s.mscale);
    add("--mscale-all-dim", *s.mscale_all_dim);
  }

  void batch() {
    const BatchRamp& ramp = r_.train.batch_ramp;
    say("train.global_batch_size");
    add("--global-batch-size", r_.train.global_batch_size);
    for (const char* key : {"start", "increment", "samples"}) say(fmt::format("train.batch_ramp.{}", key));
    if (ramp.start > 0)
      add("--rampup-batch-size", fmt::format("{} {} {}", ramp.start, ramp.increment, ramp.samples));
  }

  void precision() {
    const bool said = r_.phases.empty() && r_.precision != Precision::tf32 && r_.precision != Precision::fp64;
    if (said) say("precision");
    if (r_.precision == Precision::fp16) add("--fp16");
    if (r_.precision == Precision::bf16 || r_.precision == Precision::fp8) add("--bf16");
    if (r_.precision == Precision::fp8) {
      say("fp8.format");
      add("--fp8-format", value_of(r_, "fp8.format"));
      say("fp8.first_layers_bf16");
      say("fp8.last_layers_bf16");
      const std::string first = value_of(r_, "fp8.first_layers_bf16"),
                        last = value_of(r_, "fp8.last_layers_bf16");
      if (first != "0" || last != "0") {
        add("--first-last-layers-bf16");
        add("--num-layers-at-start-in-bf16", first);
        add("--num-layers-at-end-in-bf16", last);
      }
    }
    if (r_.parallel.grad_reduce_dtype == GradReduceDtype::bf16) {
      say("parallel.grad_reduce_dtype");
      add("--grad-reduce-in-bf16");
    }
    say("optimizer.state_dtype");
    if (r_.optimizer.state_dtype != StorageDtype::fp32) {
      add("--exp-avg-dtype", value_of(r_, "optimizer.state_dtype"));
      add("--exp-avg-sq-dtype", value_of(r_, "optimizer.state_dtype"));
    }
    if (r_.optimizer.state_dtype != StorageDtype::fp32 || r_.optimizer.grad_dtype != StorageDtype::fp32)
      add("--use-precision-aware-optimizer");  // required by the dtypes above
  }

  void layout() {
    const Parallel& p = r_.parallel;
    say("parallel.zero_stage");
    if (p.zero_stage == 1) add("--use-distributed-optimizer");
    if (p.zero_stage > 1) {
      add("--use-megatron-fsdp");
      add("--data-parallel-sharding-strategy", p.zero_stage == 2 ? "optim_grads" : "optim_grads_params");
    }
    if (p.schedule == "interleaved") {
      say("parallel.schedule");
      say("parallel.virtual_pipeline");
      add("--num-virtual-stages-per-pipeline-rank", p.virtual_pipeline);
    }
    if (!p.pipeline_layers.empty()) {
      say("parallel.pipeline_layers");
      std::vector<std::string> stages;
      for (const int64_t layers : p.pipeline_layers) stages.push_back(fmt::format("t*{}", layers));
      stages.front() = fmt::format("E{}", stages.front());
      stages.back().push_back('L');
      add("--pipeline-model-parallel-layout", fmt::format("'{}'", fmt::join(stages, "|")));
    }
    say("parallel.context_inner");
    if (p.context > 1 && p.context_comm == ContextComm::a2a_p2p)
      add("--hierarchical-context-parallel-sizes",
          fmt::format("{} {}", p.context_inner, p.context / p.context_inner));
    say("parallel.expert_tensor");
    if (r_.model.moe.num_experts > 0) add("--expert-tensor-parallel-size", p.expert_tensor);
    if (p.order == "tp-cp-pp-dp") add("--use-tp-pp-dp-mapping");
    if (p.order == "tp-cp-pp-dp") say("parallel.order");
  }

  void recompute() {
    if (r_.recompute.granularity != RecomputeGranularity::selective || r_.recompute.modules.empty()) return;
    std::vector<std::string_view> names;
    for (const RecomputeModule m : r_.recompute.modules) names.push_back(to_string(m));
    say("recompute.modules");
    add("--recompute-modules", fmt::to_string(fmt::join(names, " ")));
  }

  void experts() {
    const MoeConfig& m = r_.model.moe;
    if (m.num_experts == 0) return;
    say("model.moe.intermediate_size");
    add("--moe-ffn-hidden-size", m.intermediate_size);
    say("model.moe.shared_experts");
    if (m.shared_experts > 0)
      add("--moe-shared-expert-intermediate-size", m.shared_experts * m.intermediate_size);
    dense_layers();
    const std::string loss = word_of_megatron(*find_flag("--moe-router-load-balancing-type"),
                                              value_of(r_, "model.moe.balance.kind"));
    if (!loss.empty()) {
      say("model.moe.balance.kind");
      say("model.moe.balance.coeff");
      add("--moe-router-load-balancing-type", loss);
      if (loss != "none") add("--moe-aux-loss-coeff", m.balance_coeff);
    }
    // Megatron-LM always normalizes sigmoid scores.
    if (m.norm_topk_prob || m.score == RouterScore::softmax) say("model.moe.router.norm_topk_prob");
    if (!m.norm_topk_prob && m.score == RouterScore::softmax) add("--moe-router-pre-softmax");
    if (m.norm_topk_prob && m.score == RouterScore::softmax)
      say("model.moe.router.order");  // the order does not change the values
    say("model.moe.router.topk_group");
    if (m.n_group > 1) add("--moe-router-group-topk", m.topk_group);
    const int64_t best = m.score == RouterScore::sigmoid ? 2 : 1;
    if (m.n_group > 1 && m.top_k / m.topk_group != best)
      unsaid_.push_back(fmt::format("groups of experts by the best {} of each: there by the best {}", best,
                                    m.top_k / m.topk_group));
    say("model.moe.router.bias_update_rate");
    if (m.bias_update_rate > 0) {
      add("--moe-router-enable-expert-bias");
      add("--moe-router-bias-update-rate", m.bias_update_rate);
    }
  }

  /// Adds the dense layers at the beginning.
  void dense_layers() {
    const MoeConfig& m = r_.model.moe;
    if (m.dense_layers.empty()) return;
    for (size_t i = 0; i < m.dense_layers.size(); ++i)
      if (m.dense_layers[i] != static_cast<int64_t>(i)) return;
    say("model.moe.dense_layers");
    add("--moe-layer-freq",
        fmt::format("'([0]*{}+[1]*{})'", m.dense_layers.size(),
                    r_.model.num_hidden_layers - static_cast<int64_t>(m.dense_layers.size())));
  }

  void offload() {
    if (r_.offload.activations.device == OffloadDevice::cpu && r_.offload.activations.fraction == 1) {
      say("offload.activations.device");
      add("--cpu-offloading");
      add("--cpu-offloading-num-layers", r_.model.num_hidden_layers - 1);
    }
    if (r_.offload.optimizer.device != OffloadDevice::cpu) return;
    say("offload.optimizer.device");
    say("offload.optimizer.fraction");
    if (r_.offload.update == OffloadUpdate::cpu) say("offload.optimizer.update");
    add("--optimizer-cpu-offload");
    add("--optimizer-offload-fraction", r_.offload.optimizer.fraction);
  }

  const Recipe& r_;
  std::vector<FlagValue> flags_;
  std::set<std::string> said_;
  std::vector<std::string> unsaid_;  ///< in addition to settings
};

}  // namespace

FlagValues flags_of(const Recipe& recipe) { return Flags(recipe).write(); }

Exported to_megatron(const Recipe& recipe) {
  FlagValues said = flags_of(recipe);
  Exported out;
  out.unsaid = std::move(said.unsaid);
  for (const std::string& u : out.unsaid) out.text += fmt::format("# not in Megatron-LM's flags: {}\n", u);
  std::string lines;
  for (const FlagValue& f : said.flags) {
    if (f.standard) continue;
    if (!lines.empty()) lines += " \\\n";
    lines += f.value.empty() ? f.flag : fmt::format("{} {}", f.flag, f.value);
  }
  out.text += lines + "\n";
  return out;
}

}  // namespace ltrain::exports
