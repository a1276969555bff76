#include "models/moe_layer.h"

#include "kernels/core/placement_rules.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/tensor_ops.h"
#include "models/tensor_parallel.h"

namespace ltrain {
namespace {

/// A rank's experts of a stack of all of them, in the order of the expert group.
ParameterSpec cut_experts_of(const Groups& g, ParameterSpec spec) {
  const Slice all = Slice::whole(spec.shape);
  const int64_t each = spec.shape[0] / g.expert.size();
  Shape offset = all.offset, extent = all.extent;
  offset.dims[0] = g.expert.rank() * each;
  extent.dims[0] = each;
  spec.slice = Slice::box(all.global, offset, extent);
  spec.shape.dims[0] = each;
  for (int i = 0; i < kAxisCount; ++i)
    if (const Axis a = static_cast<Axis>(i); g.mesh.expert_axes.has(a) && g.size(a) > 1)
      spec.place[a] = Placement::S(0);
  return spec;
}

}  // namespace

std::string mixture_prefix(const ModelConfig& c, int64_t layer) {
  return fmt::format("model.layers.{}.{}", layer, c.architecture == "mixtral" ? "block_sparse_moe" : "mlp");
}

void MoeLayer::declare(ParameterStore& store, const Groups& g, const ModelConfig& c, bool sequence_parallel,
                       bool expert_tensor, const std::string& prefix, int64_t layer, double out_std) {
  const MoeConfig& m = c.moe;
  const int64_t f = m.intermediate_size, h = c.hidden_size;
  experts_ = m.num_experts;
  top_k_ = m.top_k;
  expert_tensor_ = expert_tensor;
  place_ = fmt::format("layers.{}", layer);
  const int parts = expert_tensor ? g.tensor.size() : 1;
  LT_CHECK(g.line() && experts_ % g.expert.size() == 0 && f % parts == 0 &&
               (expert_tensor || !g.tensor.many() || sequence_parallel),
           "{} experts of {} units over {} ranks of {}", experts_, f, g.expert.size(), parts);
  intermediate_ = f / parts;
  router_.declare(store, g, c, prefix + ".gate", layer, g.tensor.many() && !expert_tensor);
  const auto add = [&](const std::string& name, Shape shape, int dim, double std) {
    ParameterSpec spec = cut_experts_of(g, {prefix + ".experts." + name, shape, Init::normal, std, true});
    if (expert_tensor) spec = cut_over(Axis::tensor, std::move(spec), dim, g.tensor.rank(), g.tensor.size());
    return store.add({spec});
  };
  gate_up_ = add("gate_up_proj", {experts_, 2, f, h}, 2, c.initializer_range);
  down_ = add("down_proj", {experts_, h, f}, 2, out_std);
  if (m.shared_experts > 0) declare_shared(store, g, c, sequence_parallel, prefix, layer, out_std);
}

void MoeLayer::declare_shared(ParameterStore& store, const Groups& g, const ModelConfig& c,
                              bool sequence_parallel, const std::string& prefix, int64_t layer,
                              double out_std) {
  has_shared_ = true;
  has_shared_gate_ = c.moe.shared_expert_gate;
  ModelConfig shared = c;
  shared.intermediate_size = c.moe.shared_experts * c.moe.intermediate_size;
  shared_.declare(store, g, shared, sequence_parallel, prefix + ".shared_expert", out_std);
  if (!has_shared_gate_) return;
  shared.moe = {};  // a router of one expert, whose score is the gate
  shared.moe.num_experts = shared.moe.top_k = 1;
  shared.moe.score = "sigmoid";
  shared.moe.norm_topk_prob = false;
  shared_gate_.declare(store, g, shared, prefix + ".shared_expert_gate", -1,
                       g.tensor.many() && sequence_parallel);
}

/// The rows that the router sees: those of all tensor ranks where they share each expert.
Tensor MoeLayer::whole(Step& step, Tensor x) const {
  return cut_experts(step) ? gather_rows(step, x, "gathered rows") : x;
}

void MoeLayer::forward(Step& step, const MicroBatch& mb, Tensor y, Tensor x, Saved& saved) const {
  const ExpertExchange exchange(step.groups, experts_);
  Tensor tokens = whole(step, x);
  const int64_t n = tokens.shape[0], h = x.cols();
  const int64_t capacity = router_.capacity(n, step.training);
  const int64_t most = exchange.most_rows(n, top_k_, capacity);
  router_.forward(step, mb, tokens, saved.router);
  const Routing& r = saved.router.routing;
  saved.counts = exchange.count(step, r, capacity, place_);
  const ExpertRowCounts& c = saved.counts;
  saved.rows = step.activation("rows of experts", {most, h});
  if (exchange.many()) {
    Tensor sorted = step.temporary("rows by expert", {n * top_k_, h});
    permute_rows(step.compute, sorted, tokens, r, c.sorted);
    ExpertExchange::Flight flight = exchange.dispatch_start(step, c, sorted, most);
    if (has_shared_) shared_forward(step, mb, y, x, saved);  // while rows travel
    exchange.dispatch_finish(step, c, saved.rows, flight);
    step.release(sorted);
    Tensor made = step.temporary("made by experts", {most, h});
    run_experts(step, saved, made);
    saved.out = step.activation("rows from experts", {n * top_k_, h});
    exchange.give_back(step, c, saved.out, made);
    step.release(made);
  } else {
    if (has_shared_) shared_forward(step, mb, y, x, saved);
    permute_rows(step.compute, saved.rows, tokens, r, c.sorted);
    saved.out = step.activation("rows from experts", {most, h});
    run_experts(step, saved, saved.out);
  }
  if (cut_experts(step)) release_whole(step, tokens, x);
  Tensor routed = has_shared_ ? step.temporary("routed experts", y.shape) : y;
  if (cut_experts(step)) {
    const Tensor partial = partial_rows(step, routed, n, "partial rows");
    combine_rows(step.compute, partial, saved.out, r, true);
    sum_rows_start(step, routed, partial).wait(step);
  } else {
    combine_rows(step.compute, routed, saved.out, r, true);
  }
  if (has_shared_) {
    add_to(step.compute, y, routed);
    step.release(routed);
  }
  if (step.training) return;
  Router::release(step, saved.router);
  step.release(saved.out);
}

void MoeLayer::run_experts(Step& step, Saved& saved, Tensor out) const {
  const ExpertRowCounts& c = saved.counts;
  const int64_t most = saved.rows.shape[0];
  saved.hidden = step.activation("hidden units of experts", {most, 2 * intermediate_});
  grouped_matmul(step.compute, saved.hidden, saved.rows, step.params.value(gate_up_), c.groups);
  if (!step.training) step.release(saved.rows);
  saved.act = step.activation("activation of experts", {most, intermediate_});
  swiglu_forward(step.compute, saved.act.narrow(0, c.received), saved.hidden.narrow(0, c.received));
  if (!step.training) step.release(saved.hidden);
  grouped_matmul(step.compute, out, saved.act, step.params.value(down_), c.groups);
  if (!step.training) step.release(saved.act);
}

/// drows (most rows, H) := gradient of what came to the experts, dout: of what they made. Releases rows,
/// hidden and act.
void MoeLayer::experts_backward(Step& step, Tensor drows, Tensor dout, Saved& saved) const {
  const ExpertRowCounts& c = saved.counts;
  Tensor dact = step.temporary("d activation of experts", saved.act.shape);
  grouped_matmul_dx(step.compute, dact, dout, step.params.value(down_), c.groups);
  // The gradient of the hidden units takes their place.
  const Tensor hidden = saved.hidden.narrow(0, c.received);
  swiglu_backward(step.compute, hidden, dact.narrow(0, c.received), hidden);
  step.release(dact);
  grouped_matmul_dx(step.compute, drows, saved.hidden, step.params.value(gate_up_), c.groups);
  if (step.later) {
    step.later->add([this, c, rows = saved.rows, dhidden = saved.hidden, act = saved.act,
                     dout](Step& s) { weights_backward(s, c, rows, dhidden, act, dout); },
                    {saved.rows, saved.hidden, saved.act, dout});
  } else {
    weights_backward(step, c, saved.rows, saved.hidden, saved.act, dout);
  }
  for (Tensor* t : {&saved.rows, &saved.hidden, &saved.act}) step.release(*t);
}

void MoeLayer::weights_backward(Step& step, const ExpertRowCounts& c, Tensor rows, Tensor dhidden, Tensor act,
                                Tensor dout) const {
  const GradTarget down = step.params.contribute(down_);
  grouped_matmul_dw(step.compute, down.tensor, dout, act, c.groups, down.accumulate);
  step.params.grad_ready(down_);
  const GradTarget gate_up = step.params.contribute(gate_up_);
  grouped_matmul_dw(step.compute, gate_up.tensor, dhidden, rows, c.groups, gate_up.accumulate);
  step.params.grad_ready(gate_up_);
}

void MoeLayer::backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor dy, Tensor x,
                        Saved& saved) const {
  const ExpertExchange exchange(step.groups, experts_);
  const ExpertRowCounts& c = saved.counts;
  const Routing& r = saved.router.routing;
  const int64_t most = saved.rows.shape[0], h = x.cols();
  Tensor dwhole = whole(step, dy);
  const int64_t n = dwhole.shape[0];
  Tensor dout = step.temporary("d rows from experts", saved.out.shape);
  Tensor dweights = step.memory.allocate(MemoryKind::temporaries, "d weights of experts", step.stat_type(),
                                         r.weights.shape);
  combine_rows_backward(step.compute, dout, dweights, dwhole, saved.out, r);
  step.release(saved.out);
  if (cut_experts(step)) {
    release_whole(step, dwhole, dy);
    const Group& g = step.groups.tensor;
    g.stream->wait(step.compute.record());
    g.comm->all_reduce(*g.stream, dweights);
    step.compute.wait(g.stream->record());
  }
  Tensor drows;  // of this rank's tokens, sorted by expert
  if (exchange.many()) {
    Tensor made = step.temporary("d made by experts", {most, h});
    ExpertExchange::Flight flight = exchange.dispatch_start(step, c, dout, most);
    exchange.dispatch_finish(step, c, made, flight);
    Tensor came = step.temporary("d rows of experts", {most, h});
    step.release(dout);
    experts_backward(step, came, made, saved);
    step.release(made);
    drows = step.temporary("d rows by expert", {n * top_k_, h});
    exchange.give_back(step, c, drows, came);
    step.release(came);
  } else {
    drows = step.temporary("d rows of experts", {most, h});
    experts_backward(step, drows, dout, saved);
    step.release(dout);
  }
  if (cut_experts(step)) {
    const Tensor partial = partial_rows(step, dx, n, "partial gradient");
    combine_rows(step.compute, partial, drows, r, false);
    sum_rows_start(step, dx, partial).wait(step);
  } else {
    combine_rows(step.compute, dx, drows, r, false);
  }
  step.release(drows);
  Tensor more = step.temporary("d norm of the router", dx.shape);
  Tensor tokens = whole(step, x);
  router_.backward(step, mb, more, step.groups.tensor.rank() * dx.shape[0], dweights, tokens, saved.router);
  if (cut_experts(step)) release_whole(step, tokens, x);
  step.release(dweights);
  Router::release(step, saved.router);
  add_to(step.compute, dx, more);
  if (has_shared_) {
    shared_backward(step, mb, more, dy, x, saved);
    add_to(step.compute, dx, more);
  }
  step.release(more);
}

void MoeLayer::shared_forward(Step& step, const MicroBatch& mb, Tensor y, Tensor x, Saved& saved) const {
  if (!has_shared_gate_) return shared_.forward(step, y, x, mb.rows(), saved.shared);
  saved.shared_out = step.activation("shared expert", y.shape);
  shared_.forward(step, saved.shared_out, x, mb.rows(), saved.shared);
  shared_gate_.forward_gate(step, x, saved.shared_gate);
  combine_rows(step.compute, y, saved.shared_out, saved.shared_gate.routing, true);
  if (step.training) return;
  step.release(saved.shared_out);
  Router::release(step, saved.shared_gate);
}

void MoeLayer::shared_backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor dy, Tensor x,
                               Saved& saved) const {
  if (!has_shared_gate_) return shared_.backward(step, dx, dy, x, saved.shared);
  const Routing& r = saved.shared_gate.routing;
  Tensor dout = step.temporary("d shared expert", dy.shape);
  Tensor dgate =
      step.memory.allocate(MemoryKind::temporaries, "d shared gate", step.stat_type(), r.weights.shape);
  combine_rows_backward(step.compute, dout, dgate, dy, saved.shared_out, r);
  step.release(saved.shared_out);
  shared_.backward(step, dx, dout, x, saved.shared);
  step.release(dout);
  Tensor more = step.temporary("d norm of the shared gate", dx.shape);
  shared_gate_.backward(step, mb, more, 0, dgate, x, saved.shared_gate);
  add_to(step.compute, dx, more);
  step.release(more);
  step.release(dgate);
  Router::release(step, saved.shared_gate);
}

}  // namespace ltrain
