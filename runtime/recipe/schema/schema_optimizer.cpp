// Keys of the optimizer and of its schedules.
#include <algorithm>

#include "parallel/optim/optimizer.h"
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {
namespace {

Key wsd_only(Key key) {
  key.when("schedule.lr_decay_style: WSD", false,
           [](const Recipe& r) { return r.schedule.lr_decay_style == LrDecayStyle::wsd; });
  return key;
}

Key decaying_only(Key key) {
  key.when("a schedule.lr_decay_style other than constant", false,
           [](const Recipe& r) { return r.schedule.lr_decay_style != LrDecayStyle::constant; });
  return key;
}

/// Update rules with their names in recipes.
std::vector<std::pair<std::string, UpdateRule>> rules() {
  std::vector<std::pair<std::string, UpdateRule>> all;
  for (int i = 0; i < kUpdateRules; ++i)
    all.emplace_back(update_rule_name(static_cast<UpdateRule>(i)), static_cast<UpdateRule>(i));
  return all;
}

/// Reads one group. Returns "" or the error.
ValueError read_group(const Node& node, ParameterGroup& g) {
  if (node.kind != Node::map) return {"needs a map: {match: PATTERN, lr: 1.0e-4}", node.place};
  for (const Node::Entry& e : node.entries) {
    std::string wrong;
    double v = 0;
    if (e.key == "match") {
      wrong = read_text(e.value, g.match);
    } else if (e.key == "kind") {
      std::string kind, all;
      wrong = read_text(e.value, kind);
      for (const auto& [n, rule] : rules()) all += (all.empty() ? "" : ", ") + n;
      g.kind = update_rule(kind);
      if (wrong.empty() && !g.kind) wrong = fmt::format("= {}: must be one of {}", kind, all);
    } else if (e.key == "lr" || e.key == "weight_decay") {
      wrong = read_number(e.value, v);
      if (wrong.empty() && (e.key == "lr" ? v <= 0 : v < 0))
        wrong = e.key == "lr" ? "must be above 0" : "must be at least 0";
      (e.key == "lr" ? g.lr : g.weight_decay) = v;
    } else {
      return {fmt::format("has an unknown key, {}; a group has match, kind, lr, weight_decay", e.key),
              e.place};
    }
    if (!wrong.empty()) return {fmt::format("{} {}", e.key, wrong), e.value.place};
  }
  if (g.match.empty()) return {"needs match: a pattern of parameter names, such as \"*.bias\"", node.place};
  if (!g.kind && !g.lr && !g.weight_decay) return {"sets nothing; give kind, lr or weight_decay", node.place};
  return "";
}

Key groups_key() {
  Key key;
  key.path = "optimizer.groups";
  key.type = "list of {match, kind, lr, weight_decay}";
  key.help =
      "Parameters with their own settings. match: a pattern of full names, * for any characters, ? for one; "
      "the first matching group counts. weight_decay then also applies to norms and biases.";
  key.set = [](const Key&, Recipe& r, const Node& node) -> ValueError {
    if (node.kind != Node::list) return "needs a list: [{match: PATTERN, lr: 1.0e-4}]";
    std::vector<ParameterGroup> list;
    for (size_t i = 0; i < node.items.size(); ++i) {
      ParameterGroup g;
      if (ValueError wrong = read_group(node.items[i], g); !wrong.empty())
        return {fmt::format("group {} {}", i + 1, wrong.text), wrong.place};
      list.push_back(std::move(g));
    }
    r.optimizer.groups = std::move(list);
    return "";
  };
  key.write = [](const Key&, const Recipe& r, bool json) {
    std::string s;
    const auto name = [&](const char* n) { return json ? fmt::format("\"{}\"", n) : std::string(n); };
    for (const ParameterGroup& g : r.optimizer.groups) {
      s += fmt::format("{}{{{}: {}", s.empty() ? "" : ", ", name("match"), write_text(g.match, json));
      if (g.kind)
        s += fmt::format(", {}: {}", name("kind"), write_text(std::string(update_rule_name(*g.kind)), json));
      if (g.lr) s += fmt::format(", {}: {}", name("lr"), write_number(*g.lr));
      if (g.weight_decay) s += fmt::format(", {}: {}", name("weight_decay"), write_number(*g.weight_decay));
      s += "}";
    }
    return "[" + s + "]";
  };
  return key;
}

/// Key that applies if some parameters may use the rule.
Key only(UpdateRule rule, Key key) {
  key.when(fmt::format("optimizer.kind: {}", update_rule_name(rule)), true,
           [rule](const Recipe& r) { return r.optimizer.uses(rule); });
  return key;
}

// Keys of single optimizers: one function per optimizer.

void sgd_keys(std::vector<Key>& t) {
  t.push_back(only(UpdateRule::sgd,
                   number("optimizer.sgd_momentum", LT_MEMBER(optimizer.sgd_momentum), "SGD's momentum.")
                       .between(0, 0.999999)));
  t.push_back(only(UpdateRule::sgd, truth("optimizer.sgd_nesterov", LT_MEMBER(optimizer.sgd_nesterov),
                                          "Nesterov's momentum.")));
}

void lion_keys(std::vector<Key>& t) {
  t.push_back(only(UpdateRule::lion, number("optimizer.lion_beta1", LT_MEMBER(optimizer.lion_beta1),
                                            "Lion: weight of the moment in the direction.")
                                         .between(0, 0.999999)));
  t.push_back(only(UpdateRule::lion, number("optimizer.lion_beta2", LT_MEMBER(optimizer.lion_beta2),
                                            "Lion: decay of the moment.")
                                         .between(0, 0.999999)));
}

void muon_keys(std::vector<Key>& t) {
  t.push_back(only(UpdateRule::muon, number("optimizer.muon_momentum", LT_MEMBER(optimizer.muon_momentum),
                                            "Muon's momentum (Nesterov's).")
                                         .between(0, 0.999999)));
  t.push_back(
      only(UpdateRule::muon, integer("optimizer.muon_num_ns_steps", LT_MEMBER(optimizer.muon_num_ns_steps),
                                     "Steps of the Newton-Schulz iteration.")
                                 .between(1, 100)));
  t.push_back(
      only(UpdateRule::muon, number("optimizer.muon_lr", LT_MEMBER(optimizer.muon_lr),
                                    "Learning rate of Muon's matrices, with the same schedule as lr.")
                                 .changes(Effect::schedule)
                                 .above(0)
                                 .derived("lr", [](Recipe& r) { r.optimizer.muon_lr = r.optimizer.lr; })));
  t.push_back(only(UpdateRule::muon,
                   choice("optimizer.muon_scale", LT_MEMBER(optimizer.muon_scale), {},
                          "Scale of Muon's direction: sqrt(max(1, rows / columns)), or 0.2 sqrt(max(rows, "
                          "columns)), for which AdamW's learning rates are suitable.")));
}

void adafactor_keys(std::vector<Key>& t) {
  t.push_back(only(UpdateRule::adafactor,
                   number("optimizer.adafactor_decay_rate", LT_MEMBER(optimizer.adafactor_decay_rate),
                          "Adafactor: exponent of the second moment's decay, which moves by step^-this.")
                       .inside(0, 1)));
  t.push_back(
      only(UpdateRule::adafactor,
           number("optimizer.adafactor_eps", LT_MEMBER(optimizer.adafactor_eps),
                  "Adafactor: lower bound on a parameter's root mean square, to which its step is relative.")
               .above(0)));
  t.push_back(only(UpdateRule::adafactor,
                   number("optimizer.adafactor_clip_threshold", LT_MEMBER(optimizer.adafactor_clip_threshold),
                          "Adafactor: maximum root mean square of an update.")
                       .above(0)));
}

void onebit_keys(std::vector<Key>& t) {
  const auto only = [](const char* what, Key key, bool lamb = true) {
    key.when(what, true, [lamb](const Recipe& r) {
      return r.optimizer.kind == UpdateRule::onebit_lamb ||
             (!lamb && r.optimizer.kind == UpdateRule::onebit_adam);
    });
    return key;
  };
  t.push_back(only("optimizer.kind: onebit_adam or onebit_lamb",
                   integer("optimizer.freeze_step", LT_MEMBER(optimizer.freeze_step),
                           "Steps of warm-up. After it the second moment is fixed, and ranks average first "
                           "moments with one bit per element instead of gradients.")
                       .changes(Effect::schedule)
                       .between(1, kMaxSteps)
                       .derived("a fifth of train_steps",
                                [](Recipe& r) {
                                  r.optimizer.freeze_step = std::max<int64_t>(1, r.train.train_steps / 5);
                                }),
                   false));
  const char* lamb = "optimizer.kind: onebit_lamb";
  t.push_back(only(lamb, number("optimizer.max_coeff", LT_MEMBER(optimizer.lamb_limits.max_coeff),
                                "Largest trust ratio of a tensor during warm-up.")
                             .above(0)));
  t.push_back(only(lamb, number("optimizer.min_coeff", LT_MEMBER(optimizer.lamb_limits.min_coeff),
                                "Smallest trust ratio of a tensor during warm-up.")
                             .above(0)));
  t.push_back(only(lamb, number("optimizer.coeff_beta", LT_MEMBER(optimizer.lamb_limits.coeff_beta),
                                "Decay of the average of trust ratios, which is used after warm-up.")
                             .between(0, 0.999999)));
  t.push_back(only(lamb, number("optimizer.factor_max", LT_MEMBER(optimizer.lamb_limits.factor_max),
                                "Largest factor on that average after warm-up.")
                             .above(0)));
  t.push_back(only(lamb, number("optimizer.factor_min", LT_MEMBER(optimizer.lamb_limits.factor_min),
                                "Smallest factor on that average after warm-up.")
                             .above(0)));
  t.push_back(
      only(lamb, number("optimizer.factor_threshold", LT_MEMBER(optimizer.lamb_limits.factor_threshold),
                        "Largest relative change of the factor per step.")
                     .inside(0, 1)));
}

void sophia_keys(std::vector<Key>& t) {
  const auto sophia = [](Key key) { return only(UpdateRule::sophia, std::move(key)); };
  t.push_back(sophia(
      choice("optimizer.hessian_estimator", LT_MEMBER(optimizer.hessian_estimator), {},
             "Estimator of the Hessian's diagonal. gauss_newton: squares of the gradient with labels sampled "
             "from the model's logits. hutchinson: difference of two gradients, in fp32 or fp64.")));
  t.push_back(sophia(integer("optimizer.hessian_interval", LT_MEMBER(optimizer.hessian_interval),
                             "Steps between two estimates of the Hessian's diagonal.")
                         .between(1, kMaxSteps)));
  t.push_back(sophia(number("optimizer.sophia_gamma", LT_MEMBER(optimizer.sophia_gamma),
                            "The moment is divided by this multiple of the diagonal and clipped to 1.")
                         .above(0)
                         .derived("gauss_newton 0.05, hutchinson 0.01", [](Recipe& r) {
                           const bool gauss = r.optimizer.hessian_estimator == HessianEstimator::gauss_newton;
                           r.optimizer.sophia_gamma = gauss ? 0.05 : 0.01;
                         })));
  Key radius = number("optimizer.hessian_radius", LT_MEMBER(optimizer.hessian_radius),
                      "Distance by which each weight is moved for the second gradient of the estimate.")
                   .inside(0, 1);
  radius.when("optimizer.hessian_estimator: hutchinson", true, [](const Recipe& r) {
    return r.optimizer.uses(UpdateRule::sophia) &&
           r.optimizer.hessian_estimator == HessianEstimator::hutchinson;
  });
  t.push_back(radius);
}

}  // namespace

void add_optimizer_keys(std::vector<Key>& t) {
  t.push_back(choice<UpdateRule>("optimizer.kind", LT_MEMBER(optimizer.kind), rules(), {},
                                 "Update rule. muon: matrices except embeddings. adamw8bit: matrices. Other "
                                 "parameters of these use adamw. optimizers.md describes each rule.")
                  .alias({"optimizer_type"}));
  t.push_back(number("optimizer.lr", LT_MEMBER(optimizer.lr), "Highest learning rate.")
                  .changes(Effect::schedule)
                  .above(0)
                  .alias({"learning_rate"}));
  t.push_back(decaying_only(
      number("optimizer.min_lr", LT_MEMBER(optimizer.min_lr), "Learning rate at the end of the decay.")
          .changes(Effect::schedule)
          .at_least(0)));
  t.push_back(number("optimizer.weight_decay", LT_MEMBER(optimizer.weight_decay),
                     "Weight decay of matmul weights; not applied to norms and biases.")
                  .at_least(0));
  t.push_back(truth("optimizer.decay_embeddings", LT_MEMBER(optimizer.decay_embeddings),
                    "Applies weight decay to embeddings too."));
  t.push_back(number("optimizer.adam_beta1", LT_MEMBER(optimizer.adam_beta1), "Decay of the first moment.")
                  .between(0, 0.999999));
  t.push_back(number("optimizer.adam_beta2", LT_MEMBER(optimizer.adam_beta2), "Decay of the second moment.")
                  .between(0, 0.999999));
  t.push_back(
      number("optimizer.adam_eps", LT_MEMBER(optimizer.adam_eps), "Added to the root of the second moment.")
          .above(0)
          .alias({"adam_epsilon"}));
  for (const auto& keys : {sgd_keys, lion_keys, muon_keys, adafactor_keys, onebit_keys, sophia_keys}) keys(t);
  t.push_back(choice("optimizer.state_dtype", LT_MEMBER(optimizer.state_dtype), {},
                     "Storage type of moments between updates. Updates compute in fp32."));
  Key gradients = choice("optimizer.grad_dtype", LT_MEMBER(optimizer.grad_dtype), {},
                         "Type in which gradients are stored and summed. bf16: the gradients of a "
                         "micro-batch are added in fp32 and rounded.");
  gradients.when("precision: bf16 or fp8", true, [](const Recipe& r) {
    return r.precision == Precision::bf16 || r.precision == Precision::fp8;
  });
  t.push_back(std::move(gradients));
  Key masters = truth("optimizer.master_weights", LT_MEMBER(optimizer.master_weights),
                      "Keeps fp32 master weights. false: only the bf16 weights exist, and updates round them "
                      "stochastically.");
  masters.when("precision: bf16 or fp8", true, [](const Recipe& r) {
    return r.precision == Precision::bf16 || r.precision == Precision::fp8;
  });
  t.push_back(std::move(masters));
  t.push_back(groups_key());
  t.push_back(
      texts("optimizer.frozen", LT_MEMBER(optimizer.frozen), "pattern", "[\"model.embed_tokens.*\"]",
            "Parameters that stay as they are, without gradient, optimizer state and weight decay, and "
            "outside of the gradient norm: patterns of whole names, * for any characters, ? for one."));
}

void add_schedule_keys(std::vector<Key>& t) {
  t.push_back(choice("schedule.lr_decay_style", LT_MEMBER(schedule.lr_decay_style), {},
                     "Shape of the learning rate after warm-up.")
                  .alias({"lr_scheduler_type"}));
  t.push_back(integer("schedule.lr_warmup_steps", LT_MEMBER(schedule.lr_warmup_steps),
                      "Updates of linear warm-up from 0.")
                  .between(0, kMaxSteps)
                  .alias({"lr_warmup_iters", "warmup_steps"}));
  t.push_back(decaying_only(
      integer("schedule.lr_decay_steps", LT_MEMBER(schedule.lr_decay_steps),
              "Update at which the decay ends, including warm-up; then min_lr.")
          .between(0, kMaxSteps)
          .alias({"lr_decay_iters"})
          .derived("train_steps", [](Recipe& r) { r.schedule.lr_decay_steps = r.train.train_steps; })));
  Key cycles = integer("schedule.lr_num_cycles", LT_MEMBER(schedule.lr_num_cycles),
                       "Number of consecutive decays from lr between warm-up and lr_decay_steps.")
                   .between(1, kMaxSteps)
                   .alias({"num_cycles"});
  cycles.when("schedule.lr_decay_style: cosine or linear", true, [](const Recipe& r) {
    return r.schedule.lr_decay_style == LrDecayStyle::cosine ||
           r.schedule.lr_decay_style == LrDecayStyle::linear;
  });
  t.push_back(std::move(cycles));
  const auto moving = [](Key key) {
    key.when("schedule.weight_decay_incr_style: linear or cosine", true, [](const Recipe& r) {
      return r.schedule.weight_decay_incr_style != WeightDecayStyle::constant;
    });
    return key;
  };
  t.push_back(choice("schedule.weight_decay_incr_style", LT_MEMBER(schedule.weight_decay_incr_style), {},
                     "Course of the weight decay from start_weight_decay to end_weight_decay over the run."));
  t.push_back(moving(number("schedule.start_weight_decay", LT_MEMBER(schedule.start_weight_decay),
                            "Weight decay of the first step; null: optimizer.weight_decay.")
                         .at_least(0)));
  t.push_back(moving(number("schedule.end_weight_decay", LT_MEMBER(schedule.end_weight_decay),
                            "Weight decay of the last step; null: optimizer.weight_decay.")
                         .at_least(0)));
  t.push_back(wsd_only(integer("schedule.lr_wsd_decay_steps", LT_MEMBER(schedule.lr_wsd_decay_steps),
                               "WSD: number of steps of the final decay.")
                           .between(0, kMaxSteps)
                           .alias({"lr_wsd_decay_iters"})
                           .derived("a tenth of lr_decay_steps", [](Recipe& r) {
                             const int64_t tenth = (r.schedule.lr_decay_steps + 9) / 10;
                             const int64_t room = r.schedule.lr_decay_steps - r.schedule.lr_warmup_steps;
                             r.schedule.lr_wsd_decay_steps = std::max<int64_t>(0, std::min(tenth, room));
                           })));
  t.push_back(
      wsd_only(choice<LrDecayStyle>("schedule.lr_wsd_decay_style", LT_MEMBER(schedule.lr_wsd_decay_style),
                                    {{"linear", LrDecayStyle::linear}, {"cosine", LrDecayStyle::cosine}},
                                    {"exponential", "minus_sqrt"}, "WSD: shape of the final decay.")));
}

}  // namespace ltrain::recipe
