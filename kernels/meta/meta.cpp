#include "kernels/meta/meta.h"

#include <bit>

#include "base/interned.h"
#include "base/progress.h"

namespace ltrain {

std::string_view op_class_name(OpClass c) {
  constexpr std::string_view names[kOpClassCount] = {
      "matmul", "attention", "elementwise", "cross_entropy", "optimizer", "collective", "offload"};
  return names[static_cast<int>(c)];
}

std::string WrittenBy::text() const {
  return layer.empty() ? std::string(op) : fmt::format("{} in {}", op, layer);
}

TensorRecord* MetaTrace::new_record(std::string_view name) {
  records_.emplace_back();
  records_.back().name = interned(name);
  return &records_.back();
}

void MetaTrace::set_layer(std::string_view layer) { layer_ = interned(layer); }

size_t MetaTrace::PriceHash::operator()(const PriceKey& key) const {
  size_t hash = 0;
  const auto add = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  add(std::bit_cast<uint64_t>(key.name));
  add(std::bit_cast<uint64_t>(key.ranks));
  add(std::bit_cast<uint64_t>(key.flops));
  add(std::bit_cast<uint64_t>(key.bytes));
  add(std::bit_cast<uint64_t>(key.wire_bytes));
  return hash;
}

MetaTrace::Price MetaTrace::price(const OpCost& op, bool stolen) {
  if (!cost_) return {};
  if (cost_->sees_each()) return {cost_->seconds(op), stolen ? cost_->stolen_seconds(op) : 0, stolen};
  const PriceKey key{op.name.data(),
                     op.collective.data(),
                     op.ranks,
                     op.flops,
                     op.recomputed_flops,
                     op.bytes,
                     op.wire_bytes,
                     op.network_bytes,
                     op.received_bytes,
                     op.m,
                     op.n,
                     op.k,
                     op.nonzeros,
                     op.group_size,
                     op.cls,
                     op.dtype};
  const auto [it, fresh] = prices_.try_emplace(key);
  Price& price = it->second;
  if (fresh) price.seconds = cost_->seconds(op);
  if (stolen && !price.knows_stolen) price.stolen = cost_->stolen_seconds(op), price.knows_stolen = true;
  return price;
}

namespace {

/// Counts every 64th op only: otherwise threads that make plans in parallel would contend for the counter.
void note_some_progress() {
  thread_local unsigned ops = 0;
  if (++ops % 64 == 0) note_progress();
}

}  // namespace

void MetaTrace::add(Stream& stream, const OpCost& given) {
  note_some_progress();
  OpCost op = given;
  op.name = interned(given.name);
  op.collective = interned(given.collective);
  const bool steals = op.cls == OpClass::collective && compute_ && compute_ != &stream;
  const Price price = this->price(op, steals);
  if (keeps_)
    entries_.push_back({op.name, layer_, interned(stream.name()), op.collective, interned(op.axis),
                        stream.clock, price.seconds, op.flops, op.bytes, op.wire_bytes, op.network_bytes,
                        op.cls, op.axes, op.role, op.nonzeros});
  if (model_work_) model_flops_ += op.model_flops;
  stream.clock += price.seconds;
  if (steals) compute_->clock += price.stolen;
}

void MetaTrace::repeat(const Part& part) {
  model_flops_ += part.model_flops;
  if (!keeps_) return;
  repeats_.push_back(part);
  for (size_t i = part.first; i < part.last; ++i) repeated_wire_bytes_ += entries_[i].wire_bytes;
}

void MetaTrace::clear_entries() {
  entries_.clear();
  repeats_.clear();
  repeated_wire_bytes_ = 0;
  model_flops_ = 0;
}

}  // namespace ltrain
