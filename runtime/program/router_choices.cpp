// Choices of routers: handed over by evaluations, kept and given in training.
#include "runtime/program/train_program.h"

namespace ltrain {
namespace {

using Choices = ProgramOptions::Choices;

std::vector<int64_t> layers_with_experts(const ProgramOptions& o, int pipeline_rank) {
  std::vector<StageLayers> stages = stages_of_rank(o, pipeline_rank);
  if (stages.empty()) stages.push_back({0, o.model.num_hidden_layers, true, true});
  std::vector<int64_t> layers;
  const auto add = [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i)
      if (o.model.has_experts(i)) layers.push_back(i);
  };
  for (const StageLayers& s : stages) {
    add(s.first, s.count);
    if (s.heads) add(o.model.num_hidden_layers, o.mtp_modules());
  }
  return layers;
}

}  // namespace

void TrainProgram::make_choices() {
  const ProgramOptions& o = options_;
  if (o.choices == Choices::none) return;
  const Selection selection = o.model.moe.selection;
  const bool fewer = selection == Selection::top_p && !o.for_training;  // top_k of them, some negative
  LT_CHECK(o.model.moe.num_experts > 0 && (selection == Selection::top_k || fewer),
           "expected a model whose tokens choose top_k experts each, got {} experts and selection {}",
           o.model.moe.num_experts, to_string(selection));
  LT_CHECK(o.for_training || (!staged() && o.choices == Choices::record),
           "expected an evaluation in one stage that records choices, got {} stages", o.stage_layers.size());
  router_layers_ = layers_with_experts(o, pipeline_rank());
  const int64_t micros = o.for_training ? o.accumulation : 1,
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

void TrainProgram::hand_choices(const HostBatch& batch) {
  std::vector<int32_t> all;
  for (size_t layer = 0; layer < router_layers_.size(); ++layer) {
    const std::vector<int32_t> of_layer = read_choices(0, layer);
    all.insert(all.end(), of_layer.begin(), of_layer.end());
  }
  take_choices_(batch, all);
}

}  // namespace ltrain
