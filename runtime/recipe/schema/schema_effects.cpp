#include "runtime/recipe/schema/schema_effects.h"

#include "kernels/base/error.h"

namespace ltrain::recipe {
namespace {

struct Row {
  std::string_view path;  ///< of a key, or "section." for all of its keys
  Effect effect;
};

/// The longest path that fits counts.
constexpr Row kRows[] = {
    {"name", Effect::nothing},
    {"output_dir", Effect::nothing},
    {"seed", Effect::data},
    {"device", Effect::speed},
    {"precision", Effect::function},
    {"cuda_graphs", Effect::speed},
    {"attention_backend", Effect::speed},
    {"deterministic", Effect::speed},
    {"model.", Effect::function},
    {"model.initializer_range", Effect::nothing},  // weights are there
    {"model.output_layer_init_method", Effect::nothing},
    {"parallel.", Effect::speed},
    {"parallel.grad_reduce_dtype", Effect::function},
    {"fp8.", Effect::function},
    {"loss_scale.", Effect::function},
    {"loss_scale.max_skipped_steps", Effect::nothing},
    {"recompute.", Effect::speed},
    {"offload.", Effect::speed},
    {"data.", Effect::data},
    {"data.eval", Effect::nothing},
    {"train.", Effect::nothing},
    {"train.micro_batch_size", Effect::speed},
    {"train.stop_step", Effect::nothing},
    {"train.global_batch_size", Effect::schedule},
    {"train.train_steps", Effect::schedule},
    {"train.train_tokens", Effect::schedule},
    {"train.clip_grad", Effect::function},
    {"train.skip_grad_norm", Effect::function},
    {"train.batch_ramp.", Effect::schedule},
    {"train.ema_decay", Effect::function},
    {"train.router_warmup_steps", Effect::schedule},
    {"train.freeze_router", Effect::function},
    {"optimizer.", Effect::function},
    {"optimizer.lr", Effect::schedule},
    {"optimizer.min_lr", Effect::schedule},
    {"optimizer.muon_lr", Effect::schedule},
    {"optimizer.freeze_step", Effect::schedule},
    {"sparsity.", Effect::function},
    {"schedule.", Effect::schedule},
    {"checkpoint.", Effect::nothing},
    {"launch.", Effect::speed},
    {"log.", Effect::nothing},
    {"profile.", Effect::nothing},
    {"debug.", Effect::nothing},
};

}  // namespace

std::string_view to_string(Effect e) {
  constexpr std::string_view names[] = {"unset", "function", "schedule", "data", "speed", "nothing"};
  return names[static_cast<int>(e)];
}

void set_effects(std::vector<Key>& table) {
  for (Key& key : table) {
    size_t longest = 0;
    for (const Row& row : kRows) {
      const bool fits = row.path.ends_with('.') ? key.path.starts_with(row.path) : key.path == row.path;
      if (fits && row.path.size() > longest) longest = row.path.size(), key.effect = row.effect;
    }
    LT_CHECK(key.effect != Effect::unset, "{}: add what it changes to schema_effects.cpp", key.path);
  }
}

}  // namespace ltrain::recipe
