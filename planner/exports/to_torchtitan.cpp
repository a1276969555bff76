#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "base/json/json.h"
#include "planner/exports/trainers.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain::exports {
namespace {

using Json = nlohmann::ordered_json;

/// TOML text with sections of keys and values.
std::string toml(const Json& sections) {
  std::string out;
  for (const auto& [section, keys] : sections.items()) {
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    for (const auto& [key, value] : keys.items()) out += fmt::format("{} = {}\n", key, value.dump());
  }
  return out;
}

class TorchtitanWriter {
 public:
  explicit TorchtitanWriter(const Recipe& recipe) : r_(recipe) {}

  Exported write() {
    for (const recipe::Key& key : recipe::schema())
      if (key.path.rfind("model.", 0) == 0) said_.insert(key.path);
    training();
    update();
    layout();
    Exported out;
    out.unsaid = unsaid_settings(r_, said_);
    out.unsaid.push_back("model.name and model.flavor: " + model_shape(r_));
    for (const std::string& u : out.unsaid) out.text += fmt::format("# not in torchtitan's keys: {}\n", u);
    out.text += toml(out_);
    return out;
  }

 private:
  template <typename T>
  void set(const char* section, const char* key, const T& value, const char* ours) {
    out_[section][key] = value;
    said_.insert(ours);
  }

  void training() {
    const Parallel& p = r_.parallel;
    const bool stages = p.pipeline > 1;
    if (stages && p.data < 1)
      fail(ExitCode::usage,
           "parallel.data = {}: torchtitan's local_batch_size under a pipeline is of a data-parallel "
           "rank: must be a number",
           p.data);
    set("training", "local_batch_size",
        stages ? r_.train.global_batch_size / p.data : r_.train.micro_batch_size, "train.micro_batch_size");
    if (stages) out_["parallelism"]["pipeline_parallel_microbatch_size"] = r_.train.micro_batch_size;
    set("training", "global_batch_size", r_.train.global_batch_size, "train.global_batch_size");
    set("training", "seq_len", r_.data.seq_length, "data.seq_length");
    set("training", "steps", r_.train.train_steps, "train.train_steps");
    set("training", "max_norm", r_.train.clip_grad, "train.clip_grad");
    if (r_.phases.empty() && (r_.precision == Precision::bf16 || r_.precision == Precision::fp32))
      set("training", "mixed_precision_param", r_.precision == Precision::bf16 ? "bfloat16" : "float32",
          "precision");
    const RecomputeGranularity g = r_.recompute.granularity;
    if (g == RecomputeGranularity::none || (g == RecomputeGranularity::full && !r_.recompute.num_layers))
      set("activation_checkpoint", "mode", g == RecomputeGranularity::none ? "none" : "full",
          "recompute.granularity");
    out_["debug"]["seed"] = r_.seed;
    out_["debug"]["deterministic"] = r_.deterministic;
  }

  void update() {
    const OptimizerKeys& o = r_.optimizer;
    if (o.kind == UpdateRule::adamw || o.kind == UpdateRule::adam)
      set("optimizer", "name", o.kind == UpdateRule::adamw ? "AdamW" : "Adam", "optimizer.kind");
    set("optimizer", "lr", o.lr, "optimizer.lr");
    set("optimizer", "beta1", o.adam_beta1, "optimizer.adam_beta1");
    set("optimizer", "beta2", o.adam_beta2, "optimizer.adam_beta2");
    set("optimizer", "eps", o.adam_eps, "optimizer.adam_eps");
    set("optimizer", "weight_decay", o.weight_decay, "optimizer.weight_decay");
    set("lr_scheduler", "warmup_steps", r_.schedule.lr_warmup_steps, "schedule.lr_warmup_steps");
    if (r_.schedule.lr_decay_style != LrDecayStyle::cosine &&
        r_.schedule.lr_decay_style != LrDecayStyle::linear)
      return;
    set("lr_scheduler", "decay_type", fmt::to_string(r_.schedule.lr_decay_style), "schedule.lr_decay_style");
    set("lr_scheduler", "min_lr_factor", o.min_lr / o.lr, "optimizer.min_lr");
    set("lr_scheduler", "total_steps", r_.schedule.lr_decay_steps, "schedule.lr_decay_steps");
  }

  void layout() {
    const Parallel& p = r_.parallel;
    const char* section = "parallelism";
    if (p.zero_stage != 1) {
      const bool sharded = p.zero_stage > 1;
      set(section, "data_parallel_shard_degree", sharded ? p.data : 1, "parallel.zero_stage");
      out_[section]["data_parallel_replicate_degree"] = sharded ? 1 : std::max<int64_t>(1, p.data);
      const bool reshards = p.zero_stage == 3 && p.reshard_after_forward;
      if (sharded)
        set(section, "fsdp_reshard_after_forward", reshards ? "always" : "never",
            "parallel.reshard_after_forward");
    }
    set(section, "tensor_parallel_degree", p.tensor, "parallel.tensor");
    // Always enabled there.
    if (p.tensor == 1 || p.sequence_parallel) said_.insert("parallel.sequence_parallel");
    set(section, "pipeline_parallel_degree", p.pipeline, "parallel.pipeline");
    const std::map<std::string, const char*> schedules{{"gpipe", "GPipe"},
                                                       {"1f1b", "1F1B"},
                                                       {"interleaved", "Interleaved1F1B"},
                                                       {"zbv", "ZBVZeroBubble"},
                                                       {"dualpipev", "DualPipeV"}};
    const auto schedule = schedules.find(p.schedule);
    if (p.pipeline > 1 && schedule != schedules.end())
      set(section, "pipeline_parallel_schedule", schedule->second, "parallel.schedule");
    set(section, "context_parallel_degree", p.context, "parallel.context");
    if (p.context > 1 && (p.context_comm == ContextComm::p2p || p.context_comm == ContextComm::all_gather))
      set(section, "context_parallel_rotate_method",
          p.context_comm == ContextComm::p2p ? "alltoall" : "allgather", "parallel.context_comm");
    set(section, "expert_parallel_degree", p.expert, "parallel.expert");
    set(section, "expert_tensor_parallel_degree", p.expert_tensor, "parallel.expert_tensor");
  }

  const Recipe& r_;
  Json out_;
  std::set<std::string> said_;
};

}  // namespace

std::string model_shape(const Recipe& r) {
  const ModelConfig& m = r.model;
  std::string text =
      fmt::format("a {} of {} layers of {}, feed-forward {}, {} heads of {} ({} of keys), vocabulary {}",
                  m.family->name, m.num_hidden_layers, m.hidden_size, m.intermediate_size,
                  m.num_attention_heads, m.head_dim, m.num_key_value_heads, m.vocab_size);
  if (m.moe.num_experts > 0)
    text += fmt::format(", {} experts of {}, {} a token", m.moe.num_experts, m.moe.intermediate_size,
                        m.moe.top_k);
  return text;
}

Exported to_torchtitan(const Recipe& recipe) { return TorchtitanWriter(recipe).write(); }

}  // namespace ltrain::exports
