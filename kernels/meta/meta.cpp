#include "kernels/meta/meta.h"

#include "kernels/base/progress.h"

namespace ltrain {

std::string_view op_class_name(OpClass c) {
  constexpr std::string_view names[kOpClassCount] = {
      "matmul", "attention", "elementwise", "cross_entropy", "optimizer", "collective", "offload"};
  return names[static_cast<int>(c)];
}

TensorRecord* MetaTrace::new_record(std::string name) {
  records_.emplace_back();
  records_.back().name = std::move(name);
  return &records_.back();
}

void MetaTrace::add(Stream& stream, const OpCost& op) {
  note_progress();
  const double seconds = cost_ ? cost_->seconds(op) : 0;
  entries_.push_back({std::string(op.name), layer_, stream.name(), std::string(op.collective),
                      std::string(op.axis), stream.clock, seconds, op.flops, op.bytes, op.wire_bytes,
                      op.network_bytes, op.cls, op.axes});
  if (model_work_) model_flops_ += op.model_flops;
  stream.clock += seconds;
  if (op.cls == OpClass::collective && cost_ && compute_ && compute_ != &stream)
    compute_->clock += cost_->stolen_seconds(op);
}

void MetaTrace::clear_entries() {
  entries_.clear();
  model_flops_ = 0;
}

}  // namespace ltrain
