#include "kernels/moe/route.h"

#include "kernels/meta/placement_rules.h"

namespace ltrain {
namespace {

void check(const Routing& r, const RouteArgs& a) {
  const int64_t tokens = r.logits.shape[0];
  LT_CHECK(r.logits.shape == Shape({tokens, a.experts}) && a.top_k >= 1 && a.top_k <= a.experts,
           "router: expected logits ({}, {}) and top_k from 1 to {}, got logits {} and top_k {}", tokens,
           a.experts, a.experts, to_string(r.logits.shape), a.top_k);
  LT_CHECK(a.experts % a.groups == 0 && a.groups <= 64 && a.kept_groups * (a.experts / a.groups) >= a.top_k,
           "router: expected at most 64 groups that divide {} experts, and kept groups with at least {} "
           "experts; got {} groups, {} kept",
           a.experts, a.top_k, a.groups, a.kept_groups);
  LT_CHECK(
      r.run > 0 && tokens % r.run == 0 && r.statistics.shape == Shape({2 * (tokens / r.run) + 1, a.experts}),
      "router: expected a run that divides {} tokens, and statistics of 2 rows for each run and 1 more of {} "
      "columns; got run {} and statistics {}",
      tokens, a.experts, r.run, to_string(r.statistics.shape));
  const bool expert_choice = a.selection == Selection::expert_choice;
  LT_CHECK(
      !expert_choice || (a.top_k == a.experts && a.capacity >= 1 && a.capacity <= tokens && !a.renormalize),
      "router with expert choice: expected top_k {}, a capacity from 1 to {} and no renormalization, got "
      "top_k {}, capacity {}, renormalize {}",
      a.experts, tokens, a.top_k, a.capacity, a.renormalize);
  LT_CHECK(a.selection != Selection::gshard_top2 || (a.top_k == 2 && a.renormalize),
           "router with GShard's top-2: expected top_k 2 and renormalization, got top_k {}, renormalize {}",
           a.top_k, a.renormalize);
  LT_CHECK(a.selection != Selection::top_p || (a.threshold > 0 && a.threshold <= 1),
           "router with top-p: expected a sum of scores above 0, at most 1, got {}", a.threshold);
  LT_CHECK(a.zero_experts >= 0 && a.zero_experts < a.experts && (a.zero_experts == 0 || !expert_choice),
           "router: expected fewer zero experts than {} experts, and none with expert choice, got {}",
           a.experts, a.zero_experts);
  LT_CHECK(!a.given || a.selection == Selection::top_k,
           "router with given experts: expected selection top_k, got {}", to_string(a.selection));
  const Shape chosen{tokens, a.top_k};
  const int64_t rows = expert_choice ? a.experts * a.capacity : chosen.elements();
  LT_CHECK(r.experts.shape == chosen && r.weights.shape == chosen && r.slots.shape == chosen &&
               r.sources.elements() == rows && r.counts.elements() == a.real_experts() + 1 &&
               r.norm.shape == Shape({tokens, 2}),
           "router: expected experts, weights and slots {}, {} sources, {} counts and norm ({}, 2); got {}, "
           "{}, {}, {}, {}, {}",
           to_string(chosen), rows, a.real_experts() + 1, tokens, to_string(r.experts.shape),
           to_string(r.weights.shape), to_string(r.slots.shape), r.sources.elements(), r.counts.elements(),
           to_string(r.norm.shape));
  LT_CHECK(a.zero_experts == 0 || (r.identity_weights.shape == Shape({tokens, 1}) &&
                                   r.identity_rows.shape == Shape({tokens, 1})),
           "router with zero experts: expected weights and rows of the identity ({}, 1), got {} and {}",
           tokens, to_string(r.identity_weights.shape), to_string(r.identity_rows.shape));
}

RoutePointers pointers(const Routing& r, const Tensor& bias) {
  return {r.logits.data,
          bias.data,
          r.norm.data,
          r.weights.data,
          r.experts.ptr<int32_t>(),
          r.slots.ptr<int32_t>(),
          r.sources.ptr<int32_t>(),
          r.counts.ptr<int64_t>(),
          r.statistics.ptr<double>(),
          r.logits.shape[0],
          r.run,
          r.identity_weights.data,
          r.identity_rows.defined() ? r.identity_rows.ptr<int32_t>() : nullptr};
}

}  // namespace

void route_forward(Stream& s, const Routing& r, Tensor bias, const RouteArgs& args, const RowRandom& random) {
  check(r, args);
  if (s.meta()) {
    s.meta()->add(s, op_cost("route_forward", OpClass::elementwise, 30.0 * r.logits.elements(),
                             {r.logits, r.experts, r.weights, r.slots, r.sources}, {r.logits}));
    const auto from = [&](Rule rule, const Tensor& out) {
      bias.defined() ? place(s, "route_forward", rule, {out}, {r.logits, bias})
                     : place(s, "route_forward", rule, {out}, {r.logits});
    };
    for (const Tensor& out : {r.norm, r.experts, r.weights, r.slots, r.sources, r.counts})
      from(Rule::elementwise, out);
    if (args.zero_experts > 0)
      for (const Tensor& out : {r.identity_weights, r.identity_rows}) from(Rule::elementwise, out);
    from(Rule::sum_to_rows, r.statistics);
    return;
  }
  RouteArgs a = args;
  if (a.selection == Selection::gshard_top2 && a.threshold > 0) a.random = random.args();
  LT_LAUNCH(s, route_forward, r.logits.dtype, pointers(r, bias), a);
}

void route_backward(Stream& s, Tensor dlogits, Tensor dweights, const Routing& r, Tensor table,
                    double z_coeff, const RouteArgs& a, double entropy_coeff, Tensor didentity) {
  check(r, a);
  LT_CHECK(a.zero_experts == 0 || didentity.shape == r.identity_weights.shape,
           "router backward: expected didentity {}, got {}", to_string(r.identity_weights.shape),
           to_string(didentity.shape));
  LT_CHECK(dlogits.shape == r.logits.shape && dweights.shape == r.weights.shape,
           "router backward: expected dlogits {} and dweights {}, got {} and {}", to_string(r.logits.shape),
           to_string(r.weights.shape), to_string(dlogits.shape), to_string(dweights.shape));
  if (s.meta()) {
    s.meta()->add(s, op_cost("route_backward", OpClass::elementwise, 40.0 * r.logits.elements(), {dlogits},
                             {r.logits, dweights, r.weights}));
    table.defined() ? place(s, "route_backward", Rule::elementwise, {dlogits},
                            {r.logits, dweights, r.weights, r.experts, r.norm, table})
                    : place(s, "route_backward", Rule::elementwise, {dlogits},
                            {r.logits, dweights, r.weights, r.experts, r.norm});
    if (a.zero_experts > 0) place(s, "route_backward", Rule::elementwise, {}, {r.weights, didentity});
    return;
  }
  const RouteGradients d{.weights = dweights.data,
                         .identity = a.zero_experts > 0 ? didentity.data : nullptr,
                         .table = table.defined() ? table.ptr<double>() : nullptr,
                         .z = z_coeff,
                         .entropy = entropy_coeff};
  LT_LAUNCH(s, route_backward, r.logits.dtype, dlogits.data, d, pointers(r, {}), a);
}

void add_z_loss(Stream& s, Tensor total, const Routing& r, double scale) {
  if (s.meta()) {
    s.meta()->add(s, op_cost("add_z_loss", OpClass::elementwise, 2.0 * r.norm.elements(), {}, {r.norm}));
    place(s, "add_z_loss", Rule::sum_to_rows, {total}, {r.norm}, /*accumulate=*/true);
    return;
  }
  LT_LAUNCH(s, add_z_loss, r.norm.dtype, total.ptr<double>(), r.norm.data, r.norm.shape[0], scale);
}

void add_router_entropy(Stream& s, Tensor total, const Routing& r, const RouteArgs& a, double scale) {
  if (s.meta()) {
    s.meta()->add(s, op_cost("add_router_entropy", OpClass::elementwise, 8.0 * r.logits.elements(), {},
                             {r.logits, r.norm}));
    place(s, "add_router_entropy", Rule::sum_to_rows, {total}, {r.logits}, /*accumulate=*/true);
    return;
  }
  LT_LAUNCH(s, add_router_entropy, r.logits.dtype, total.ptr<double>(), pointers(r, {}), a, scale);
}

}  // namespace ltrain
