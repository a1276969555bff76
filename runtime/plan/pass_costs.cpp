#include "runtime/plan/pass_costs.h"

#include "base/error.h"
#include "models/layers/layer_names.h"

namespace ltrain {

void each_usual_op(const std::vector<TraceEntry>& entries,
                   const std::function<void(const TraceEntry& op, double seconds, bool after_head)>& f) {
  bool after_head = false, second = false;
  double before = 0;  // end of the op before
  for (const TraceEntry& e : entries) {
    if (e.stream != "compute") continue;
    const LayerKind layer = layer_of(e.layer).kind;
    if (after_head && layer == LayerKind::embedding && e.role == OpRole::token_lookup) {
      second = true;
      after_head = false;
    }
    after_head = after_head || layer == LayerKind::head || layer == LayerKind::mtp;
    const double seconds = e.start + e.seconds - before;
    before = e.start + e.seconds;
    if (second == (e.role == OpRole::operand_rounding)) f(e, seconds, after_head);
  }
}

namespace {

/// A model whose frozen weights may leave some layers without gradients of weights.
bool freezes(const Recipe& r) {
  return r.model.lora.on() || !r.optimizer.frozen.empty() || r.train.freeze_router;
}

/// Fails where an op that must be there was not seen, so that a new or renamed op is not priced wrongly
/// without a message.
void check_costs(const pipeline::LayerCosts& c, const Recipe& r, bool rounded) {
  const auto require = [](bool seen, std::string_view what, size_t layer) {
    LT_CHECK(seen, "expected {} in the trace of layer {}, got none; ops set OpCost::role", what, layer);
  };
  for (size_t i = 0; i < c.forward.size(); ++i) {
    require(c.forward[i] > 0, "a forward", i);
    require(c.input[i] > 0 || freezes(r), "a backward", i);
    require(c.weight[i] > 0 || freezes(r), "a matmul with the role weight_gradient", i);
  }
  LT_CHECK(c.last_forward > 0 && c.first_forward > 0, "expected ops of the embedding and the head, got none");
  LT_CHECK(rounded || !computes_in(r, Precision::fp8),
           "expected an op with the role operand_rounding in a step with FP8 matmuls, got none");
}

}  // namespace

pipeline::LayerCosts costs_of_entries(const std::vector<TraceEntry>& entries, const Recipe& recipe) {
  pipeline::LayerCosts c;
  const auto layers = static_cast<size_t>(recipe.model.num_hidden_layers);
  c.forward.resize(layers);
  c.input.resize(layers);
  c.weight.resize(layers);
  bool rounded = false;
  each_usual_op(entries, [&](const TraceEntry& op, double seconds, bool after_head) {
    const bool weight = op.role == OpRole::weight_gradient;
    rounded = rounded || op.role == OpRole::operand_rounding;
    const LayerOf layer = layer_of(op.layer);
    const auto i = static_cast<size_t>(layer.index);
    switch (layer.kind) {
      case LayerKind::embedding:
        (weight ? c.first_weight : after_head ? c.first_input : c.first_forward) += seconds;
        break;
      case LayerKind::block:
        LT_CHECK(i < layers, "expected a layer below {}, got {}", layers, op.layer);
        (weight ? c.weight : after_head ? c.input : c.forward)[i] += seconds;
        break;
      case LayerKind::head:
      case LayerKind::mtp:
        c.last_forward += seconds;  // the head's backward runs in chunks while its logits are in memory
        break;
      case LayerKind::other:
        break;
    }
  });
  check_costs(c, recipe, rounded);
  return c;
}

}  // namespace ltrain
