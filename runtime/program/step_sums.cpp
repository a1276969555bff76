#include "runtime/program/step_sums.h"

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/loss/preference.h"
#include "kernels/meta/placement_rules.h"
#include "models/moe/router.h"

namespace ltrain {

std::vector<StepSums::Slice> StepSums::slices(const ProgramOptions& o) {
  const ModelConfig& m = o.model;
  // Each rank asks to stop and has news by itself, and has squares of its own gradients. Without tensor
  // parallelism of experts, ranks of the inner axis have routers' sums of different rows.
  std::vector<Slice> all = {{&StepSums::loss, "loss", {1}},
                            {&StepSums::stop, "stop requests", {1}, false},
                            {&StepSums::news, "ranks with news", {1}, false},
                            {&StepSums::squares, "squares of gradients", {Decoder::segments(m)}, false}};
  if (m.moe.num_experts > 0)
    all.push_back(
        {&StepSums::experts, "sums of routers", {m.all_layers(), moe_sums(m.moe)}, o.expert_tensor});
  if (o.z_loss_coeff > 0)
    all.push_back({.sum = &StepSums::z_loss, .name = "z-loss", .shape = {1}, .metric = "z_loss"});
  if (m.num_nextn_predict_layers > 0)
    all.push_back({.sum = &StepSums::mtp_loss,
                   .name = "loss of later tokens",
                   .shape = {1},
                   .metric = "mtp_loss",
                   .each = o.mtp_modules()});
  if (o.distils()) all.push_back({&StepSums::divergence, "divergences from a teacher", {1}});
  // A matrix's elements are each counted on one rank.
  if (o.optimizer.sparsity.moves()) all.push_back({&StepSums::mask_flips, "masks that changed", {2}, false});
  if (o.preference) all.push_back({&StepSums::pairs, "sums of pairs", {PreferenceTotals::count}});
  return all;
}

int64_t StepSums::count(const ProgramOptions& options) {
  int64_t n = 0;
  for (const Slice& slice : slices(options)) n += slice.shape.elements();
  return n;
}

StepSums::StepSums(Stream& stream, Memory& memory, const ProgramOptions& options)
    : stream_(stream), slices_(slices(options)) {
  all_ = memory.allocate(MemoryKind::temporaries, "loss and norm", DType::f64, {count(options)});
  int64_t first = 0;
  for (const Slice& slice : slices_) {
    this->*slice.sum = {place_apart(stream, all_.flat(first, slice.shape), slice.name), first};
    first += slice.shape.elements();
  }
}

void StepSums::clear() {
  fill_zero(stream_, all_);
  if (!stream_.meta()) return;
  for (const Slice& slice : slices_) place_zero(tensor(slice));
}

void StepSums::place_summands(Axis inner) {
  bool first = true;
  for (const Slice& slice : slices_) {
    const Tensor& t = tensor(slice);
    // A stage without a head adds 0 to the loss. Each stage has its own gradients.
    if (t.record->zero) place_set(stream_, t, kAllAxes, Placement::P());
    place_set(stream_, t, Axis::pipeline, Placement::P());
    // Every rank of the inner axis has the full value, so only one adds it.
    if (slice.replicated && t.record->place[inner] == Placement::R())
      place_set(stream_, t, inner, Placement::P());
    if (first) {
      place(stream_, "sums", Rule::linear, {all_}, {t});
    } else {
      place(stream_, "sums", Rule::linear, {all_}, {all_, t});
    }
    first = false;
  }
}

void StepSums::reduce(const Groups& groups, const char* reading) {
  if (stream_.meta()) {
    place_summands(groups.mesh.inner_axis());
  } else if (groups.inner().rank() != 0) {
    for (const Slice& slice : slices_)
      if (slice.replicated) fill_zero(stream_, tensor(slice));
  }
  groups.world.all_reduce(stream_, all_);
  place_require(stream_, reading, all_, Placement::R());
}

void StepSums::reduce_requests_over_sites(const Groups& groups) {
  LT_CHECK(news.first == stop.first + 1, "expected news after requests to stop, got values {} and {}",
           news.first, stop.first);
  groups.sum_over_sites(stream_, all_.flat(stop.first, {2}));
}

void StepSums::reduce_over_replicas(ReplicaSums& replicas) {
  for (const Slice& slice : slices_)
    if (const StepSum& sum = this->*slice.sum;
        sum.first != stop.first && sum.first != news.first && sum.first != squares.first)
      through_host(stream_, reduced(sum), [&](const Tensor& t) { replicas.sum(t); });
}

StepSums::Values StepSums::read(Staging& staging) const {
  Values values{std::vector<double>(static_cast<size_t>(all_.elements()))};
  staging.get(values.all.data(), all_);
  return values;
}

std::vector<std::pair<std::string, double>> StepSums::means(const Values& values, int64_t tokens) const {
  std::vector<std::pair<std::string, double>> all;
  for (const Slice& slice : slices_)
    if (slice.metric)
      all.emplace_back(slice.metric, tokens > 0
                                         ? values[this->*slice.sum] / static_cast<double>(tokens * slice.each)
                                         : 0.0);
  return all;
}

}  // namespace ltrain
