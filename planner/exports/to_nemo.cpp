// Export to NeMo: YAML overrides for Megatron-Bridge's ConfigContainer, whose fields are those of Megatron
// Core. Names: docs/coming-from.md. They are merged over a recipe function of the same family, so every field
// is written, including defaults.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/error.h"
#include "planner/exports/megatron.h"
#include "planner/exports/trainers.h"

namespace ltrain::exports {
namespace {

/// Fields for a flag of Megatron-LM: "section.field ...", all with the same value.
struct Field {
  std::string_view flag, fields;
  std::string_view present;  ///< value written if the flag is given; "" for the flag's value
  std::string_view absent;   ///< value written if it is not given; "" for none
};

constexpr Field kFields[] = {
    {"--num-layers", "model.num_layers", "", ""},
    {"--hidden-size", "model.hidden_size", "", ""},
    {"--ffn-hidden-size", "model.ffn_hidden_size", "", ""},
    {"--num-attention-heads", "model.num_attention_heads", "", ""},
    {"--group-query-attention", "", "", ""},  // part of the next flag, which is always written
    {"--num-query-groups", "model.num_query_groups", "", ""},
    {"--kv-channels", "model.kv_channels", "", ""},
    {"--max-position-embeddings", "", "", ""},  // the sequence length there
    {"--position-embedding-type", "model.position_embedding_type", "", ""},
    {"--normalization", "model.normalization", "", ""},
    {"--swiglu", "model.gated_linear_unit", "true", "false"},
    {"--disable-bias-linear", "model.add_bias_linear", "false", "true"},
    {"--add-qkv-bias", "model.add_qkv_bias", "true", "false"},
    {"--qk-layernorm", "model.qk_layernorm", "true", "false"},
    {"--rotary-base", "model.rotary_base", "", ""},
    {"--use-rope-scaling", "model.rope_scaling", "true", "false"},
    {"--rope-scaling-factor", "model.rope_scaling_factor", "", ""},
    {"--norm-epsilon", "model.layernorm_epsilon", "", ""},
    {"--untie-embeddings-and-output-weights", "model.share_embeddings_and_output_weights", "false", "true"},
    {"--padded-vocab-size", "model.vocab_size", "", ""},
    {"--init-method-std", "model.init_method_std", "", ""},
    {"--hidden-dropout", "model.hidden_dropout", "", "0.1"},
    {"--attention-dropout", "model.attention_dropout", "", ""},
    {"--seq-length", "model.seq_length dataset.seq_length", "", ""},
    {"--deterministic-mode", "model.deterministic_mode", "true", "false"},
    {"--micro-batch-size", "train.micro_batch_size", "", ""},
    {"--global-batch-size", "train.global_batch_size", "", ""},
    {"--rampup-batch-size", "train.rampup_batch_size", "", "null"},
    {"--train-iters", "train.train_iters", "", ""},
    {"--log-interval", "logger.log_interval", "", ""},
    {"--seed", "rng.seed", "", ""},
    {"--save-interval", "checkpoint.save_interval", "", ""},
    {"--distributed-timeout-minutes", "dist.distributed_timeout_minutes", "", ""},
    {"--optimizer", "optimizer.optimizer", "", ""},
    {"--lr", "optimizer.lr", "", ""},
    {"--min-lr", "optimizer.min_lr", "", ""},
    {"--weight-decay", "optimizer.weight_decay", "", ""},
    {"--adam-beta1", "optimizer.adam_beta1", "", ""},
    {"--adam-beta2", "optimizer.adam_beta2", "", ""},
    {"--adam-eps", "optimizer.adam_eps", "", ""},
    {"--sgd-momentum", "optimizer.sgd_momentum", "", ""},
    {"--lion-beta1", "optimizer.lion_beta1", "", ""},
    {"--lion-beta2", "optimizer.lion_beta2", "", ""},
    {"--muon-momentum", "optimizer.muon_momentum", "", ""},
    {"--muon-num-ns-steps", "optimizer.muon_num_ns_steps", "", ""},
    {"--muon-scale-mode", "optimizer.muon_scale_mode", "", ""},
    {"--clip-grad", "optimizer.clip_grad", "", ""},
    {"--use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer", "true", "false"},
    {"--main-grads-dtype", "optimizer.main_grads_dtype", "", ""},
    {"--exp-avg-dtype", "optimizer.exp_avg_dtype", "", "fp32"},
    {"--exp-avg-sq-dtype", "optimizer.exp_avg_sq_dtype", "", "fp32"},
    {"--optimizer-cpu-offload", "optimizer.optimizer_cpu_offload", "true", "false"},
    {"--optimizer-offload-fraction", "optimizer.optimizer_offload_fraction", "", ""},
    {"--lr-decay-style", "scheduler.lr_decay_style", "", ""},
    {"--lr-decay-iters", "scheduler.lr_decay_iters", "", ""},
    {"--lr-warmup-iters", "scheduler.lr_warmup_iters", "", ""},
    {"--lr-wsd-decay-style", "scheduler.lr_wsd_decay_style", "", ""},
    {"--lr-wsd-decay-iters", "scheduler.lr_wsd_decay_iters", "", ""},
    {"--start-weight-decay", "scheduler.start_weight_decay", "", ""},
    {"--end-weight-decay", "scheduler.end_weight_decay", "", ""},
    {"--weight-decay-incr-style", "scheduler.weight_decay_incr_style", "", ""},
    {"--tensor-model-parallel-size", "model.tensor_model_parallel_size", "", ""},
    {"--sequence-parallel", "model.sequence_parallel", "true", "false"},
    {"--pipeline-model-parallel-size", "model.pipeline_model_parallel_size", "", ""},
    {"--num-virtual-stages-per-pipeline-rank", "model.virtual_pipeline_model_parallel_size", "", "null"},
    {"--pipeline-model-parallel-layout", "model.pipeline_model_parallel_layout", "", "null"},
    {"--context-parallel-size", "model.context_parallel_size", "", ""},
    {"--cp-comm-type", "model.cp_comm_type", "", ""},
    {"--hierarchical-context-parallel-sizes", "model.hierarchical_context_parallel_sizes", "", "null"},
    {"--expert-model-parallel-size", "model.expert_model_parallel_size", "", ""},
    {"--expert-tensor-parallel-size", "model.expert_tensor_parallel_size", "", "null"},
    {"--use-tp-pp-dp-mapping", "dist.use_tp_pp_dp_mapping", "true", "false"},
    {"--use-distributed-optimizer", "ddp.use_distributed_optimizer optimizer.use_distributed_optimizer",
     "true", "false"},
    {"--use-megatron-fsdp", "ddp.use_megatron_fsdp dist.use_megatron_fsdp", "true", "false"},
    {"--data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy", "", ""},
    {"--recompute-granularity", "model.recompute_granularity", "", ""},
    {"--recompute-method", "model.recompute_method", "", ""},
    {"--recompute-num-layers", "model.recompute_num_layers", "", ""},
    {"--recompute-modules", "model.recompute_modules", "", ""},
    {"--cpu-offloading", "model.cpu_offloading", "true", "false"},
    {"--cpu-offloading-num-layers", "model.cpu_offloading_num_layers", "", ""},
    {"--num-experts", "model.num_moe_experts", "", "null"},
    {"--moe-router-topk", "model.moe_router_topk", "", ""},
    {"--moe-ffn-hidden-size", "model.moe_ffn_hidden_size", "", ""},
    {"--moe-layer-freq", "model.moe_layer_freq", "", ""},
    {"--moe-shared-expert-intermediate-size", "model.moe_shared_expert_intermediate_size", "", "null"},
    {"--moe-router-load-balancing-type", "model.moe_router_load_balancing_type", "", ""},
    {"--moe-aux-loss-coeff", "model.moe_aux_loss_coeff", "", ""},
    {"--moe-z-loss-coeff", "model.moe_z_loss_coeff", "", ""},
    {"--moe-router-score-function", "model.moe_router_score_function", "", ""},
    {"--moe-router-pre-softmax", "model.moe_router_pre_softmax", "true", "false"},
    {"--moe-router-topk-scaling-factor", "model.moe_router_topk_scaling_factor", "", ""},
    {"--moe-router-enable-expert-bias", "model.moe_router_enable_expert_bias", "true", "false"},
    {"--moe-router-bias-update-rate", "model.moe_router_bias_update_rate", "", ""},
    {"--moe-router-num-groups", "model.moe_router_num_groups", "", ""},
    {"--moe-router-group-topk", "model.moe_router_group_topk", "", ""},
    {"--moe-expert-capacity-factor", "model.moe_expert_capacity_factor", "", "null"},
    {"--moe-token-drop-policy", "model.moe_token_drop_policy", "", ""},
    {"--moe-token-dispatcher-type", "model.moe_token_dispatcher_type", "", ""},
    {"--reset-attention-mask", "dataset.reset_attention_mask", "true", "false"},
    {"--reset-position-ids", "dataset.reset_position_ids", "true", "false"},
    {"--eod-mask-loss", "dataset.eod_mask_loss", "true", "false"},
};

/// A name for `mixed_precision`, and the values that the preset fixes for keys of a recipe.
struct Preset {
  std::string_view flags, name;
  std::map<std::string, std::string> fixed;
};

const std::vector<Preset>& presets() {
  static const std::map<std::string, std::string> scale{{"loss_scale.initial", "4294967296"},
                                                        {"loss_scale.minimum", "1"},
                                                        {"loss_scale.window", "1000"},
                                                        {"loss_scale.hysteresis", "2"}};
  static const std::map<std::string, std::string> fp8{
      {"fp8.format", "hybrid"}, {"fp8.first_layers_bf16", "0"}, {"fp8.last_layers_bf16", "0"}};
  static const std::vector<Preset> all = [] {
    auto delayed = fp8;
    delayed.insert({{"fp8.margin", "0"}, {"fp8.amax_history_len", "1024"}, {"fp8.amax_compute_algo", "max"}});
    return std::vector<Preset>{{"", "null", {}},
                               {"--bf16", "bf16_mixed", {}},
                               {"--fp16", "fp16_mixed", scale},
                               {"--fp8-format delayed", "bf16_with_fp8_delayed_scaling_mixed", delayed},
                               {"--fp8-format tensorwise", "bf16_with_fp8_current_scaling_mixed", fp8},
                               {"--fp8-format blockwise", "bf16_with_fp8_subchannel_scaling_mixed", fp8}};
  }();
  return all;
}

class NemoWriter {
 public:
  explicit NemoWriter(const Recipe& recipe) : r_(recipe), said_(flags_of(recipe)) {
    for (const FlagValue& f : said_.flags) values_[f.flag] = f.value;
  }

  Exported write() {
    std::vector<std::string> unsaid = said_.unsaid;
    for (const Field& f : kFields) field(f);
    derived();
    precision(unsaid);
    for (const auto& [flag, value] : values_)
      if (!passed(flag)) unsaid.push_back(fmt::format("{} {}", flag, value));
    Exported out;
    out.unsaid = std::move(unsaid);
    out.text = "# Over the configuration of a recipe function of the same family: --config-file.\n";
    for (const std::string& u : out.unsaid) out.text += fmt::format("# not in NeMo's fields: {}\n", u);
    out.text += top_;
    for (const auto& [section, fields] : sections_) {
      out.text += section + ":\n";
      for (const auto& [key, value] : fields) out.text += fmt::format("  {}: {}\n", key, value);
    }
    return out;
  }

 private:
  void set(const std::string& path, const std::string& value) {
    const size_t dot = path.find('.');
    sections_[path.substr(0, dot)][path.substr(dot + 1)] = value;
  }

  void field(const Field& f) {
    const auto it = values_.find(std::string(f.flag));
    const bool there = it != values_.end();
    std::string value(there ? f.present : f.absent);
    if (there) {
      if (value.empty()) value = word(it->first, it->second);
      passed_.insert(it->first);
    }
    if (value.empty()) return;
    std::istringstream fields{std::string(f.fields)};
    for (std::string path; fields >> path;) set(path, value);
  }

  /// A flag's value in YAML: numbers and names unchanged, several values as a list.
  static std::string word(const std::string& flag, const std::string& value) {
    const bool none = (flag == "--num-experts" && value == "0") ||
                      (flag == "--recompute-granularity" && value == "none") ||
                      (flag == "--moe-router-num-groups" && value == "1");
    if (none) return "null";
    if (flag == "--pipeline-model-parallel-layout") return value.substr(1, value.size() - 2);
    // YAML 1.1 reads 1e-05 as text and 1.0e-05 as a number.
    const size_t e = value.find('e');
    if (e != std::string::npos && e > 0 && value.find_first_not_of("0123456789e-+") == std::string::npos)
      return value.substr(0, e) + ".0" + value.substr(e);
    const bool list = flag == "--rampup-batch-size" || flag == "--recompute-modules" ||
                      flag == "--hierarchical-context-parallel-sizes";
    if (!list) return value;
    std::string out;
    std::istringstream in(value);
    for (std::string item; in >> item;) out += (out.empty() ? "" : ", ") + item;
    return fmt::format("[{}]", out);
  }

  /// Sets fields that a flag expresses differently, or whose default a recipe function may have changed.
  void derived() {
    const ModelConfig& m = r_.model;
    set("model.num_query_groups", fmt::to_string(m.num_key_value_heads));
    set("model.activation_func", values_.count("--swiglu") ? "silu" : "gelu");
    set("model.should_pad_vocab", "false");
    if (m.moe.num_experts > 0) {
      std::string layers;
      for (int64_t i = 0; i < m.num_hidden_layers; ++i) {
        const auto& dense = m.moe.dense_layers;
        const bool is_dense = std::find(dense.begin(), dense.end(), i) != dense.end();
        layers += fmt::format("{}{}", i ? ", " : "", is_dense ? 0 : 1);
      }
      set("model.moe_layer_freq", fmt::format("[{}]", layers));
    }
    if (values_.count("--use-megatron-fsdp")) set("checkpoint.ckpt_format", "fsdp_dtensor");
  }

  void precision(std::vector<std::string>& unsaid) {
    std::string flags;
    for (const char* flag : {"--bf16", "--fp16", "--fp8-format"})
      if (values_.count(flag)) flags = flag;
    if (flags == "--fp8-format") flags += " " + values_["--fp8-recipe"];
    for (const Preset& p : presets()) {
      if (p.flags != flags) continue;
      top_ = fmt::format("mixed_precision: {}\n", p.name);
      for (const auto& [key, value] : p.fixed)
        if (const std::string ours = plain_value(r_, key); !ours.empty() && ours != value)
          unsaid.push_back(fmt::format("{} = {}: {} has {}", key, ours, p.name, value));
    }
    LT_CHECK(!top_.empty(), "expected a NeMo preset for '{}', got none", flags);
    if (flags.empty())
      for (const char* path : {"model.bf16", "model.fp16", "optimizer.bf16", "optimizer.fp16"})
        set(path, "false");
    else if (values_.count("--grad-reduce-in-bf16"))
      unsaid.emplace_back("parallel.grad_reduce_dtype = bf16: mixed_precision has fp32");
    if (flags.empty())
      set("ddp.grad_reduce_in_fp32", values_.count("--grad-reduce-in-bf16") ? "false" : "true");
  }

  /// Returns whether the flag was written, or is part of `mixed_precision`.
  bool passed(const std::string& flag) const {
    for (const char* of_precision : {"--bf16", "--fp16", "--fp8-", "--first-last-layers-bf16",
                                     "--num-layers-at-", "--initial-loss-scale", "--min-loss-scale",
                                     "--loss-scale-window", "--hysteresis", "--grad-reduce-in-bf16"})
      if (flag.rfind(of_precision, 0) == 0) return true;
    return passed_.count(flag) > 0;
  }

  const Recipe& r_;
  const FlagValues said_;
  std::map<std::string, std::string> values_;
  std::set<std::string> passed_;
  std::string top_;
  std::map<std::string, std::map<std::string, std::string>> sections_;
};

}  // namespace

Exported to_nemo(const Recipe& recipe) { return NemoWriter(recipe).write(); }

}  // namespace ltrain::exports
