#include "models/moe/router.h"

#include <cmath>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/matmul.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/moe/jitter.h"
#include "kernels/moe/shared_capacity.h"
#include "kernels/moe/sort_choices.h"

namespace ltrain {
namespace {

constexpr VaryingRows kSamples{"tokens of a micro-batch"};

MemoryKind kept_in(const Step& step) {
  return step.training ? MemoryKind::activations : MemoryKind::temporaries;
}

}  // namespace

void Router::declare(ParameterStore& store, const Groups& groups, const ModelConfig& c,
                     const std::string& name, int64_t layer, bool rows_cut) {
  const MoeConfig& m = c.moe;
  args_.experts = m.router_outputs();
  args_.zero_experts = m.zero_experts;
  args_.top_k = m.top_k;
  args_.sigmoid = m.score == RouterScore::sigmoid;
  args_.top_k_first = m.order == RouterOrder::topk_first;
  args_.renormalize = m.norm_topk_prob;
  args_.scale = m.routed_scaling_factor;
  args_.groups = m.n_group;
  args_.kept_groups = m.topk_group;
  args_.drop = m.drop_policy;
  args_.threshold = m.selection == Selection::top_p ? m.top_p : m.second_threshold;
  args_.selection = m.selection;
  jitter_ = m.jitter_eps;
  balance_ = m.balance;
  coeff_ = m.balance_coeff;
  z_coeff_ = m.z_loss_coeff;
  entropy_coeff_ = m.entropy_coeff;
  capacity_factor_ = m.capacity_factor.value_or(0);
  eval_capacity_factor_ = m.eval_capacity_factor.value_or(0);
  layer_ = layer;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    if (!m.in_layer(i)) continue;
    if (layers_++ == 0) first_layer_ = i;
    last_layer_ = i;
  }
  rows_cut_ = rows_cut;
  place_ = c.place(layer);
  ParameterSpec weight{.name = name + ".weight",
                       .shape = {m.router_outputs(), c.hidden_size},
                       .init = Init::normal,
                       .std = c.initializer_range,
                       .decay = true};
  weight.router = layer >= 0;
  if (rows_cut) weight.sum = Axis::tensor;
  weight_ = store.add({weight});
  if (layer >= 0 && m.by_token()) declare_by_token(store, c, name);
  if (layer < 0 || !c.traits().router_bias) return;
  ParameterSpec bias{
      .name = name + ".bias", .shape = {m.router_outputs()}, .init = Init::zeros, .std = 0, .decay = false};
  bias.router = true;
  if (rows_cut) bias.sum = Axis::tensor;
  bias_ = store.add({bias});
}

RouteArgs Router::args(const Step& step, int64_t tokens) const {
  const bool alone = ranks_of_samples(step.groups) == 1;
  RouteArgs a = args_;
  if (alone) a.capacity = capacity(step.groups, tokens, step.training);
  if (!step.training && a.selection == Selection::gshard_top2) a.threshold = 0;  // evaluation takes both
  if (a.selection == Selection::expert_choice) {
    if (!alone) a.capacity = tokens;  // all are candidates until the choices of other ranks are known
    a.top_k = a.experts;
    a.renormalize = a.top_k_first = false;
    a.drop = Drop::least_weight;
  }
  return a;
}

int64_t Router::capacity(const Groups& groups, int64_t tokens, bool training) const {
  const int64_t all = tokens * ranks_of_samples(groups);
  if (args_.selection == Selection::expert_choice)
    return std::clamp<int64_t>(all * args_.top_k / args_.experts, 1, all);
  const double factor = training ? capacity_factor_ : eval_capacity_factor_;
  if (factor <= 0) return 0;
  const double even = static_cast<double>(all * args_.top_k) / static_cast<double>(args_.experts);
  return std::min(all, static_cast<int64_t>(std::ceil(even * factor)));
}

double Router::all_tokens(const Step& step, int64_t tokens) const {
  const int64_t ranks = step.groups.mesh.size(kGradientAxes) * (rows_cut_ ? step.groups.tensor.size() : 1);
  return static_cast<double>(tokens * ranks);
}

Tensor Router::sums(const MicroBatch& mb, int64_t begin, int64_t count) const {
  return mb.experts.flat(layer_ * mb.experts.cols() + begin, {count});
}

RowRandom Router::random(const Step& step, const MicroBatch& mb, int64_t rows, const char* what) const {
  return step.random(place_ + what, mb, rows == mb.rows() ? step.whole_rows(mb) : step.row_map(mb));
}

void Router::score(Step& step, Tensor x, Saved& saved) const {
  saved.routing.logits =
      step.memory.allocate(kept_in(step), "router logits", step.stat_type(), {x.shape[0], args_.experts});
  MatmulArgs product;
  product.trans_b = true;
  Tensor bias;
  if (bias_ >= 0) {
    bias = step.memory.allocate(MemoryKind::temporaries, "router bias", step.stat_type(), {args_.experts});
    cast(step.compute, bias, step.params.value(bias_));
    product.bias = bias;
  }
  matmul(step.compute, saved.routing.logits, x, step.params.value(weight_), product);
  step.release(bias);
}

void Router::choose(Step& step, const MicroBatch& mb, Tensor bias, int64_t run, const RowRandom& random,
                    Saved& saved) const {
  Routing& r = saved.routing;
  const int64_t tokens = r.logits.shape[0];
  RouteArgs a = args(step, tokens);
  const int64_t e = a.experts, k = a.top_k;
  const auto make = [&](const char* name, DType type, Shape shape) {
    return step.memory.allocate(kept_in(step), name, type, shape);
  };
  r.run = run;
  r.norm = make("router norms", step.stat_type(), {tokens, 2});
  r.experts = make("chosen experts", DType::i32, {tokens, k});
  const bool on = mb.choices.on() && !step.compute.meta();
  Tensor record;
  if (on) record = mb.choices.of_layer(layer_, first_row(step, mb, tokens), r.experts.shape);
  const bool replays = mb.choices.given;
  a.given = replays || by_token_;
  if (by_token_) look_up(step, mb, r.experts);
  if (on && replays) step.compute.copy(r.experts.data, record.data, record.bytes());
  r.weights = make("weights of experts", step.stat_type(), {tokens, k});
  r.slots = make("rows of choices", DType::i32, {tokens, k});
  r.sources = make("choices of rows", DType::i32,
                   {a.selection == Selection::expert_choice ? e * a.capacity : tokens * k});
  r.counts = make("rows of experts", DType::i64, {a.real_experts() + 1});
  r.statistics = make("router statistics", DType::f64, {2 * (tokens / r.run) + 1, e});
  if (a.zero_experts > 0) {
    r.identity_weights = make("weights of zero experts", step.stat_type(), {tokens, 1});
    r.identity_rows = make("tokens of zero experts", DType::i32, {tokens, 1});
  }
  route_forward(step.compute, r, bias, a, random);
  // A recomputation writes the same again.
  if (on && !replays) step.compute.copy(record.data, r.experts.data, record.bytes());
  if (ranks_of_samples(step.groups) > 1 && capacity(step.groups, tokens, step.training) > 0)
    drop_beyond(step, mb, a, r);
}

void Router::drop_beyond(Step& step, const MicroBatch& mb, const RouteArgs& a, Routing& r) const {
  const Groups& g = step.groups;
  const int64_t tokens = r.logits.shape[0], parts = rows_cut_ ? g.tensor.size() : 1;
  const auto gather = [&](const char* name, const Tensor& own) {
    Tensor of_rank = place_apart(step.compute, own, name), all;
    const auto make = [&](int64_t rows) {
      return step.memory.allocate(MemoryKind::temporaries, name, own.dtype, {rows, own.cols()});
    };
    if (parts > 1) g.tensor.all_gather(step.compute, all = make(parts * tokens), of_rank);
    if (g.context.size() == 1) return all;
    Tensor whole = make(parts * tokens * g.context.size());
    g.context.all_gather(step.compute, whole, parts > 1 ? all : of_rank, kSamples);
    step.release(all);
    return whole;
  };
  Tensor experts = gather("chosen experts of a micro-batch", r.experts);
  Tensor weights = gather("weights of a micro-batch", r.weights);
  GatheredTokens order{.batch = mb.batch, .seq = mb.seq, .context = g.context.size(), .mirrored = false};
  if (order.context > 1) order.seq = mb.cut.seq, order.mirrored = mb.cut.zig_zag();
  for (const Tensor& t : {experts, weights})
    for (const Axis axis : {Axis::context, Axis::tensor})
      place_require(step.compute, "choosing from the tokens of a micro-batch", t, axis, Placement::R());
  Tensor kept = step.memory.allocate(MemoryKind::temporaries, "kept choices", DType::i32, r.slots.shape);
  const int64_t first = (g.context.rank() * parts + (parts > 1 ? g.tensor.rank() : 0)) * tokens;
  keep_of_all(step.compute, kept, r.statistics.narrow(r.statistics.shape[0] - 1, 1), experts, weights, order,
              first, capacity(g, tokens, step.training), a);
  sort_choices(step.compute, r, kept, r.counts, {});
  for (Tensor* t : {&experts, &weights, &kept}) step.release(*t);
}

void Router::forward(Step& step, const MicroBatch& mb, Tensor x, Saved& saved) const {
  const int64_t tokens = x.shape[0];
  if (mb.by_token.freezes) freeze(step, mb);
  if (jitters(step)) {
    Tensor noisy = step.temporary("noisy rows of the router", x.shape);
    jitter(step.compute, noisy, x, random(step, mb, tokens, ".router.jitter"), jitter_);
    score(step, noisy, saved);
    step.release(noisy);
  } else {
    score(step, x, saved);
  }
  Tensor bias;
  if (mb.router_bias.defined()) bias = mb.router_bias.flat(layer_ * args_.experts, {args_.experts});
  choose(step, mb, bias, balance_ == BalanceLoss::sequence ? tokens / mb.batch : tokens,
         random(step, mb, tokens, ".router.second"), saved);
  if (!step.training) return;
  add_up(step, mb, saved);
  if (balances() && of_all_layers())
    balance_layers(step, mb, saved.routing);
  else if (balances())
    balance(step, mb, saved);
  if (distils()) distil(step, mb, saved.routing);
}

void Router::sum_statistics(Step& step, Tensor all, bool by_sequence) const {
  (by_sequence ? step.groups.context : step.groups.gradient).all_reduce(step.compute, all);
  if (rows_cut_) step.groups.tensor.all_reduce(step.compute, all);
}

void Router::balance_layers(Step& step, const MicroBatch& mb, const Routing& r) const {
  if (layer_ == first_layer_) fill_zero(step.compute, mb.balance_sums);
  add_to(step.compute, mb.balance_sums, r.statistics.narrow(0, 2));
  if (layer_ != last_layer_) return;
  Tensor all =
      step.memory.allocate(MemoryKind::temporaries, "balance of all", DType::f64, mb.balance_sums.shape);
  cast(step.compute, all, mb.balance_sums);
  sum_statistics(step, all, false);
  BalanceArgs a;
  a.experts = args_.experts;
  a.tokens = all_tokens(step, r.logits.shape[0]) * static_cast<double>(layers_);
  // hf's f counts choices for each token, which sum to top_k instead of 1.
  a.coeff = mb.by_token.learns * coeff_ * static_cast<double>(args_.top_k) / static_cast<double>(mb.micros);
  a.loss_scale = mb.loss_scale;
  balance_loss(step.compute, mb.balance_table, sums(mb, 2 * args_.experts, 1), mb.balance_sums, all, a);
  step.release(all);
}

void Router::balance(Step& step, const MicroBatch& mb, Saved& saved) const {
  const Routing& r = saved.routing;
  const int64_t runs = (r.statistics.shape[0] - 1) / 2, e = args_.experts;
  saved.table = step.memory.allocate(MemoryKind::activations, "balance table", DType::f64, {runs, e});
  const bool by_sequence = balance_ == BalanceLoss::sequence;
  const Tensor local = r.statistics.narrow(0, 2 * runs);
  Tensor mine = local;
  if (by_sequence) {  // sums of its own sequences, not summands of common ones
    mine = place_apart(step.compute, local, "router statistics of sequences");
    place_set(step.compute, mine, kDataAxes, Placement::V());
  }
  Tensor all = step.memory.allocate(MemoryKind::temporaries, "balance of all", DType::f64, {2 * runs, e});
  cast(step.compute, all, mine);
  if (balance_ == BalanceLoss::global)  // choices of this step so far, over all micro-batches
    cast(step.compute, all.narrow(0, 1), sums(mb, 0, e));
  sum_statistics(step, all, by_sequence);
  BalanceArgs a;
  a.kind = balance_ == BalanceLoss::uniform ? Balance::uniform : Balance::load;
  a.experts = e;
  if (by_sequence) {
    const Groups& g = step.groups;
    a.tokens = static_cast<double>(r.run * g.context.size() * (rows_cut_ ? g.tensor.size() : 1));
    a.coeff = coeff_ / (static_cast<double>(mb.batch * g.mesh.size(kDataAxes)) * mb.micros);
  } else {
    a.tokens = all_tokens(step, r.logits.shape[0]);
    a.coeff = coeff_ / static_cast<double>(mb.micros);
  }
  a.coeff *= mb.by_token.learns;
  a.loss_scale = mb.loss_scale;
  balance_loss(step.compute, saved.table, sums(mb, 2 * e, 1), local, all, a);
  step.release(all);
}

void Router::add_up(Step& step, const MicroBatch& mb, const Saved& saved) const {
  const Routing& r = saved.routing;
  const int64_t runs = (r.statistics.shape[0] - 1) / 2, e = args_.experts;
  // all tokens are candidates; kept choices count as chosen
  if (args_.selection == Selection::expert_choice) {
    add_to(step.compute, sums(mb, 0, e), r.statistics.narrow(2 * runs, 1));
  } else {
    for (int64_t g = 0; g < runs; ++g) add_to(step.compute, sums(mb, 0, e), r.statistics.narrow(g, 1));
  }
  add_to(step.compute, sums(mb, e, e), r.statistics.narrow(2 * runs, 1));
  const double all = all_tokens(step, r.logits.shape[0]) * static_cast<double>(mb.micros);
  if (z_coeff_ > 0) add_z_loss(step.compute, sums(mb, 2 * e + 1, 1), r, z_coeff_ / all);
  if (entropy_coeff_ > 0)
    add_router_entropy(step.compute, sums(mb, 2 * e + 4, 1), r, args_, entropy_coeff_ / all);
}

void Router::add_up_beyond(Step& step, const MicroBatch& mb, const Saved& saved, int64_t rows,
                           int64_t slices) const {
  Tensor one = step.memory.allocate(MemoryKind::temporaries, "beyond the budget", DType::f64, {1});
  const double ranks = all_tokens(step, 1) * static_cast<double>(mb.micros);
  const auto add = [&](int64_t at, double number) {
    fill_value(step.compute, one, number);
    place(step.compute, "counting rows beyond the budget", Rule::linear, {one}, {saved.routing.statistics});
    add_to(step.compute, sums(mb, 2 * args_.experts + at, 1), one);
  };
  if (slices > 0) {
    add(2, static_cast<double>(rows));
    add(3, static_cast<double>(slices) / ranks);
  }
  step.release(one);
}

void Router::weight_backward(Step& step, const MicroBatch& mb, Tensor dlogits, Tensor x) const {
  Tensor seen = x;
  if (jitters(step)) {
    seen = step.temporary("noisy rows of the router", x.shape);
    jitter(step.compute, seen, x, random(step, mb, x.shape[0], ".router.jitter"), jitter_);
  }
  const GradBuffer to = step.params.accumulate(weight_);
  MatmulArgs product;
  product.trans_a = true;
  product.accumulate = to.accumulate;
  matmul(step.compute, to.tensor, dlogits, seen, product);
  step.params.grad_ready(weight_);
  if (jitters(step)) step.release(seen);
  if (bias_ < 0) return;
  const GradBuffer bias = step.params.accumulate(bias_);
  sum_rows(step.compute, bias.tensor, dlogits, bias.accumulate);
  step.params.grad_ready(bias_);
}

void Router::backward(Step& step, const MicroBatch& mb, Tensor dx, int64_t first_row, Tensor dweights,
                      Tensor x, Saved& saved, Tensor didentity) const {
  const Routing& r = saved.routing;
  const int64_t tokens = x.shape[0];
  Tensor dlogits =
      step.memory.allocate(MemoryKind::temporaries, "d router logits", step.stat_type(), r.logits.shape);
  const auto of_token = [&](double coeff) {
    return mb.loss_scale * coeff / (all_tokens(step, tokens) * static_cast<double>(mb.micros));
  };
  const Tensor table = balances() && of_all_layers() ? mb.balance_table : saved.table;
  route_backward(step.compute, dlogits, dweights, r, table, of_token(z_coeff_), args(step, tokens),
                 of_token(entropy_coeff_), didentity);
  Tensor d = dlogits;
  if (step.dtype != dlogits.dtype) {
    d = step.temporary("d router logits, rounded", dlogits.shape);
    cast(step.compute, d, dlogits);
  }
  if (step.params.trains(weight_)) weight_backward(step, mb, d, x);
  if (distils() && step.params.trains(scores_)) distil_backward(step, mb, r);
  Tensor mine = d;
  if (dx.shape[0] != tokens) {
    mine = place_apart(step.compute, d.narrow(first_row, dx.shape[0]), "d router logits of the rank's rows");
    place_set(step.compute, mine, Axis::tensor, Placement::S(0));
  }
  matmul(step.compute, dx, mine, step.params.value(weight_));
  if (jitters(step)) jitter(step.compute, dx, dx, random(step, mb, dx.shape[0], ".router.jitter"), jitter_);
  if (step.dtype != dlogits.dtype) step.release(d);
  step.release(dlogits);
}

void Router::release(Step& step, Saved& saved) {
  Routing& r = saved.routing;
  for (Tensor* t : {&r.logits, &r.norm, &r.experts, &r.weights, &r.slots, &r.sources, &r.counts,
                    &r.statistics, &r.identity_weights, &r.identity_rows, &saved.table})
    step.release(*t);
}

}  // namespace ltrain
