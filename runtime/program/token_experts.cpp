// Experts of token ids: hash routing, and the step in which routers are frozen.
#include "runtime/program/token_experts.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/hash/mix64.h"
#include "kernels/meta/placement_rules.h"
#include "models/moe/moe_layer.h"

namespace ltrain {
namespace {

/// Writes `k` of `experts` for each of `ids` token ids, a function of seed, layer and id: the first of a
/// random order.
void hash_experts(int32_t* to, int64_t ids, int64_t k, int64_t experts, uint64_t seed, int64_t layer) {
  const uint64_t of_layer = mix64(mix64(seed) + static_cast<uint64_t>(layer));
  std::vector<int32_t> order(static_cast<size_t>(experts));
  for (int64_t id = 0; id < ids; ++id, to += k) {
    std::iota(order.begin(), order.end(), 0);
    for (int64_t j = 0; j < k; ++j) {
      const uint64_t number = mix64(of_layer + static_cast<uint64_t>(id * k + j));
      std::swap(order[static_cast<size_t>(j)],
                order[static_cast<size_t>(j) + number % static_cast<uint64_t>(experts - j)]);
    }
    std::copy_n(order.begin(), k, to);
  }
}

/// Throws Error (usage) if scores of token ids of this rank's layers do not train.
void require_learning(const ModelConfig& model, const ParameterStore& store) {
  for (int64_t i = 0; i < model.all_layers(); ++i) {
    if (!model.has_experts(i)) continue;
    const std::string name = moe_prefix(model, i) + "." + model.names().router + ".token_scores.weight";
    if (const int id = store.find(name); id >= 0 && !store.trains(id))
      fail(ExitCode::usage,
           "model.moe.router.freeze_step = {}: {} does not train, and token ids would get experts at random; "
           "leave it out of optimizer.frozen, train without lora, or begin with a checkpoint whose routers "
           "are "
           "frozen",
           model.moe.freeze_step, name);
  }
}

}  // namespace

void TrainProgram::make_token_experts() {
  const ModelConfig& model = options_.model;
  const MoeConfig& m = model.moe;
  if (!m.by_token()) return;
  const int64_t layers = model.all_layers(), each = model.vocab_size * m.top_k;
  token_experts_ = device_.memory.allocate(MemoryKind::parameters, "experts of token ids", DType::i32,
                                           {layers, model.vocab_size, m.top_k});
  place_set(device_.compute, token_experts_, kAllAxes, Placement::R());
  for (int64_t i = 0; i < layers; ++i) {
    const Tensor table = token_experts_.flat(i * each, {model.vocab_size, m.top_k});
    if (model.has_experts(i))
      store_.keep(moe_prefix(model, i) + "." + model.names().router + ".token_experts", table);
    if (device_.compute.meta()) continue;
    std::vector<int32_t> experts(static_cast<size_t>(each), -1);
    if (m.kind == RouterKind::hash)
      hash_experts(experts.data(), model.vocab_size, m.top_k, m.router_outputs(), options_.seed, i);
    upload(device_.compute, table, experts.data());
  }
}

TokenExperts TrainProgram::token_experts_of(int64_t step) {
  TokenExperts of{.table = token_experts_};
  const MoeConfig& m = options_.model.moe;
  if (m.num_experts == 0 || m.freeze_step == 0 || device_.compute.meta()) return of;
  if (!frozen_) {  // a checkpoint may have been loaded
    int64_t layer = 0;
    while (!options_.model.has_experts(layer)) ++layer;
    int32_t first = -1;
    download(device_.compute, &first, token_experts_.flat(layer * token_experts_.shape[1] * m.top_k, {1}));
    frozen_ = first >= 0;
    if (!*frozen_) require_learning(options_.model, store_);
  }
  of.freezes = !*frozen_ && step >= m.freeze_step;
  frozen_ = *frozen_ || of.freezes;
  of.learns = *frozen_ ? 0 : 1;
  return of;
}

void share_token_experts(const Device& device, const ProgramOptions& options, const Tensor& table) {
  constexpr int64_t kChunk = 8192;
  const Groups& g = device.groups;
  const int64_t each = table.elements() / table.shape[0];
  const std::vector<StageLayers> stages = stages_of_rank(options, g.coordinate(Axis::pipeline));
  const auto mine = [&](int64_t layer) {
    const bool behind = layer >= options.model.num_hidden_layers;  // a module of multi-token prediction
    return std::any_of(stages.begin(), stages.end(), [&](const StageLayers& s) {
      return behind ? s.heads : layer >= s.first && layer < s.first + s.count;
    });
  };
  const bool first = g.gradient.rank() == 0 && g.tensor.rank() == 0;  // others have the same
  Tensor sums = device.memory.allocate(MemoryKind::temporaries, "experts of token ids of all stages",
                                       DType::i64, {kChunk});
  for (int64_t layer = 0; layer < table.shape[0]; ++layer)
    for (int64_t begin = 0; begin < each; begin += kChunk) {
      const int64_t n = std::min(kChunk, each - begin);
      const Tensor part = table.flat(layer * each + begin, {n}), sum = sums.flat(0, {n});
      std::vector<int32_t> experts(static_cast<size_t>(n));
      std::vector<int64_t> all(static_cast<size_t>(n));
      download(device.compute, experts.data(), part);
      if (first && mine(layer)) std::copy(experts.begin(), experts.end(), all.begin());
      upload(device.compute, sum, all.data());
      g.world.all_reduce(device.compute, sum);
      download(device.compute, all.data(), sum);
      std::transform(all.begin(), all.end(), experts.begin(),
                     [](int64_t expert) { return static_cast<int32_t>(expert); });
      upload(device.compute, part, experts.data());
    }
  device.memory.release(sums);
  g.check();
}

}  // namespace ltrain
