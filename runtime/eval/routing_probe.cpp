#include "runtime/eval/routing_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/hash/mix64.h"
#include "parallel/comm/host_collectives.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/eval/held_out.h"
#include "runtime/program/recipe_program.h"
#include "runtime/routing/routing_lines.h"
#include "runtime/routing/step_routing.h"

namespace ltrain {

RoutingProbe::RoutingProbe(const Recipe& recipe, const Mesh& mesh, TrainProgram& program,
                           Communicator& control, Stream& stream)
    : interval_(recipe.train.routing_probe_interval),
      mesh_(mesh),
      program_(program),
      control_(control),
      stream_(stream) {
  if (interval_ == 0) return;
  const std::vector<EvalSet> sets = eval_sets(recipe);
  loader_ = eval_loader_options(recipe, mesh,
                                sets.empty() ? loader_options(recipe, mesh).sources : sets.front().sources);
  loader_.eval_samples = recipe.train.routing_probe_samples;
  if (loader_.packing.on()) loader_.packing.eod = end_of_document(recipe);
  samples_ = data::BatchLoader(loader_, 0).eval_samples();
  for (int64_t i = 0; i < recipe.model.num_hidden_layers; ++i)
    if (recipe.model.has_experts(i)) layers_.push_back(i);
  text_ = fmt::format("routing: every {} steps, the choices for the first {} sequences of {} are compared",
                      interval_, samples_,
                      sets.empty()                ? "data.train"
                      : sets.front().name.empty() ? "data.eval"
                                                  : "the first set of data.eval");
}

void RoutingProbe::take(const HostBatch& batch, const std::vector<int32_t>& choices,
                        std::vector<int64_t>& into) const {
  const ProgramOptions& o = program_.options();
  const Positions rows = program_.context_sharding().rows();
  const RoutedRows mine = routed_rows(program_, mesh_);
  const int64_t k = o.model.moe.top_k, all_rows = o.micro_batch * rows.rows;
  const bool tells_tokens = mesh_.coordinate(Axis::pipeline) == 0;
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    const int64_t sample = batch.sample_index[static_cast<size_t>(row / rows.rows)];
    if (sample < 0) continue;  // padding of the last batch
    const int64_t token = sample * o.seq_length + rows.at(row % rows.rows);
    if (tells_tokens)
      into.back() +=
          static_cast<int64_t>(mix64(static_cast<uint64_t>(token) << 32 |
                                     static_cast<uint32_t>(batch.tokens[static_cast<size_t>(row)])) >>
                               40);
    for (size_t l = 0; l < program_.router_layers().size(); ++l) {
      const auto at = std::lower_bound(layers_.begin(), layers_.end(), program_.router_layers()[l]);
      if (at == layers_.end()) continue;  // multi-token prediction, which evaluations leave out
      const int64_t to = ((at - layers_.begin()) * o.probe_samples * o.seq_length + token) * k,
                    from = (static_cast<int64_t>(l) * all_rows + row) * k;
      for (int64_t j = 0; j < k; ++j)
        into[static_cast<size_t>(to + j)] = choices[static_cast<size_t>(from + j)] + 1;
    }
  }
}

std::vector<int64_t> RoutingProbe::choices_of_rank() {
  std::vector<int64_t> mine(program_.probed_choices().size());
  const int64_t at_once = loader_.micro_batch * loader_.dp_size;
  int64_t left = (samples_ + at_once - 1) / at_once;
  data::BatchLoader loader(loader_, 0);
  HostBatch batch;
  program_.take_choices(
      [&](const HostBatch& of, const std::vector<int32_t>& choices) { take(of, choices, mine); });
  const std::function<const HostBatch*()> next = [&]() -> const HostBatch* {
    if (left-- <= 0) return nullptr;
    loader.next(batch);
    return &batch;
  };
  program_.evaluate(next);
  program_.take_choices(nullptr);
  return mine;
}

RoutingChurn RoutingProbe::compare(const std::vector<int32_t>& now,
                                   const std::vector<int32_t>& before) const {
  const ProgramOptions& o = program_.options();
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  RoutingChurn churn{kUnknown, std::vector<double>(static_cast<size_t>(o.model.num_hidden_layers), kUnknown)};
  if (now.back() != before.back()) return churn;
  const int64_t choices = samples_ * o.seq_length * o.model.moe.top_k,
                stride = o.probe_samples * o.seq_length * o.model.moe.top_k;
  int64_t changed = 0;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const auto of_layer = [&](const std::vector<int32_t>& all) {
      return std::span(all).subspan(l * static_cast<size_t>(stride), static_cast<size_t>(choices));
    };
    const int64_t n = changed_choices(of_layer(now), of_layer(before), o.model.moe.top_k);
    churn.by_layer[static_cast<size_t>(layers_[l])] = static_cast<double>(n) / static_cast<double>(choices);
    changed += n;
  }
  churn.all =
      static_cast<double>(changed) / static_cast<double>(choices * static_cast<int64_t>(layers_.size()));
  return churn;
}

RoutingChurn RoutingProbe::run() {
  std::vector<int64_t> all = choices_of_rank();
  sum_over(control_, stream_, all);
  const ProgramOptions& o = program_.options();
  const size_t of_sample = static_cast<size_t>(o.seq_length * o.model.moe.top_k);
  for (size_t i = 0; i + 1 < all.size(); ++i)  // one rank, and one only, tells of a token
    LT_CHECK(all[i] <= o.model.moe.router_outputs() &&
                 (all[i] > 0) == (static_cast<int64_t>(i / of_sample) % o.probe_samples < samples_),
             "expected an expert from 1 to {} of each token of {} sequences, got {} at choice {}",
             o.model.moe.router_outputs(), samples_, all[i], i);
  all.back() = all.back() % std::numeric_limits<int32_t>::max() + 1;  // 0: there was no probe
  const std::vector<int32_t> now(all.begin(), all.end()), before = program_.probed_choices();
  program_.keep_probed_choices(now);
  return compare(now, before);
}

}  // namespace ltrain
