// Rules of sparse matrices. Names and shapes are checked once the model is known
// (runtime/plan/sparse_plan.h, parallel/zero/sparse_masks.h).
#include <algorithm>

#include "base/error.h"
#include "parallel/optim/optimizer.h"
#include "parallel/optim/parameter_rule.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

namespace {

void pattern_rules(const SparsitySettings& s, const BrokenRule& broken) {
  if (!parse_pattern(s.pattern))
    broken("sparsity.pattern",
           "must be N:M, with N less than M, and M 4, 8 or 16; nearest valid value: \"2:4\"", {});
  else if (s.transposable && s.pattern != "2:4")
    broken("sparsity.transposable",
           fmt::format("is for 2:4, and sparsity.pattern is {}; nearest valid value: false, or "
                       "sparsity.pattern: \"2:4\"",
                       s.pattern),
           {"sparsity.pattern"});
}

/// Rules of masks that move, whose master weights are dense.
void moving_rules(const Recipe& r, const BrokenRule& broken) {
  const auto refuse = [&](const char* key, bool is, const std::string& why, const char* instead) {
    if (is)
      broken(key,
             fmt::format("{}, and sparsity.mask_interval = {} moves masks; nearest valid value: {}, or "
                         "sparsity.mask_interval: 0",
                         why, r.sparsity.mask_interval, instead),
             {"sparsity.mask_interval"});
  };
  refuse("quantization.weights", r.quantization.on(), "rounds what a mask would have to be read from",
         "none");
  refuse("optimizer.master_weights", !r.optimizer.master_weights, "leaves no weights for what is masked",
         "true");
  refuse("train.ema_decay", r.train.ema_decay > 0, "averages weights that no step multiplies with", "0");
  refuse(
      "optimizer.hessian_estimator",
      r.optimizer.uses(UpdateRule::sophia) && r.optimizer.hessian_estimator == HessianEstimator::hutchinson,
      "moves weights that are masked", "gauss_newton");
  for (int i = 0; i < kUpdateRules; ++i)
    refuse("optimizer.kind",
           is_onebit(static_cast<UpdateRule>(i)) && r.optimizer.uses(static_cast<UpdateRule>(i)),
           "averages signs, which the decay of masked weights would be added to", "adamw");
}

/// True if a pattern matches a matrix of keys or values, of which key-value heads on several ranks have
/// copies.
bool matches_key_values(const Recipe& r) {
  for (const std::string& pattern : r.sparsity.match)
    for (int64_t layer = 0; layer < r.model.num_hidden_layers; ++layer)
      for (const char* matrix : {"k_proj", "v_proj", "qkv_proj"})
        if (name_matches(pattern, fmt::format("model.layers.{}.self_attn.{}.weight", layer, matrix)))
          return true;
  return false;
}

/// Rules of sparse output gradients, whose groups are of neighbouring tokens.
void estimator_rules(const Recipe& r, const BrokenRule& broken) {
  constexpr const char* kKey = "sparsity.gradient_estimator";
  if (r.sparsity.gradient_estimator == GradientEstimator::none) return;
  if (computes_in(r, Precision::fp8))
    broken(
        kKey,
        "chooses among output gradients, and precision: fp8 multiplies codes of them; nearest valid value: "
        "none, or precision: bf16",
        {"precision"});
  const Parallel& p = r.parallel;
  if (p.tensor_mode == TensorModeChoice::one_d && p.tensor > r.model.num_key_value_heads &&
      matches_key_values(r))
    broken(
        kKey,
        fmt::format("prunes output gradients of keys and values, of which each copy has a part, and "
                    "parallel.tensor = {} is more than model.num_key_value_heads = {}; nearest valid value: "
                    "none, or parallel.tensor: {}",
                    p.tensor, r.model.num_key_value_heads, r.model.num_key_value_heads),
        {"parallel.tensor", "model.num_key_value_heads", "sparsity.match"});
  const int64_t context = std::max<int64_t>(1, p.context), length = r.data.seq_length;
  if (length % context != 0) return;  // another rule reports the error
  if (length / context % 4 != 0)
    return broken(kKey,
                  fmt::format("keeps two of each four neighbouring tokens, and data.seq_length = {}{} {} {} "
                              "tokens; nearest valid value: none, or data.seq_length: {}",
                              length, context > 1 ? fmt::format(" over parallel.context = {}", context) : "",
                              context > 1 ? "leaves a rank" : "is", length / context,
                              (length / (4 * context) + 1) * 4 * context),
                  {"data.seq_length", "parallel.context"});
  const int64_t rows = r.train.micro_batch_size * (length / context);
  if (p.sequence_parallel && p.tensor > 1 && rows % p.tensor == 0 && rows / p.tensor % 4 != 0)
    broken(kKey,
           fmt::format("keeps two of each four neighbouring tokens, and parallel.sequence_parallel leaves a "
                       "rank {} of a micro-batch's {}; nearest valid value: none, or "
                       "parallel.sequence_parallel: false",
                       rows / p.tensor, rows),
           {"parallel.sequence_parallel", "parallel.tensor", "train.micro_batch_size", "data.seq_length"});
}

}  // namespace

void sparsity_rules(const Recipe& r, const BrokenRule& broken) {
  const SparsitySettings& s = r.sparsity;
  if (!s.on()) return;
  if (s.at_step > r.train.train_steps)
    broken("sparsity.at_step",
           fmt::format("is after the last of train.train_steps = {}; nearest valid value: {}",
                       r.train.train_steps, r.train.train_steps),
           {"train.train_steps"});
  pattern_rules(s, broken);
  estimator_rules(r, broken);
  one_axis_rule(r, broken, "sparsity.match", "[]");
  for (const auto& [device, of] : {std::pair("offload.optimizer.device", &r.offload.optimizer),
                                   std::pair("offload.params.device", &r.offload.params)})
    if (of->on())
      broken(device,
             "weights that lie elsewhere say too late which gradients are masked, and sparsity.match has "
             "some that are; nearest valid value: none, or sparsity.match: []",
             {"sparsity.match"});
  SparsitySettings of_run = s;
  of_run.train_steps = r.train.train_steps;
  if (s.moves() && s.at_step >= of_run.tail_begin())
    broken("sparsity.dense_tail",
           fmt::format(
               "ends masks before update {}, and sparsity.at_step = {} begins them then or later; nearest "
               "valid value: 0",
               of_run.tail_begin(), s.at_step),
           {"sparsity.at_step", "train.train_steps"});
  if (s.moves()) return moving_rules(r, broken);
  const std::string_view why = optimizer_of(r.optimizer.kind).moves_zeros(r.optimizer);
  if (r.optimizer.groups.empty() && !why.empty())
    broken("optimizer.kind",
           fmt::format("{}, and sparsity.match asks for zeros that stay; nearest valid value: adamw, or "
                       "sparsity.match: []",
                       why),
           {"sparsity.match"});
}

}  // namespace ltrain::recipe
