#include "parallel/zero/parameter_store.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/nf4.h"
#include "kernels/tensor/rng.h"
#include "parallel/zero/bucket_updates.h"
#include "parallel/zero/outer_optimizer.h"
#include "parallel/zero/sparse_masks.h"

namespace ltrain {
namespace {

/// Fills elements [begin, begin + to.elements()) of a rank's part of a parameter.
void fill_initial(Stream& s, const ParameterSpec& spec, Tensor to, const Slice& slice, uint64_t seed) {
  if (spec.init != Init::normal) {
    fill_value(s, to, spec.init == Init::ones ? 1.0 : 0.0);
    return;
  }
  Runs runs(slice);
  for (Run run = runs.next(); run.count > 0; run = runs.next())
    fill_normal(s, to.flat(run.local, {run.count}), seed, hash_name(spec.name), run.global, 0.0, spec.std);
}

}  // namespace

/// Parts for training only, in the order of their dependencies.
struct ParameterStore::Training {
  Training(const StoreContext& c, const ParameterLayout& p, const Layout& l, Weights& weights,
           const OffloadedWeights& offloaded, OffloadAccess& offload)
      : rules{l.optimizer, c.meta()},
        compressed(c, p, l.reduce_code),
        gradients(c, p, rules, compressed),
        states(c, p, weights, l.optimizer, l.offload.fraction, offload),
        average(c, p, weights, states, offload, l.ema_decay),
        outer(c, p, weights, states, l.optimizer.diloco),
        untouched(p),
        windows(c, p, weights, states, offloaded, l.offload),
        host(c, p, states, gradients, offload, l.offload),
        elements(c, p, rules, states, gradients, offloaded, windows, host, average, untouched, l.seed,
                 l.offload.window),
        sparse(c, p, rules, weights, elements, average, l.offload.fraction > 0 || l.offload.params > 0) {}
  ~Training() { host.wait(); }  // its work uses the other parts

  StepRules rules;
  CompressedAllReduce compressed;
  GradientReducer gradients;
  OptimizerStates states;
  WeightAverage average;
  OuterOptimizer outer;
  UntouchedExperts untouched;
  StateWindows windows;
  HostUpdates host;
  ElementUpdates elements;
  SparseMasks sparse;
  std::unique_ptr<BucketUpdates> updates;  // set after buckets are allocated
};

ParameterStore::ParameterStore() : parameters_(std::make_unique<ParameterLayout>()) {}
ParameterStore::~ParameterStore() = default;

int ParameterStore::add(std::vector<ParameterSpec> unit) {
  return parameters_->add(std::move(unit), segment_, layer_);
}
void ParameterStore::begin_segment(int segment, int64_t layer) { segment_ = segment, layer_ = layer; }
Stream& ParameterStore::stream() const { return context_->compute; }
const OptimizerSettings& ParameterStore::optimizer() const { return settings_.optimizer; }
int ParameterStore::count() const { return parameters_->count(); }
const ParameterSpec& ParameterStore::spec(int id) const { return parameters_->parameter(id).spec; }
int64_t ParameterStore::elements() const { return parameters_->elements(); }
int ParameterStore::find(std::string_view name) const { return parameters_->find(name); }
bool ParameterStore::trains(int id) const { return parameters_->trains(id); }
ParameterRule ParameterStore::rule_with(int id, const OptimizerSettings& optimizer) const {
  return parameters_->rule_with(id, optimizer);
}

void ParameterStore::allocate(Stream& compute, Memory& memory, const Groups& groups, const Layout& layout) {
  settings_ = layout;
  if (layout.for_training)
    settings_.optimizer.quantization.type = layout.precision.compute;
  else
    settings_.optimizer.sparsity = {};  // saved weights have their zeros
  context_.reset(new StoreContext{compute, memory, groups, layout.precision, layout.sharding});
  offload_ = {layout.offload_states, layout.offload_params};
  parameters_->fill(groups, layout.sharding, settings_.optimizer, layout.bucket_elements);
  offloaded_ = std::make_unique<OffloadedWeights>(*context_, *parameters_, layout.offload.params, offload_);
  weights_ =
      std::make_unique<Weights>(*context_, *parameters_, *offloaded_, settings_.optimizer.quantization);
  if (layout.for_training)
    training_ =
        std::make_unique<Training>(*context_, *parameters_, settings_, *weights_, *offloaded_, offload_);
  Training* t = training_.get();
  for (size_t i = 0; i < parameters_->buckets().size(); ++i) {
    const Bucket& b = parameters_->buckets()[i];
    const int64_t coded = optimizer_of(b.kind.rule.rule).coded_states() ? kCodeBlock : 1;
    const int64_t block = b.kind.nf4 ? kNf4Block : coded;
    parameters_->cut(static_cast<int>(i),
                     std::lcm(b.kind.unit(), std::lcm(std::max(block, t ? t->compressed.block(b) : 1),
                                                      t ? t->outer.block(b) : 1)));
    weights_->allocate(b);
    if (!t) continue;
    t->states.allocate_master(b);
    t->average.allocate(b);
    t->outer.allocate(b);
    if (!b.kind.rule.trains()) continue;
    t->gradients.allocate(b);
    t->compressed.allocate(b);
    t->states.allocate_moments(b);
  }
  weights_->lay_out_offloaded();
  weights_->make_records();
  if (!t) return;
  t->updates =
      std::make_unique<BucketUpdates>(*context_, *parameters_, t->rules, *weights_, t->states, t->gradients,
                                      t->compressed, t->elements, t->average, layout.seed);
  t->compressed.allocate_codes();
  t->outer.allocate_codes();
  if (layout.reduce_bf16) t->gradients.allocate_rounded();
  t->states.lay_out_offloaded();
  t->windows.allocate();
  t->elements.allocate();
  t->sparse.allocate();
  if (offload_.state_bytes > 0) {
    LT_CHECK(offload_.states, "expected an offload memory for {} bytes of states, got none",
             offload_.state_bytes);
    offload_.states->reserve(offload_.state_bytes);
  }
  t->gradients.make_records();
}

void ParameterStore::clear() {
  if (training_) training_->sparse.forget();
  if (context_->meta()) return;
  offload_.wait();
  Stream& on = context_->compute;
  const auto zero = [&](const Tensor& t) {
    if (!t.defined()) return;
    offload_.in_parts(t.elements(),
                      [&](int64_t at, int64_t n) { fill_zero(on, offload_.view(on, t.flat(at, {n}))); });
  };
  for (const Bucket& b : parameters_->buckets()) {
    zero(weights_->held(b));
    zero(weights_->held_absmax(b));
  }
  if (!training_) return;
  training_->windows.forget();
  training_->gradients.each_tensor(zero);
  training_->states.each_tensor(zero);
  for (const Bucket& b : parameters_->buckets()) zero(training_->average.of(b));
  training_->outer.each_tensor(zero);
  training_->compressed.each_error(zero);
  training_->updates->clear();
}

void ParameterStore::initialize(uint64_t seed) {
  clear();
  for (const auto& p : parameters_->parameters()) {
    const Bucket& b = parameters_->bucket(p.bucket);
    if (b.shards_weights || b.kind.nf4 || b.kind.masked)
      continue;  // a mask would be in what was there before
    const Tensor to = weights_->part(b, p.offset, p.spec.slice.elements());
    fill_initial(context_->compute, p.spec, to, p.spec.slice, seed);
  }
  const bool derived = settings_.optimizer.quantization.on() || settings_.optimizer.sparsity.moves();
  if (training_ && (settings_.precision.has_master() || settings_.sharding.shards_weights() || derived))
    for (const OwnedPiece& piece : stored_pieces()) {
      if (piece.nf4.defined()) continue;
      offload_.in_parts(piece.master.elements(), [&](int64_t at, int64_t n) {
        fill_initial(context_->compute, spec(piece.id),
                     offload_.view(context_->compute, piece.master.flat(at, {n})),
                     piece.slice.range(at, at + n), seed);
      });
    }
  initialize_nf4(seed);
  if (settings_.sharding.shards_weights() || derived) publish_loaded();
  start_average();
  if (training_) training_->outer.start();
}

/// Initial values are computed on the host, block by block, and rounded to the dtype of the step.
void ParameterStore::initialize_nf4(uint64_t seed) const {
  constexpr int64_t kElements = int64_t{1} << 20;  // at once
  if (context_->meta()) return;
  const auto host = make_inline_stream("initial values");
  std::vector<float> values;
  for (const Bucket& b : parameters_->buckets()) {
    const bool sharded = b.shards_weights;
    const auto fill = [&](int id, int64_t from, int64_t n) {
      const auto& p = parameters_->parameter(id);
      for (int64_t done = 0; done < n; done += kElements) {
        const int64_t count = std::min(kElements, n - done), at = from + done;
        values.resize(static_cast<size_t>(count));
        Tensor to;
        to.data = values.data();
        to.shape = {count};
        fill_initial(*host, p.spec, to, p.spec.slice.range(at - p.offset, at - p.offset + count), seed);
        nf4_store(context_->compute, weights_->nf4_part(b, at, count), settings_.precision.compute,
                  values.data());
      }
    };
    if (b.kind.nf4)
      parameters_->each_parameter(b, sharded ? parameters_->stored_begin(b) : 0,
                                  sharded ? parameters_->stored_count(b) : b.padded, fill);
  }
}

Tensor ParameterStore::value(int id, int n) const { return weights_->view(id, n); }
bool ParameterStore::is_nf4(int id) const {
  return parameters_->bucket(parameters_->parameter(id).bucket).kind.nf4;
}
Nf4Matrix ParameterStore::nf4(int id, int n) const { return weights_->nf4_view(id, n); }
bool ParameterStore::skips_zeros(int id, int n) const {
  return training_ && training_->sparse.skips_zeros(id, n);
}
double ParameterStore::kept_share() const { return training_ ? training_->sparse.kept_share() : 1; }
bool ParameterStore::prunes_gradient(int id) const {
  return training_ && training_->sparse.prunes_gradient(id);
}
Tensor ParameterStore::grad(int id, int n) const { return training_->gradients.view(id, n); }

void ParameterStore::begin_step(int64_t micros, int64_t step) {
  training_->rules.micros = micros;
  training_->rules.step = step;
  training_->windows.fetch_ahead();
  training_->sparse.renew();
  training_->gradients.begin_step();
}

void ParameterStore::gather_weights(bool captured) { weights_->begin_step(captured); }
void ParameterStore::gather_segment(int segment, int next) { weights_->gather_segment(segment, next); }
double ParameterStore::waited_for_updates() const { return weights_->waited_for_updates(); }
void ParameterStore::release_segment(int segment) { weights_->release_segment(segment); }
GradBuffer ParameterStore::accumulate(int id, int n) { return training_->gradients.accumulate(id, n); }
void ParameterStore::grad_ready(int id) { training_->gradients.ready(id); }
void ParameterStore::replayed(int64_t micros, bool gathered) {
  if (gathered) weights_->begin_replayed_step();
  training_->gradients.replayed(micros);
}
void ParameterStore::end_reductions() { training_->gradients.end_reductions(); }

void ParameterStore::complete_weights() { weights_->complete(); }

void ParameterStore::finish_gradients() {
  weights_->end_step();
  training_->gradients.finish();
  training_->sparse.mask_gradients();
}

std::vector<Tensor> ParameterStore::stored_gradients() const {
  std::vector<Tensor> all;
  for (const Bucket& b : parameters_->buckets())
    if (b.kind.rule.trains()) all.push_back(training_->gradients.stored(b));
  return all;
}

void ParameterStore::add_grad_squares(Tensor squares) {
  // Every rank sums the elements that it owns, replicated gradients or not: the same bits with every ZeRO
  // stage. Elements of one dtype are summed together, and segments are added in the order of buckets.
  std::vector<SquaresOf> parts;
  const auto add = [&] {
    if (!parts.empty()) sum_squares(context_->compute, squares, parts);
    parts.clear();
  };
  for (const Bucket& b : parameters_->buckets()) {
    if (!parameters_->first_copy(b) || !training_->rules.moves(b)) continue;
    if (training_->rules.sums_gradients(b)) {
      const Tensor own = training_->gradients.owned(b);
      if (!parts.empty() && parts.back().x.dtype != own.dtype) add();
      parts.push_back({own, b.segment});
    } else {
      add();
      training_->updates->add_own_squares(b, squares.flat(b.segment, {1}));
    }
  }
  add();
}

void ParameterStore::add_mask_flips(Tensor sums) { training_->sparse.add_flips(sums); }

EstimatePass ParameterStore::estimate(int64_t step) const {
  const OptimizerSettings& o = settings_.optimizer;
  for (int i = 0; i < kUpdateRules; ++i)
    if (const UpdateRule r = static_cast<UpdateRule>(i); o.uses(r))
      if (const EstimatePass pass = optimizer_of(r).estimate(o, step); pass != EstimatePass::none)
        return pass;
  return EstimatePass::none;
}

void ParameterStore::begin_estimate(EstimatePass pass) {
  if (pass == EstimatePass::moved_weights) {
    weights_->renew();
    weights_->complete();  // until then others read this rank's pieces
  }
  training_->updates->begin_estimate();
}
void ParameterStore::end_estimate(const OptimizerStep& step, double labels, double loss_scale) {
  training_->updates->end_estimate(step, labels, loss_scale);
}

void ParameterStore::skip_untouched(std::vector<std::vector<double>> tokens) {
  training_->untouched.set(std::move(tokens));
}
int64_t ParameterStore::moved_bytes() const { return training_->windows.moved_bytes(); }

void ParameterStore::update(const OptimizerStep& step) {
  training_->sparse.choose();
  training_->sparse.decay(step.grad_scale);
  training_->windows.begin_update(training_->untouched);
  training_->updates->update(step);
  training_->windows.forget();
}

void ParameterStore::use_ema_weights(bool shown) {
  if (!training_) return;
  training_->average.exchange(shown);
  const OuterOptimizer& outer = training_->outer;
  if (settings_.optimizer.diloco.streams())
    training_->average.exchange(shown, [&](const Bucket& b) { return outer.shared(b); });
}

void ParameterStore::start_average() {
  if (training_) training_->average.start();
}

void ParameterStore::synchronize_sites(int64_t step) { training_->outer.synchronize(step); }
void ParameterStore::resume_sites(int64_t step, bool in_flight) { training_->outer.resume(step, in_flight); }
int ParameterStore::site() const { return context_->groups.mesh.site(); }

int64_t ParameterStore::offload_bytes() const { return offload_.state_bytes; }
int64_t ParameterStore::offloaded_bytes() const { return offload_.param_bytes; }
void ParameterStore::wait_offloaded() { offload_.wait(); }
void ParameterStore::release_offloaded() { offload_.release(); }

std::vector<OwnedPiece> ParameterStore::pieces(bool owned) const {
  std::vector<OwnedPiece> out;
  const OptimizerStates& states = training_->states;
  for (const Bucket& b : parameters_->buckets()) {
    // One of several copies is written.
    if (owned && !parameters_->first_copy(b)) continue;
    const int64_t stored = parameters_->stored_begin(b), middle = stored + states.resident(b);
    const OuterOptimizer& outer = training_->outer;
    const Tensor &average = training_->average.of(b), &momentum = outer.momentum(b);
    const auto add = [&](int id, int64_t from, int64_t to) {  // all resident, or all offloaded
      if (from >= to) return;
      const auto& p = parameters_->parameter(id);
      const int64_t at = from - stored, n = to - from;
      OwnedPiece piece{.id = id,
                       .slice = p.spec.slice.range(from - p.offset, to - p.offset),
                       .master = {},
                       .shared = {},
                       .nf4 = {},
                       .moments = {},
                       .grad = {}};
      if (b.kind.nf4)
        piece.nf4 = weights_->nf4_part(b, from, n);
      else
        piece.master = states.master(b, at, n);
      piece.moments = states.named(b, at, n);
      if (b.kind.masked) {
        piece.shared = weights_->part(b, from, n);
        piece.moments.push_back({kDenseWeights, piece.master});
      }
      if (average.defined()) piece.moments.push_back({kAverage, average.flat(at, {n})});
      if (momentum.defined()) piece.moments.push_back({kOuterMomentum, momentum.flat(at, {n})});
      if (outer.change(b).defined()) piece.moments.push_back({kOuterChange, outer.change(b).flat(at, {n})});
      if (outer.shared(b).defined()) {
        piece.shared = outer.shared(b).flat(at, {n});
        piece.moments.push_back({kLocalWeights, piece.master});
      }
      if (trains(id)) piece.grad = training_->gradients.part(b, from, n);
      out.push_back(piece);
    };
    parameters_->each_parameter(b, owned ? parameters_->own_begin(b) : stored,
                                owned ? b.own : parameters_->stored_count(b),
                                [&](int id, int64_t from, int64_t n) {
                                  const int64_t cut = std::clamp(middle, from, from + n);
                                  add(id, from, cut);
                                  add(id, cut, from + n);
                                });
  }
  return out;
}

std::vector<OwnedPiece> ParameterStore::owned_pieces() const { return pieces(true); }
std::vector<OwnedPiece> ParameterStore::stored_pieces() const { return pieces(false); }

std::vector<WholeState> ParameterStore::whole_states(bool owned) const {
  std::vector<WholeState> out = training_->updates->states();
  if (owned) std::erase_if(out, [&](const WholeState& w) { return !parameters_->owns_whole(spec(w.id)); });
  return out;
}

std::vector<RoundingError> ParameterStore::rounding_errors(bool owned) const {
  return training_->compressed.rounding_errors(owned);
}

void ParameterStore::keep(std::string name, Tensor t) { kept_.push_back({std::move(name), t}); }

std::vector<RegisteredBuffer> ParameterStore::kept(bool owned) const {
  const bool first = parameters_->first_of_all() && context_->groups.coordinate(Axis::pipeline) == 0;
  return first || !owned ? kept_ : std::vector<RegisteredBuffer>();
}

void ParameterStore::prefetch_states() {
  offload_.wait();
  training_->outer.wait();
  training_->states.open();
}

void ParameterStore::offload_states(bool changed) { training_->states.close(changed); }
int64_t ParameterStore::open_state_bytes(bool own_memory) const {
  return training_->states.open_bytes(own_memory);
}

std::vector<Tensor> ParameterStore::held_values() const {
  std::vector<Tensor> values;
  for (const Bucket& b : parameters_->buckets())
    values.push_back(b.kind.nf4 ? weights_->held_absmax(b) : weights_->held(b));
  return values;
}

void ParameterStore::publish_loaded(bool shares_weights) {
  if (training_) training_->sparse.forget();
  for (const Bucket& b : parameters_->buckets()) {
    if (b.kind.derived())
      weights_->derive(b, training_ ? training_->states.stored_master(b) : weights_->updated(b));
    else if (training_ && training_->states.has_master(b))
      training_->states.copy_master(b, weights_->updated(b));
    weights_->publish(b);
    weights_->wait_published();
  }
  weights_->note_complete();
  if (training_ && shares_weights) training_->outer.start();
}

}  // namespace ltrain
