// Rules of DiLoCo: sites, when they synchronize, and what needs all ranks in every step.
#include "base/error.h"
#include "runtime/recipe/nearest_value.h"
#include "runtime/recipe/rules/rules.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {
namespace {

const std::string kSites = "diloco.sites", kInner = "diloco.inner_steps", kFragments = "diloco.fragments",
                  kShares = "diloco.shares";

/// Steps at which all ranks meet must be synchronizations, unless what sites share is kept beside their
/// weights.
void meeting_steps(const Recipe& r, const BrokenRule& broken) {
  if (meets_anywhere(r)) return;
  const int64_t inner = r.diloco.inner_steps;
  const auto check = [&](const char* key, int64_t steps, const char* what) {
    if (steps % inner == 0) return;
    broken(key,
           fmt::format("{} while sites have weights of their own: must be a multiple of {} = {}{}", what,
                       kInner, inner, nearest_multiple(steps, inner)),
           {kInner, kSites});
  };
  if (r.train.stop_step)
    check("train.stop_step", *r.train.stop_step, "ends the run");
  else
    check("train.train_steps", r.train.train_steps, "ends the run");
  if (!r.data.eval.empty()) check("train.eval_interval", r.train.eval_interval, "evaluates");
  check("checkpoint.save_interval", r.checkpoint.save_interval, "saves");
}

/// One fragment at a time is on its way, and each has layers.
void fragment_rules(const Recipe& r, const BrokenRule& broken) {
  const DilocoSettings& d = r.diloco;
  const int64_t layers = r.model.num_hidden_layers, most = std::min(layers, d.inner_steps);
  const auto good = [&](int64_t n) { return n <= most && d.inner_steps % n == 0; };
  if (!good(d.fragments))
    return broken(
        kFragments,
        fmt::format("must divide diloco.inner_steps = {}, and be at most model.num_hidden_layers = {}{}",
                    d.inner_steps, layers, nearest(d.fragments, 1, most, good)),
        {kInner, "model.num_hidden_layers"});
  if (d.delay >= d.interval())
    broken("diloco.delay",
           fmt::format(
               "must be below diloco.inner_steps / diloco.fragments = {}, so that one fragment at a time is "
               "on its way; nearest valid value: {}",
               d.interval(), d.interval() - 1),
           {kInner, kFragments});
}

/// A share for each site. The other rules read their ratios.
void share_rules(const Recipe& r, const BrokenRule& broken) {
  const auto count = static_cast<int64_t>(r.diloco.shares.size());
  if (count > 0 && count != r.diloco.sites)
    broken(
        kShares,
        fmt::format("must have a share for each site: diloco.sites = {}, and has {}", r.diloco.sites, count),
        {kSites});
}

/// Settings with a state or a decision of all ranks in every step.
void every_step(const Recipe& r, const BrokenRule& broken) {
  const auto refuse = [&](const char* key, bool on, const char* why, const char* valid) {
    if (on) broken(key, fmt::format("{}; nearest valid value: {}, or diloco.sites: 0", why, valid), {kSites});
  };
  refuse("precision", computes_in(r, Precision::fp16), "has a loss scale, on which sites would not agree",
         "bf16");
  refuse("precision", computes_in(r, Precision::fp8),
         "has largest magnitudes of the past, which sites would not share", "bf16");
  refuse("optimizer.master_weights", !r.optimizer.master_weights,
         "has no fp32 weights, of which diloco.sites averages the changes", "true");
  refuse("train.skip_grad_norm", r.train.skip_grad_norm > 0,
         "skips updates, and sites would be at different steps of the schedule", "0");
  refuse("train.ema_decay", r.train.ema_decay > 0, "averages weights that sites do not share", "0");
  refuse("sparsity.match", r.sparsity.on(), "has zeros that sites would choose differently", "[]");
  refuse("parallel.grad_reduce_dtype", keeps_errors(r.parallel.grad_reduce_dtype),
         "has rounding errors of ranks, which checkpoints of several sites do not have", "bf16");
  refuse("offload.optimizer.device", r.offload.optimizer.on(),
         "moves master weights out, which diloco.sites changes on the device", "none");
  refuse("offload.params.device", r.offload.params.on(),
         "moves weights out, which diloco.sites changes on the device", "none");
  refuse("task", trains_preferences(r.task), "counts examples of all ranks in a step", "pretrain");
  refuse("data.shuffle_window", r.data.shuffle_window > 0,
         "may stop a run at any step, when token files are missing", "0");
  one_kind_of_step_rule(r, broken, kSites, ", and so has diloco.sites");
}

}  // namespace

bool meets_anywhere(const Recipe& r) {
  return r.diloco.streams() && (r.model.moe.num_experts == 0 || r.model.moe.bias_update_rate == 0);
}

void diloco_rules(const Recipe& r, const BrokenRule& broken) {
  if (!r.diloco.on()) return;
  fragment_rules(r, broken);
  share_rules(r, broken);
  meeting_steps(r, broken);
  every_step(r, broken);
  const int64_t data = r.parallel.data, sites = r.diloco.sites;
  if (data > 0 && data % sites != 0)
    broken(kSites,
           fmt::format("must divide parallel.data = {}{}", data,
                       nearest(sites, 1, data, [&](int64_t n) { return data % n == 0; })),
           {"parallel.data"});
}

void diloco_layout_rules(const Recipe& r, int64_t world, int64_t per_node, const BrokenRule& broken) {
  const int64_t sites = r.diloco.sites;
  if (sites <= 1) return;
  const Parallel& p = r.parallel;
  const int64_t data = world / (p.tensor * p.pipeline * p.context), here = ranks_on_host(r, world, per_node);
  const auto good = [&](int64_t n) { return data % n == 0 && (here >= world || world / n % here == 0); };
  if (good(sites)) return;
  const std::string wrong =
      data % sites != 0
          ? fmt::format("must divide the {} data-parallel ranks", data)
          : fmt::format("makes sites of {} ranks, and a site is full nodes of {} ranks", world / sites, here);
  broken(
      kSites, wrong + nearest(sites, 1, data, good),
      {"parallel.data", "launch.ranks_per_node", "parallel.tensor", "parallel.pipeline", "parallel.context"});
}

}  // namespace ltrain::recipe
