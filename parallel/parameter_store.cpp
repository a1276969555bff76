#include "parallel/parameter_store.h"

#include <algorithm>

#include "kernels/core/placement_rules.h"
#include "kernels/core/rng.h"
#include "kernels/ops/tensor_ops.h"

namespace ltrain {
namespace {

constexpr int64_t kAlign = 16;  // elements: units start on a cache line or more

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// On meta: a view with a placement of its own, cut along dim 0 over the data axis.
Tensor cut_over_data(Stream& s, Tensor t) {
  if (!s.meta() || s.meta()->axis_size(Axis::data) == 1) return t;
  TensorRecord* whole = t.record;
  if (!(whole->place[Axis::data] == Placement::R())) return t;
  t.record = s.meta()->new_record(whole->name);
  t.record->place = whole->place;
  t.record->place[Axis::data] = Placement::S(0);
  return t;
}

}  // namespace

int ParameterStore::add(std::vector<ParameterSpec> unit) {
  LT_CHECK(buckets_.empty(), "parameters are declared before allocate()");
  const int first = count();
  std::vector<int> ids;
  for (ParameterSpec& spec : unit) {
    LT_CHECK(find(spec.name) < 0, "parameter {} declared twice", spec.name);
    ids.push_back(count());
    parameters_.push_back({std::move(spec), static_cast<int>(units_.size()), 0, 0});
  }
  units_.push_back(std::move(ids));
  return first;
}

int64_t ParameterStore::elements() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.spec.shape.elements();
  return n;
}

int ParameterStore::find(std::string_view name) const {
  for (int i = 0; i < count(); ++i)
    if (parameters_[i].spec.name == name) return i;
  return -1;
}

int64_t ParameterStore::own_begin(const Bucket& b) const { return data_->rank() * b.piece; }
int64_t ParameterStore::stored_begin(const Bucket& b) const {
  return layout_.zero_stage >= 1 ? own_begin(b) : 0;
}
int64_t ParameterStore::stored_count(const Bucket& b) const {
  return layout_.zero_stage >= 1 ? b.piece : b.padded;
}

void ParameterStore::allocate(Stream& compute, Stream& comm, Memory& memory, Communicator& data,
                              const Layout& layout) {
  compute_ = &compute;
  comm_ = &comm;
  memory_ = &memory;
  data_ = &data;
  layout_ = layout;
  for (int u = static_cast<int>(units_.size()) - 1; u >= 0; --u) {
    if (buckets_.empty() || buckets_.back().used >= layout.bucket_elements) buckets_.emplace_back();
    Bucket& b = buckets_.back();
    b.used = round_up(b.used, kAlign);
    for (int id : units_[u]) {
      parameters_[id].bucket = static_cast<int>(buckets_.size()) - 1;
      parameters_[id].offset = b.used;
      b.used += parameters_[id].spec.shape.elements();
      b.ids.push_back(id);
    }
  }
  const PrecisionPolicy& p = layout.precision;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& b = buckets_[i];
    b.padded = round_up(b.used, kAlign * data.size());
    b.piece = b.padded / data.size();
    const auto name = [&](const char* what) { return fmt::format("{}, bucket {}", what, i); };
    b.value = memory.allocate(MemoryKind::parameters, name("parameters"), p.compute, {b.padded});
    if (!layout.for_training) continue;
    b.grad = memory.allocate(MemoryKind::gradients, name("gradients"), p.grad, {b.padded});
    const int64_t stored = stored_count(b);
    if (p.has_master())
      b.master = memory.allocate(MemoryKind::optimizer, name("master weights"), p.master, {stored});
    b.exp_avg = memory.allocate(MemoryKind::optimizer, name("exp_avg"), p.master, {stored});
    b.exp_avg_sq = memory.allocate(MemoryKind::optimizer, name("exp_avg_sq"), p.master, {stored});
    if (compute.meta() && layout.zero_stage >= 1)
      for (Tensor* t : {&b.master, &b.exp_avg, &b.exp_avg_sq})
        if (t->record) t->record->place[Axis::data] = data.size() > 1 ? Placement::S(0) : Placement::R();
  }
}

void ParameterStore::clear() {
  if (compute_->meta()) return;
  for (Bucket& b : buckets_)
    for (Tensor* t : {&b.value, &b.grad, &b.master, &b.exp_avg, &b.exp_avg_sq})
      if (t->defined()) fill_zero(*compute_, *t);
}

void ParameterStore::initialize(uint64_t seed) {
  clear();
  for (Bucket& b : buckets_) {
    const auto fill = [&](const Parameter& p, Tensor to, int64_t first) {
      if (p.spec.init == Init::normal) {
        fill_normal(*compute_, to, seed, hash_name(p.spec.name), first, 0.0, p.spec.std);
      } else {
        fill_value(*compute_, to, p.spec.init == Init::ones ? 1.0 : 0.0);
      }
    };
    for (int id : b.ids) fill(parameters_[id], value(id).view({parameters_[id].spec.shape.elements()}), 0);
  }
  if (!layout_.for_training || !layout_.precision.has_master()) return;
  for (const OwnedPiece& piece : stored_pieces()) {
    const Parameter& p = parameters_[piece.id];
    if (p.spec.init == Init::normal) {
      fill_normal(*compute_, piece.master, seed, hash_name(p.spec.name), piece.begin, 0.0, p.spec.std);
    } else {
      fill_value(*compute_, piece.master, p.spec.init == Init::ones ? 1.0 : 0.0);
    }
  }
}

namespace {
Shape joined(const std::vector<Shape>& shapes) {
  if (shapes.size() == 1) return shapes[0];
  int64_t rows = 0;
  for (const Shape& s : shapes) rows += s.elements() / s[-1];
  return shapes[0].rank == 1 ? Shape{rows * shapes[0][-1]} : Shape{rows, shapes[0][-1]};
}
}  // namespace

Tensor ParameterStore::value(int id, int n) const {
  std::vector<Shape> shapes;
  for (int i = id; i < id + n; ++i) shapes.push_back(parameters_[i].spec.shape);
  if (shapes[0].rank == 1 && n > 1) {
    int64_t total = 0;
    for (const Shape& s : shapes) total += s.elements();
    return buckets_[parameters_[id].bucket].value.flat(parameters_[id].offset, {total});
  }
  return buckets_[parameters_[id].bucket].value.flat(parameters_[id].offset, joined(shapes));
}

Tensor ParameterStore::grad(int id, int n) const {
  const Tensor like = value(id, n);
  return buckets_[parameters_[id].bucket].grad.flat(parameters_[id].offset, like.shape);
}

void ParameterStore::begin_micro_step(bool first, bool last) {
  first_micro_step_ = first;
  last_micro_step_ = last;
  for (Bucket& b : buckets_) {
    b.waiting = static_cast<int>(b.ids.size());
    if (first && compute_->meta()) place_zero(b.grad);
  }
}

void ParameterStore::grad_ready(int id, int n) {
  if (!last_micro_step_) return;
  for (int i = id; i < id + n; ++i) {
    Bucket& b = buckets_[parameters_[i].bucket];
    LT_CHECK(b.waiting > 0, "gradient of {} completed twice", parameters_[i].spec.name);
    if (--b.waiting == 0) reduce(b);
  }
}

void ParameterStore::reduce(Bucket& b) {
  if (data_->size() == 1) return;
  // Padding between and after units takes part in the sums: keep it zero.
  int64_t end = 0;
  const auto clear = [&](int64_t from, int64_t to) {
    if (to > from && !compute_->meta()) fill_zero(*compute_, b.grad.flat(from, {to - from}));
  };
  for (int id : b.ids) {
    clear(end, parameters_[id].offset);
    end = parameters_[id].offset + parameters_[id].spec.shape.elements();
  }
  clear(end, b.padded);
  comm_->wait(compute_->record());
  if (layout_.zero_stage >= 1) {
    data_->reduce_scatter(*comm_, b.grad.flat(own_begin(b), {b.piece}), b.grad);
  } else {
    data_->all_reduce(*comm_, b.grad);
  }
  b.reduced = comm_->record();
}

void ParameterStore::finish_gradients() {
  for (Bucket& b : buckets_) {
    LT_CHECK(b.waiting == 0, "a backward left {} gradients of a bucket incomplete", b.waiting);
    if (data_->size() > 1) compute_->wait(b.reduced);
  }
}

void ParameterStore::add_grad_squares(Tensor total) {
  // Every rank sums its own piece, replicated gradients or not: the same bits with ZeRO and without.
  for (Bucket& b : buckets_)
    sum_squares(*compute_, total, cut_over_data(*compute_, b.grad.flat(own_begin(b), {b.piece})));
}

void ParameterStore::update(const AdamwArgs& args) {
  for (Bucket& b : buckets_) {
    const int64_t begin = stored_begin(b), end = begin + stored_count(b);
    // Runs of parameters of one decay rule; padding between them is zero and stays zero.
    size_t i = 0;
    while (i < b.ids.size()) {
      size_t j = i;
      const bool decay = parameters_[b.ids[i]].spec.decay;
      while (j < b.ids.size() && parameters_[b.ids[j]].spec.decay == decay) ++j;
      const int64_t from = std::max(begin, parameters_[b.ids[i]].offset);
      const int64_t to = std::min(end, j < b.ids.size() ? parameters_[b.ids[j]].offset : b.padded);
      i = j;
      if (from >= to) continue;
      const Shape n{to - from};
      const bool low = layout_.precision.has_master();
      const Tensor param = b.value.flat(from, n);
      const Tensor master = low ? b.master.flat(from - begin, n) : param;
      adamw(*compute_, master, b.exp_avg.flat(from - begin, n), b.exp_avg_sq.flat(from - begin, n),
            b.grad.flat(from, n), low ? param : Tensor(), decay, args);
    }
    if (layout_.zero_stage >= 1 && data_->size() > 1) {
      comm_->wait(compute_->record());
      data_->all_gather(*comm_, b.value, b.value.flat(own_begin(b), {b.piece}));
    }
  }
  if (layout_.zero_stage >= 1 && data_->size() > 1) compute_->wait(comm_->record());
  if (compute_->meta())
    for (const Bucket& b : buckets_) place_require(*compute_, "end of the update", b.value, Placement::R());
}

std::vector<OwnedPiece> ParameterStore::pieces(bool owned) const {
  std::vector<OwnedPiece> out;
  for (const Bucket& b : buckets_) {
    const int64_t stored = stored_begin(b);
    const int64_t begin = owned ? own_begin(b) : stored, end = begin + (owned ? b.piece : stored_count(b));
    for (int id : b.ids) {
      const Parameter& p = parameters_[id];
      const int64_t from = std::max(begin, p.offset), to = std::min(end, p.offset + p.spec.shape.elements());
      if (from >= to) continue;
      const Shape n{to - from};
      OwnedPiece piece{id, from - p.offset, to - p.offset, {}, {}, {}};
      piece.master = layout_.precision.has_master() ? b.master.flat(from - stored, n) : b.value.flat(from, n);
      piece.exp_avg = b.exp_avg.flat(from - stored, n);
      piece.exp_avg_sq = b.exp_avg_sq.flat(from - stored, n);
      out.push_back(piece);
    }
  }
  return out;
}

std::vector<OwnedPiece> ParameterStore::owned_pieces() const { return pieces(true); }
std::vector<OwnedPiece> ParameterStore::stored_pieces() const { return pieces(false); }

void ParameterStore::publish_loaded() {
  if (layout_.precision.has_master())
    for (const OwnedPiece& piece : stored_pieces()) {
      const Parameter& p = parameters_[piece.id];
      cast(*compute_, buckets_[p.bucket].value.flat(p.offset + piece.begin, {piece.end - piece.begin}),
           piece.master);
    }
  if (layout_.zero_stage >= 1 && data_->size() > 1)
    for (Bucket& b : buckets_) {
      comm_->wait(compute_->record());
      data_->all_gather(*comm_, b.value, b.value.flat(own_begin(b), {b.piece}));
      compute_->wait(comm_->record());
    }
}

}  // namespace ltrain
