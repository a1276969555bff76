#include "models/moe/moe_layer.h"

#include <cmath>
#include <optional>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/grouped/grouped_bias.h"
#include "kernels/matmul/swiglu_fp8.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/micro_batch_overlap.h"
#include "models/layers/feed_forward.h"
#include "models/layers/tensor_parallel.h"

namespace ltrain {
namespace {

/// This rank's experts in a stack of all experts, in the order of the expert group.
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

std::string moe_prefix(const ModelConfig& c, int64_t layer) {
  return c.names().layer(layer) + "." + c.names().moe;
}

std::string correction_bias_name(const ModelConfig& c, int64_t layer) {
  return c.names().layer(layer) + "." + c.names().correction_bias();
}

void MoeLayer::declare(ParameterStore& store, const Groups& g, const ModelConfig& c, bool sequence_parallel,
                       bool expert_tensor, const DispatchOptions& dispatch, const std::string& prefix,
                       int64_t layer, double out_std) {
  const MoeConfig& m = c.moe;
  const int64_t f = m.intermediate_size, h = c.hidden_size;
  experts_ = m.num_experts;
  zero_experts_ = m.zero_experts;
  kind_ = c.traits().feed_forward;
  top_k_ = m.selection == Selection::expert_choice ? m.num_experts : m.top_k;  // most experts of a token
  expert_tensor_ = expert_tensor;
  place_ = c.place(layer);
  dispatch_ = TokenDispatch::make(g, experts_, top_k_, m.top_k, dispatch);
  chunks_ = g.expert.size() > 1 ? dispatch.chunks : 1;
  replicas_ = std::make_unique<ExpertReplicas>(g, experts_, g.expert.size() > 1 ? dispatch.replicas : 0);
  const int parts = expert_tensor ? g.tensor.size() : 1;
  LT_CHECK(g.one_d() && experts_ % g.expert.size() == 0 && f % parts == 0 &&
               (expert_tensor || g.tensor.size() == 1 || sequence_parallel),
           "MoE layer: expected experts divisible over {} expert ranks and units over {} tensor ranks in 1D, "
           "and sequence parallelism with whole experts; got {} experts of {} units",
           g.expert.size(), parts, experts_, f);
  intermediate_ = f / parts;
  router_.declare(store, g, c, prefix + "." + c.names().router, layer, g.tensor.size() > 1 && !expert_tensor);
  const auto add = [&](const std::string& name, Shape shape, int dim, double std) {
    ParameterSpec spec = cut_experts_of(g, {prefix + ".experts." + name, shape, Init::normal, std, true});
    spec.expert_layer = layer;
    if (expert_tensor) spec = cut_over(Axis::tensor, std::move(spec), dim, g.tensor.rank(), g.tensor.size());
    return store.add({spec});
  };
  gate_up_ = add("gate_up_proj", {experts_, 2, f, h}, 2, c.initializer_range);
  down_ = add("down_proj", {experts_, h, f}, 2, out_std);
  if (c.traits().expert_bias) declare_biases(store, g, c, prefix, layer);
  declare_adapters(store, g, c, prefix, layer);
  if (m.shared_experts > 0) declare_shared(store, g, c, sequence_parallel, prefix, layer, out_std);
}

void MoeLayer::declare_biases(ParameterStore& store, const Groups& g, const ModelConfig& c,
                              const std::string& prefix, int64_t layer) {
  const auto add = [&](const std::string& name, Shape shape, int dim) {
    ParameterSpec spec = cut_experts_of(g, {prefix + ".experts." + name, shape, Init::zeros, 0, false});
    spec.vectors = true;
    spec.expert_layer = layer;
    if (expert_tensor_ && dim > 0)
      spec = cut_over(Axis::tensor, std::move(spec), dim, g.tensor.rank(), g.tensor.size());
    return store.add({spec});
  };
  gate_up_bias_ = add("gate_up_proj_bias", {experts_, 2, c.moe.intermediate_size}, 2);
  down_bias_ = add("down_proj_bias", {experts_, c.hidden_size}, 0);
}

/// If tensor ranks share each expert, A of gate and up and B of down are full on each of them, and their
/// gradients are sums over the ranks.
void MoeLayer::declare_adapters(ParameterStore& store, const Groups& g, const ModelConfig& c,
                                const std::string& prefix, int64_t layer) {
  const NamedExperts named = named_experts(c, layer);
  if (!named.any()) return;
  LT_CHECK(replicas_->most() == 0, "{}: expected no replicas of experts with adapters, got up to {}", prefix,
           replicas_->most());
  const int64_t f = c.moe.intermediate_size, h = c.hidden_size;
  const LoraConfig lora = lora_of_stacks(c);
  const HfTensorLayout& hf = c.family->hf_layout;
  adapter_dropout_ = lora.dropout;
  const auto masks = [&](std::initializer_list<std::string> matrices) {
    std::vector<uint64_t> streams;
    const int64_t each = experts_ / g.expert.size(), first = g.expert.rank() * each;
    for (const std::string& matrix : matrices)
      for (int64_t e = first; e < first + each; ++e)
        streams.push_back(hash_name(fmt::format("{}.experts.{}.{}.lora_A.weight", prefix, e, matrix)));
    return streams;
  };
  const auto factor = [&](const std::string& name, Shape shape, Init init, bool cut, int dim) {
    const double std =
        init == Init::zeros ? 0 : 1 / std::sqrt(3.0 * static_cast<double>(shape[shape.rank - 1]));
    ParameterSpec spec = cut_experts_of(g, {prefix + ".experts." + name, shape, init, std, true});
    if (!expert_tensor_) return spec;
    if (cut) return cut_over(Axis::tensor, std::move(spec), dim, g.tensor.rank(), g.tensor.size());
    spec.sum = Axis::tensor;
    return spec;
  };
  const auto change = [&](const std::string& name, Shape shape, bool cut) {
    ParameterSpec spec = cut_experts_of(g, {prefix + ".experts." + name, shape, Init::zeros, 0, false});
    spec.vectors = true;
    if (!expert_tensor_) return spec;
    if (cut) return cut_over(Axis::tensor, std::move(spec), 2, g.tensor.rank(), g.tensor.size());
    spec.sum = Axis::tensor;
    return spec;
  };
  if (named.gate > 0) {
    const std::string weight = prefix + ".experts.gate_up_proj.weight";
    const int64_t rank = lora.rank_of(weight);
    gate_up_adapters_.declare(
        store, factor("gate_up_proj.lora_A.weight", {experts_, 2, rank, h}, Init::normal, false, 0),
        factor("gate_up_proj.lora_B.weight", {experts_, 2, f, rank}, Init::zeros, true, 2),
        lora.scale_of(weight), masks({hf.expert_gate, hf.expert_up}));
    if (lora.dora)
      gate_up_adapters_.declare_magnitudes(
          store, change("gate_up_proj.lora_magnitude.weight", {experts_, 2, f}, true), gate_up_, false);
  }
  if (named.down > 0) {
    const std::string weight = prefix + ".experts.down_proj.weight";
    const int64_t rank = lora.rank_of(weight);
    down_adapters_.declare(store,
                           factor("down_proj.lora_A.weight", {experts_, rank, f}, Init::normal, true, 2),
                           factor("down_proj.lora_B.weight", {experts_, h, rank}, Init::zeros, false, 0),
                           lora.scale_of(weight), masks({hf.expert_down}));
    if (lora.dora)
      down_adapters_.declare_magnitudes(
          store, change("down_proj.lora_magnitude.weight", {experts_, h}, false), down_, expert_tensor_);
  }
}

ExpertStacks MoeLayer::stacks(const Step& step) const {
  ExpertStacks s{.gate_up = step.params.value(gate_up_),
                 .down = step.params.value(down_),
                 .gate_up_bias = {},
                 .down_bias = {}};
  if (gate_up_bias_ < 0) return s;
  s.gate_up_bias = step.params.value(gate_up_bias_);
  s.down_bias = step.params.value(down_bias_);
  return s;
}

/// If tensor ranks share each expert, their results are summed: the first of them adds the bias of the last
/// layer.
MoeLayer::Weights MoeLayer::weights_of(const Step& step, const ExpertStacks& s, bool copy) const {
  Weights w{{s.gate_up, gate_up_slot_, copy}, {s.down, down_slot_, copy}, s.gate_up_bias, {}};
  if (gate_up_bias_ < 0) return w;
  if (!cut_experts(step)) {
    w.down_bias = s.down_bias;
  } else if (step.groups.tensor.rank() == 0) {
    w.down_bias = place_apart(step.compute, s.down_bias);
    place_set(step.compute, w.down_bias, Axis::tensor, Placement::P());
  }
  return w;
}

void MoeLayer::declare_shared(ParameterStore& store, const Groups& g, const ModelConfig& c,
                              bool sequence_parallel, const std::string& prefix, int64_t layer,
                              double out_std) {
  has_shared_ = true;
  has_shared_gate_ = c.moe.shared_expert_gate;
  ModelConfig shared = c;
  shared.intermediate_size = c.moe.shared_experts * c.moe.intermediate_size;
  shared_.declare(store, g, shared, sequence_parallel, prefix + "." + c.names().shared_experts, out_std);
  if (!has_shared_gate_) return;
  shared.moe = {};  // a router of one expert, whose score is the gate
  shared.moe.num_experts = shared.moe.top_k = 1;
  shared.moe.score = RouterScore::sigmoid;
  shared.moe.norm_topk_prob = false;
  shared_gate_.declare(store, g, shared, prefix + ".shared_expert_gate", -1,
                       g.tensor.size() > 1 && sequence_parallel);
}

void MoeLayer::quantize_operands(const ParameterStore& store, const Fp8Settings& settings, int first_slot,
                                 std::vector<Fp8Weight>& weights) {
  const auto slot = [&](int id, Fp8Linear which) {
    const ParameterSpec& spec = store.spec(id);
    if (keeps_type(settings, spec.name)) return -1;
    const int64_t matrices = spec.shape[0], cols = spec.shape[-1];
    weights.push_back({fp8_slot(first_slot, which), spec.shape.elements() / matrices / cols, cols, matrices});
    return weights.back().slot;
  };
  gate_up_slot_ = slot(gate_up_, Fp8Linear::experts_up);
  down_slot_ = slot(down_, Fp8Linear::experts_down);
  if (has_shared_) shared_.quantize_operands(store, settings, first_slot, weights);
}

/// The router's rows: those of all tensor ranks if they share each expert.
Tensor MoeLayer::whole(Step& step, Tensor x) const {
  return cut_experts(step) ? gather_rows(step, x, "gathered rows") : x;
}

std::vector<TokenRange> MoeLayer::chunks(int64_t tokens) const {
  std::vector<TokenRange> out;
  for (int64_t c = 0; c < chunks_; ++c) {
    const int64_t first = tokens * c / chunks_, end = tokens * (c + 1) / chunks_;
    if (end > first) out.push_back({first, end - first});
  }
  return out;
}

void MoeLayer::route(Step& step, const MicroBatch& mb, Tensor tokens, const std::vector<TokenRange>& ranges,
                     int64_t capacity, Saved& saved) const {
  router_.forward(step, mb, tokens, saved.router);
  saved.chunks.assign(ranges.size(), {});
  if (replicas_->most() > 0) {
    const Routing& r = saved.router.routing;
    const std::vector<int64_t> all = dispatch_->count_all(step, r, capacity, place_);
    const ChosenExperts travel =
        replicas_->choose(step, r, all, stacks(step), step.stat_type(), saved.copies);
    for (size_t i = 0; i < ranges.size(); ++i)
      dispatch_->count_some(step, saved.chunks[i].dispatched, r, ranges[i], capacity, place_, travel, all);
  } else {
    for (size_t i = 0; i < ranges.size(); ++i)
      dispatch_->count(step, saved.chunks[i].dispatched, saved.router.routing, ranges[i], capacity, place_);
  }
  if (step.training) add_up_beyond(step, mb, saved);
}

void MoeLayer::forward(Step& step, const MicroBatch& mb, Tensor y, Tensor x, Saved& saved,
                       bool recompute) const {
  Tensor tokens = whole(step, x);
  const int64_t n = tokens.shape[0], h = x.cols(), capacity = router_.capacity(step.groups, n, step.training);
  const std::vector<TokenRange> ranges = chunks(n);
  if (!recompute) route(step, mb, tokens, ranges, capacity, saved);
  if (replicas_->most() > 0) replicas_->fetch_start(step, saved.copies, stacks(step));
  if (adapter_dropout_ > 0 && step.training) send_keys(step, mb, n, capacity, ranges, saved);
  const auto of = [&](size_t i) { return tokens.narrow(ranges[i].first, ranges[i].tokens); };
  const auto start = [&](size_t i) {
    Chunk& c = saved.chunks[i];
    c.rows = step.activation("rows of experts", {dispatch_->most_rows(ranges[i].tokens, capacity), h});
    dispatch_->start(step, c.dispatched, c.dispatched.slices() - 1, of(i), c.rows);
  };
  start(0);
  if (has_shared_) shared_forward(step, mb, y, x, saved);  // overlaps with the exchange
  copies_forward(step, tokens, saved);
  for (size_t i = 0; i < ranges.size(); ++i) {
    Chunk& c = saved.chunks[i];
    Dispatched& d = c.dispatched;
    const int64_t most = c.rows.shape[0];
    if (i + 1 < ranges.size()) start(i + 1);
    Tensor made;
    std::optional<MicroBatchOverlap::KeptTurn> turn;  // for slices after the first computed one
    for (size_t slice = d.slices(); slice-- > 0;) {   // the first slice, computed last, is kept
      if (slice + 1 < d.slices()) dispatch_->start(step, d, slice, of(i), c.rows);
      dispatch_->finish(step, d, slice, c.rows);
      if (slice > 0 && !turn) turn.emplace(step.compute);
      if (!made.defined()) made = dispatch_->made(step, d, most, h);
      run_experts(step, c, slice, made, own(step));
      dispatch_->return_rows_start(step, d, slice, made);
      if (slice > 0) dispatch_->return_rows_finish(step, d, slice);
    }
    // If slices are possible, even if none follows: after memory for the returning rows is allocated.
    if (!step.keeps() && d.budgeted)
      for (Tensor* t : {&c.rows, &c.hidden, &c.act}) step.release(*t);
  }
  if (cut_experts(step)) release_whole(step, tokens, x);
  combine(step, y, n, ranges, saved);
  if (mb.observer)
    for (const Chunk& c : saved.chunks)
      mb.observer->experts(step.compute, c.dispatched.routing, c.dispatched.out);
  if (zero_experts_ > 0 && y.defined()) identity_forward(step, y, x, saved.router.routing);
  if (!step.keeps()) release_saved(step, saved);
}

void MoeLayer::send_keys(Step& step, const MicroBatch& mb, int64_t tokens, int64_t capacity,
                         const std::vector<TokenRange>& ranges, Saved& saved) const {
  LT_CHECK(mb.row_keys.defined(), "experts: expected keys of {} rows for dropout {}, got none", tokens,
           adapter_dropout_);
  const bool some = tokens < mb.rows();  // a tensor rank's share of the rows
  Tensor keys = mb.row_keys.flat(some ? step.groups.tensor.rank() * tokens : 0, {tokens});
  keys = place_apart(step.compute, keys, "keys of rows");
  if (some) place_set(step.compute, keys, Axis::tensor, Placement::S(0));
  keys.shape = {tokens, dtype_size(keys.dtype) / dtype_size(step.dtype)};
  keys.dtype = step.dtype;
  for (size_t i = 0; i < ranges.size(); ++i) {
    Chunk& c = saved.chunks[i];
    c.keys = step.activation("keys of experts' rows",
                             {dispatch_->most_rows(ranges[i].tokens, capacity), keys.cols()});
    dispatch_->start(step, c.dispatched, 0, keys.narrow(ranges[i].first, ranges[i].tokens), c.keys);
    dispatch_->finish(step, c.dispatched, 0, c.keys);
  }
}

ExpertDropout MoeLayer::dropout_of(const Step& step, Tensor keys, bool cut) const {
  ExpertDropout d;
  if (!keys.defined()) return d;
  d.p = adapter_dropout_;
  d.seed = step.seed;
  d.keys = keys;
  d.keys.dtype = DType::i64;
  d.keys.shape = {keys.shape[0]};
  if (cut && cut_experts(step)) {
    d.part = step.groups.tensor.rank();
    d.parts = step.groups.tensor.size();
  }
  return d;
}

/// y: (tokens of this rank, H) = weighted outputs of the experts of each of the `n` tokens, added to the
/// output of shared experts.
void MoeLayer::combine(Step& step, Tensor y, int64_t n, const std::vector<TokenRange>& ranges,
                       Saved& saved) const {
  Tensor routed = y;
  if (y.defined() && has_shared_) routed = step.temporary("routed experts", y.shape);
  Tensor partial = routed;
  if (y.defined() && cut_experts(step)) partial = partial_rows(step, routed, n, "partial rows");
  for (size_t i = 0; i < ranges.size(); ++i)
    dispatch_->combine(step, saved.chunks[i].dispatched,
                       y.defined() ? partial.narrow(ranges[i].first, ranges[i].tokens) : Tensor());
  copies_combine(step, partial, saved);
  if (!y.defined()) return;
  if (cut_experts(step)) sum_rows_start(step, routed, partial).wait(step);
  if (!has_shared_) return;
  add_to(step.compute, y, routed);
  step.release(routed);
}

void MoeLayer::release_saved(Step& step, Saved& saved) const {
  for (Chunk& c : saved.chunks) {
    step.release(c.dispatched.out);
    if (!step.training) TokenDispatch::release(step, c.dispatched);
  }
  for (ExpertReplicas::Copy& c : saved.copies) {
    ExpertReplicas::release_weights(step, c);
    if (!step.training) ExpertReplicas::release(step, c);
  }
  if (!step.training) Router::release(step, saved.router);
}

void MoeLayer::run_hidden(Step& step, Chunk& chunk, size_t slice, const Weights& weights) const {
  const ExpertRowCounts& c = chunk.dispatched.slice(slice);
  const int64_t most = chunk.rows.shape[0];
  if (!chunk.hidden.defined())
    chunk.hidden = step.activation("hidden units of experts", {most, 2 * intermediate_});
  experts_forward(step, chunk.hidden, chunk.rows, weights.gate_up, c.groups);
  if (gate_up_adapters_.on())
    gate_up_adapters_.add(step, chunk.hidden, chunk.rows, c.groups, dropout_of(step, chunk.keys, false));
  if (weights.gate_up_bias.defined())
    grouped_add_bias(step.compute, chunk.hidden, weights.gate_up_bias, c.groups);
  if (!step.keeps() && !chunk.dispatched.budgeted) step.release(chunk.rows);
  run_activation(step, chunk, slice);
}

void MoeLayer::run_activation(Step& step, Chunk& chunk, size_t slice) const {
  const int64_t received = chunk.dispatched.slice(slice).received, most = chunk.hidden.shape[0];
  const Tensor hidden = chunk.hidden.narrow(0, received);
  const Shape all{most, intermediate_};
  const int slot = down_adapters_.on() ? -1 : down_slot_;  // adapters read what the experts read
  if (step.fp8 && kind_ == FeedForward::swiglu && step.fp8->knows_steps(step, slot)) {
    if (!chunk.act.defined()) chunk.act = step.fp8->input(step, "activation of experts", all);
    if (received == 0 && !step.compute.meta()) return;
    const Tensor codes = chunk.act.narrow(0, received);
    return swiglu_forward_fp8(step.compute, step.fp8->output(step, down_slot_, codes), hidden);
  }
  if (!chunk.act.defined()) chunk.act = step.activation("activation of experts", all);
  feed_forward_activation(step.compute, kind_, chunk.act.narrow(0, received), hidden);
}

void MoeLayer::run_experts(Step& step, Chunk& chunk, size_t slice, Tensor out, const Weights& weights) const {
  const ExpertRowCounts& c = chunk.dispatched.slice(slice);
  run_hidden(step, chunk, slice, weights);
  if (!step.keeps() && !chunk.dispatched.budgeted) step.release(chunk.hidden);
  experts_forward(step, out, chunk.act, weights.down, c.groups);
  if (down_adapters_.on())
    down_adapters_.add(step, out, chunk.act, c.groups, dropout_of(step, chunk.keys, true));
  if (weights.down_bias.defined()) grouped_add_bias(step.compute, out, weights.down_bias, c.groups);
  if (!step.keeps() && !chunk.dispatched.budgeted)
    for (Tensor* t : {&chunk.rows, &chunk.hidden, &chunk.act, &chunk.keys}) step.release(*t);
}

void MoeLayer::rows_backward(Step& step, Tensor drows, Tensor dout, Chunk& chunk, size_t slice,
                             const Weights& weights) const {
  const ExpertRowCounts& c = chunk.dispatched.slice(slice);
  Tensor& dact = chunk.dact;
  if (!dact.defined()) dact = step.temporary("d activation of experts", chunk.act.shape);
  Tensor before = down_adapters_.before_magnitudes(step, dout, c.groups);
  experts_dx(step, dact, before, weights.down, c.groups);
  if (down_adapters_.on())
    down_adapters_.add_input_gradient(step, dact, before, c.groups, dropout_of(step, chunk.keys, true));
  release_whole(step, before, dout);
  const Tensor hidden = chunk.hidden.narrow(0, c.received);  // overwritten by its gradient
  feed_forward_activation_backward(step.compute, kind_, hidden, dact.narrow(0, c.received), hidden);
  // Between slices, memory for gradients may be allocated: it stays there.
  if (!chunk.dispatched.budgeted) step.release(dact);
  before = gate_up_adapters_.before_magnitudes(step, chunk.hidden, c.groups);
  experts_dx(step, drows, before, weights.gate_up, c.groups);
  if (gate_up_adapters_.on())
    gate_up_adapters_.add_input_gradient(step, drows, before, c.groups, dropout_of(step, chunk.keys, false));
  release_whole(step, before, chunk.hidden);
}

/// drows (most rows, H) = gradient of the experts' input, dout: gradient of their output. Releases rows,
/// hidden and act after the last slice. `last`: last chunk, after which no more is added to the weights'
/// gradients. Weight gradients are not deferred with a budget, which would keep their inputs for every slice,
/// nor beside replicas, whose gradients the owners add to theirs.
void MoeLayer::experts_backward(Step& step, Tensor drows, Tensor dout, Chunk& chunk, size_t slice,
                                bool last) const {
  const ExpertRowCounts& c = chunk.dispatched.slice(slice);
  const bool ends = slice + 1 == chunk.dispatched.slices();
  rows_backward(step, drows, dout, chunk, slice, own(step));
  if (step.deferred && !chunk.dispatched.budgeted && replicas_->most() == 0) {
    const Tensor kept = chunk.keys.defined() ? chunk.keys : chunk.rows;
    step.deferred->add(
        [this, c, rows = chunk.rows, keys = chunk.keys, dhidden = chunk.hidden, act = chunk.act, dout,
         last](Step& s) { weights_backward(s, c, rows, keys, dhidden, act, dout, last, false); },
        {chunk.rows, kept, chunk.hidden, chunk.act, dout});
  } else {
    weights_backward(step, c, chunk.rows, chunk.keys, chunk.hidden, chunk.act, dout, last && ends,
                     chunk.dispatched.budgeted);
  }
  if (!ends) return;
  for (Tensor* t : {&chunk.rows, &chunk.keys, &chunk.hidden, &chunk.act, &chunk.dact}) step.release(*t);
}

void MoeLayer::add_up_beyond(Step& step, const MicroBatch& mb, const Saved& saved) const {
  int64_t rows = 0, slices = 0;
  bool budgeted = false;
  for (const Chunk& c : saved.chunks) {
    budgeted = budgeted || c.dispatched.budgeted;
    for (const ExpertRowCounts& slice : c.dispatched.beyond) rows += slice.received, ++slices;
  }
  if (!budgeted) return;
  router_.add_up_beyond(step, mb, saved.router, rows, slices);
}

/// `at_once`: allocates memory for all gradients before the first is complete, as needed between slices, so
/// that memory does not depend on the number of slices.
void MoeLayer::weights_backward(Step& step, const ExpertRowCounts& c, Tensor rows, Tensor keys,
                                Tensor dhidden, Tensor act, Tensor dout, bool last, bool at_once) const {
  struct Part {
    int id, slot;
    Tensor dy, x;  ///< a bias has no x
    GradBuffer to = {};
  };
  std::vector<Part> parts{{down_, down_slot_, dout, act}, {gate_up_, gate_up_slot_, dhidden, rows}};
  if (gate_up_bias_ >= 0) {
    parts.push_back({down_bias_, -1, dout, {}});
    parts.push_back({gate_up_bias_, -1, dhidden, {}});
  }
  if (at_once)
    for (Part& p : parts)
      if (step.params.trains(p.id)) p.to = step.params.accumulate(p.id);
  for (Part& p : parts) {
    if (!step.params.trains(p.id)) continue;
    if (!at_once) p.to = step.params.accumulate(p.id);
    if (p.x.defined())
      experts_dw(step, p.to.tensor, p.slot, p.dy, p.x, c.groups, p.to.accumulate);
    else
      grouped_sum_rows(step.compute, p.to.tensor, p.dy, c.groups, p.to.accumulate);
    if (last) step.params.grad_ready(p.id);
  }
  if (down_adapters_.on())
    down_adapters_.weight_backward(step, dout, act, c.groups, dropout_of(step, keys, true), last);
  if (gate_up_adapters_.on())
    gate_up_adapters_.weight_backward(step, dhidden, rows, c.groups, dropout_of(step, keys, false), last);
}

void MoeLayer::run_again(Step& step, Chunk& chunk, size_t slice, Tensor tokens) const {
  MetaTrace* meta = step.compute.meta();
  if (meta) meta->set_model_work(false);
  if (slice > 0) {
    dispatch_->start(step, chunk.dispatched, slice, tokens, chunk.rows);
    dispatch_->finish(step, chunk.dispatched, slice, chunk.rows);
  }
  if (slice > 0 || !chunk.hidden.defined())
    run_hidden(step, chunk, slice, own(step));
  else if (!chunk.act.defined())
    run_activation(step, chunk, slice);
  if (meta) meta->set_model_work(true);
}

void MoeLayer::backward(Step& step, const MicroBatch& mb, Tensor dx, Tensor dy, Tensor x,
                        Saved& saved) const {
  const Tensor weights = saved.router.routing.weights;
  Tensor dwhole = whole(step, dy);
  const int64_t n = dwhole.shape[0], h = x.cols();
  const std::vector<TokenRange> ranges = chunks(n);
  Tensor dweights =
      step.memory.allocate(MemoryKind::temporaries, "d weights of experts", step.stat_type(), weights.shape);
  const auto of = [&](const Tensor& t, size_t i) { return t.narrow(ranges[i].first, ranges[i].tokens); };
  const bool budgeted = saved.chunks[0].dispatched.budgeted;
  Tensor tokens;
  if (budgeted) tokens = whole(step, x);
  const auto start = [&](size_t i) {
    Chunk& c = saved.chunks[i];
    dispatch_->combine_backward_start(step, c.dispatched, of(dweights, i), of(dwhole, i), c.rows.shape[0]);
  };
  start(0);
  for (size_t i = 0; i < ranges.size(); ++i) {
    Chunk& c = saved.chunks[i];
    Dispatched& d = c.dispatched;
    if (i + 1 < ranges.size()) start(i + 1);
    const int64_t most = c.rows.shape[0];
    Tensor dmade, drows;
    std::optional<MicroBatchOverlap::KeptTurn> turn;
    for (size_t slice = 0; slice < d.slices(); ++slice) {
      run_again(step, c, slice, slice > 0 ? of(tokens, i) : Tensor());
      if (slice > 0) dispatch_->combine_backward_next(step, d, slice, most, dmade);
      dispatch_->combine_backward(step, d, slice, of(dweights, i), most, dmade);
      if (slice == 0) drows = step.temporary("d rows of experts", {most, h});
      experts_backward(step, drows, dmade, c, slice, i + 1 == ranges.size() && replicas_->most() == 0);
      if (slice + 1 == d.slices()) step.release(dmade);
      dispatch_->permute_backward_start(step, d, slice, drows);
      if (slice + 1 == d.slices()) break;
      if (!turn) turn.emplace(step.compute);
      dispatch_->permute_backward_next(step, d, slice);
    }
  }
  std::vector<Tensor> drows_copied = copies_backward(step, dweights, dwhole, saved);
  if (cut_experts(step)) release_whole(step, dwhole, dy);
  const Tensor partial = cut_experts(step) ? partial_rows(step, dx, n, "partial gradient") : dx;
  for (size_t i = 0; i < ranges.size(); ++i) {
    dispatch_->permute_backward(step, saved.chunks[i].dispatched, of(partial, i));
    TokenDispatch::release(step, saved.chunks[i].dispatched);
  }
  copies_permute_backward(step, partial, drows_copied, saved);
  if (cut_experts(step)) {
    sum_rows_start(step, dx, partial).wait(step);
    step.groups.tensor.all_reduce(step.compute, dweights);
  }
  Tensor didentity;
  if (zero_experts_ > 0) didentity = identity_backward(step, dx, dy, x, saved.router.routing);
  Tensor more = step.temporary("d norm of the router", dx.shape);
  if (!budgeted) tokens = whole(step, x);
  router_.backward(step, mb, more, step.groups.tensor.rank() * dx.shape[0], dweights, tokens, saved.router,
                   didentity);
  step.release(didentity);
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
  saved.shared_out = step.activation("shared expert", x.shape);
  shared_.forward(step, saved.shared_out, x, mb.rows(), saved.shared);
  shared_gate_.forward_gate(step, x, saved.shared_gate);
  if (y.defined()) combine_rows(step.compute, y, saved.shared_out, saved.shared_gate.routing, true);
  if (step.keeps()) return;
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
