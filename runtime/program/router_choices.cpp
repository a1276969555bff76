// Choices of routers: handed over by evaluations, kept and given in training.
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "runtime/program/train_program.h"

namespace ltrain {
namespace {

using Choices = ProgramOptions::Choices;

std::vector<int64_t> layers_with_experts(const ProgramOptions& o, int pipeline_rank) {
  std::vector<int64_t> layers;
  const auto add = [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i)
      if (o.model.has_experts(i)) layers.push_back(i);
  };
  for (const StageLayers& s : stages_of_rank(o, pipeline_rank)) {
    add(s.first, s.count);
    if (s.heads) add(o.model.num_hidden_layers, o.mtp_modules());
  }
  return layers;
}

}  // namespace

void TrainProgram::make_choices() {
  const ProgramOptions& o = options_;
  if (!o.keeps_choices()) return;
  const Selection selection = o.model.moe.selection;
  const bool fewer = selection == Selection::top_p && !o.for_training;  // top_k of them, some negative
  LT_CHECK(o.model.moe.num_experts > 0 && (selection == Selection::top_k || fewer),
           "expected a model whose tokens choose top_k experts each, got {} experts and selection {}",
           o.model.moe.num_experts, to_string(selection));
  LT_CHECK(o.for_training || (!staged() && o.choices == Choices::record),
           "expected an evaluation in one stage that records choices, got {} stages", o.stage_layers.size());
  if (o.probe_samples > 0) {
    int64_t all = 0;
    for (int64_t i = 0; i < o.model.num_hidden_layers; ++i) all += o.model.has_experts(i);
    probed_choices_ =
        device_.memory.allocate(MemoryKind::parameters, "choices of the routing probe", DType::i32,
                                {all * o.probe_samples * o.seq_length * o.model.moe.top_k + 1});
    place_set(device_.compute, probed_choices_, kAllAxes, Placement::R());
    if (!device_.compute.meta()) fill_zero(device_.compute, probed_choices_);
    store_.keep(kProbedChoices, probed_choices_);
  }
  router_layers_ = layers_with_experts(o, pipeline_rank());
  const bool steps = o.for_training && o.choices != Choices::none;  // kept for all micro-batches
  const int64_t micros = steps      ? o.accumulation
                         : staged() ? slots_->count()
                                    : 1,
                layers = static_cast<int64_t>(router_layers_.size());
  if (layers == 0) return;
  choices_ = device_.memory.allocate(MemoryKind::temporaries, "choices of routers", DType::i32,
                                     {micros, layers, slots_->rows() / slots_->count(), o.model.moe.top_k});
}

RouterChoices TrainProgram::choices(int64_t micro) const {
  if (!choices_.defined()) return {};
  const Shape one{choices_.shape[1], choices_.shape[2], choices_.shape[3]};
  return {choices_.flat(micro * one.elements(), one), router_layers_, options_.choices == Choices::replay};
}

RouterChoices TrainProgram::evaluated_choices(int64_t slot) const {
  if (options_.for_training && !take_choices_) return {};
  RouterChoices of = choices(staged() ? slot : 0);
  of.given = false;
  return of;
}

std::vector<int32_t> TrainProgram::probed_choices() {
  std::vector<int32_t> all(static_cast<size_t>(probed_choices_.elements()));
  download(device_.compute, all.data(), probed_choices_);
  return all;
}

void TrainProgram::keep_probed_choices(const std::vector<int32_t>& numbers) {
  LT_CHECK(static_cast<int64_t>(numbers.size()) == probed_choices_.elements(),
           "expected {} numbers of a probe, got {}", probed_choices_.elements(), numbers.size());
  upload(device_.compute, probed_choices_, numbers.data());
}

std::vector<int32_t> TrainProgram::read_choices(int64_t micro, size_t layer) {
  const RouterChoices of = choices(micro);
  std::vector<int32_t> all(static_cast<size_t>(of.experts.elements() / of.experts.shape[0]));
  staging_.get(all.data(), of.experts.narrow(static_cast<int64_t>(layer), 1));
  device_.groups.check();
  return all;
}

void TrainProgram::give_choices(int64_t micro, size_t layer, const std::vector<int32_t>& choices) {
  const Tensor to = this->choices(micro).experts.narrow(static_cast<int64_t>(layer), 1);
  LT_CHECK(static_cast<int64_t>(choices.size()) == to.elements(), "expected {} choices of a layer, got {}",
           to.elements(), choices.size());
  staging_.open();
  staging_.put(to, choices.data());
  staging_.close();
}

void TrainProgram::hand_choices(const HostBatch& batch, int64_t slot) {
  std::vector<int32_t> all;
  for (size_t layer = 0; layer < router_layers_.size(); ++layer) {
    const std::vector<int32_t> of_layer = read_choices(staged() ? slot : 0, layer);
    all.insert(all.end(), of_layer.begin(), of_layer.end());
  }
  take_choices_(batch, all);
}

}  // namespace ltrain
