#include <fmt/format.h>

#include <map>

#include "base/json/json.h"
#include "planner/exports/trainers.h"
#include "runtime/recipe/schema/schema.h"

namespace ltrain::exports {
namespace {

using Json = nlohmann::ordered_json;

class DeepspeedWriter {
 public:
  explicit DeepspeedWriter(const Recipe& recipe) : r_(recipe) {}

  Exported write() {
    for (const recipe::Key& key : recipe::schema())
      if (key.path.rfind("model.", 0) == 0) said_.insert(key.path);
    out_["train_batch_size"] = r_.train.global_batch_size;
    out_["train_micro_batch_size_per_gpu"] = r_.train.micro_batch_size;
    out_["gradient_clipping"] = r_.train.clip_grad;
    for (const char* key : {"train.global_batch_size", "train.micro_batch_size", "train.clip_grad",
                            "train.train_steps", "data.seq_length"})
      said_.insert(key);
    update();
    schedule();
    precision();
    layout();
    Exported out;
    out.unsaid = unsaid_settings(r_, said_);
    out.unsaid.push_back("set by the program: " + model_shape(r_));
    out.unsaid.push_back(fmt::format("set by the program: {} steps of sequences of {} tokens",
                                     r_.train.train_steps, r_.data.seq_length));
    out.text = out_.dump(2) + "\n";
    return out;
  }

 private:
  void update() {
    const OptimizerKeys& o = r_.optimizer;
    const std::map<UpdateRule, const char*> names{{UpdateRule::adamw, "AdamW"}, {UpdateRule::adam, "Adam"}};
    const auto name = names.find(o.kind);
    if (name == names.end()) return;
    Json params{{"lr", o.lr},
                {"betas", {o.adam_beta1, o.adam_beta2}},
                {"eps", o.adam_eps},
                {"weight_decay", o.weight_decay}};
    if (o.kind == UpdateRule::adam) params["adam_w_mode"] = false;
    out_["optimizer"] = {{"type", name->second}, {"params", params}};
    for (const char* key : {"kind", "lr", "adam_beta1", "adam_beta2", "adam_eps", "weight_decay"})
      said_.insert(fmt::format("optimizer.{}", key));
  }

  void schedule() {
    const LrSchedule& s = r_.schedule;
    Json params{{"warmup_num_steps", s.lr_warmup_steps}, {"warmup_type", "linear"}};
    const bool cosine = s.lr_decay_style == LrDecayStyle::cosine,
               linear = s.lr_decay_style == LrDecayStyle::linear;
    if (!cosine && !linear && s.lr_decay_style != LrDecayStyle::constant) return;
    for (const char* key : {"schedule.lr_decay_style", "schedule.lr_warmup_steps"}) said_.insert(key);
    if (cosine) params["cos_min_ratio"] = r_.optimizer.min_lr / r_.optimizer.lr;
    if (!cosine) params["warmup_max_lr"] = r_.optimizer.lr;
    if (cosine) said_.insert("optimizer.min_lr");
    if (cosine || linear) {
      params["total_num_steps"] = s.lr_decay_steps;
      said_.insert("schedule.lr_decay_steps");
    }
    out_["scheduler"] = {{"type", cosine   ? "WarmupCosineLR"
                                  : linear ? "WarmupDecayLR"
                                           : "WarmupLR"},
                         {"params", params}};
  }

  void precision() {
    if (!r_.phases.empty()) return;
    if (r_.precision == Precision::bf16) out_["bf16"]["enabled"] = true;
    if (r_.precision == Precision::fp16)
      out_["fp16"] = {{"enabled", true},
                      {"loss_scale_window", r_.loss_scale.settings.window},
                      {"hysteresis", r_.loss_scale.settings.hysteresis},
                      {"min_loss_scale", r_.loss_scale.settings.minimum}};
    if (r_.precision == Precision::fp16)
      for (const char* key : {"window", "hysteresis", "minimum"})
        said_.insert(fmt::format("loss_scale.{}", key));
    if (r_.precision == Precision::bf16 || r_.precision == Precision::fp16 || r_.precision == Precision::fp32)
      said_.insert("precision");
  }

  void layout() {
    const Parallel& p = r_.parallel;
    Json& zero = out_["zero_optimization"];
    zero["stage"] = p.zero_stage;
    said_.insert("parallel.zero_stage");
    if (r_.offload.optimizer.device == OffloadDevice::cpu) {
      zero["offload_optimizer"] = {{"device", "cpu"}, {"ratio", r_.offload.optimizer.fraction}};
      said_.insert("offload.optimizer.device");
      said_.insert("offload.optimizer.fraction");
      if (r_.offload.update == OffloadUpdate::cpu) said_.insert("offload.optimizer.update");
    }
    if (r_.offload.params.device == OffloadDevice::cpu && r_.offload.params.fraction == 1) {
      zero["offload_param"] = {{"device", "cpu"}};
      said_.insert("offload.params.device");
    }
    if (p.tensor > 1) out_["tensor_parallel"]["autotp_size"] = p.tensor;
    said_.insert("parallel.tensor");
  }

  const Recipe& r_;
  Json out_;
  std::set<std::string> said_;
};

}  // namespace

Exported to_deepspeed(const Recipe& recipe) { return DeepspeedWriter(recipe).write(); }

}  // namespace ltrain::exports
