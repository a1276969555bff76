#include "parallel/zero/optimizer_states.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/tensor/staging.h"

namespace ltrain {
namespace {

/// Number of n elements that stay when a fraction leaves; at least one cache line, as no allocation is empty.
int64_t resident_part(int64_t n, double fraction) {
  const double stays = std::floor((1 - fraction) * static_cast<double>(n) / kBucketAlign);
  return std::max<int64_t>(kBucketAlign, static_cast<int64_t>(stays) * kBucketAlign);
}

const Optimizer& optimizer_of(const Bucket& b) { return ltrain::optimizer_of(b.kind.rule.rule); }

}  // namespace

OptimizerStates::OptimizerStates(const StoreContext& context, const ParameterLayout& layout,
                                 const Weights& weights, const OptimizerSettings& optimizer, double fraction,
                                 OffloadAccess& access)
    : c_(context),
      layout_(layout),
      weights_(weights),
      optimizer_(optimizer),
      fraction_(fraction),
      access_(access),
      states_(layout.buckets().size()) {}

Tensor OptimizerStates::make(const Bucket& b, const char* what, DType type, int64_t n, bool sharded) const {
  const Tensor t =
      c_.memory.allocate(MemoryKind::optimizer, fmt::format("{}, bucket {}", what, b.index), type, {n});
  layout_.place_bucket(c_.compute, b, t, sharded);
  return t;
}

void OptimizerStates::allocate_master(const Bucket& b) {
  State& s = of(b);
  s.resident = layout_.stored_count(b);
  if (fraction_ > 0 && optimizer_of(b).by_element() && b.kind.rule.trains())
    s.resident = resident_part(s.resident, fraction_);
  if (has_master(b))
    s.master = make(b, "master weights", c_.precision.master, s.resident, layout_.stores_pieces(b));
}

void OptimizerStates::allocate_moments(const Bucket& b) {
  State& s = of(b);
  const int64_t stored = layout_.stored_count(b);
  const bool pieces = layout_.stores_pieces(b);
  if (optimizer_of(b).coded_states()) {
    s.coded.first = make(b, "exp_avg, 8 bits", DType::u8, stored, pieces);
    s.coded.second = make(b, "exp_avg_sq, 8 bits", DType::u8, stored, pieces);
    s.coded.scales = make(b, "scales of moments", DType::f32, 2 * (stored / kCodeBlock), false);
    return;
  }
  if (const std::string scratch(optimizer_of(b).element_scratch(optimizer_)); !scratch.empty())
    s.scratch = make(b, scratch.c_str(), c_.precision.grad, stored, pieces);
  for (std::string_view name : optimizer_of(b).element_states(b.kind.rule))
    s.moments.push_back(make(b, std::string(name).c_str(), c_.precision.state, s.resident, pieces));
}

void OptimizerStates::lay_out_offloaded() {
  for (const Bucket& b : layout_.buckets()) {
    const int64_t offloaded = layout_.stored_count(b) - of(b).resident;
    for (int s = 0; offloaded > 0 && s < count(b); ++s)
      of(b).offloaded.push_back(access_.take_states(offloaded * dtype_size(type(b, s))));
  }
}

int OptimizerStates::count(const Bucket& b) const {
  return static_cast<int>(of(b).moments.size()) + has_master(b);
}

const Tensor& OptimizerStates::on_device(const Bucket& b, int state) const {
  const int masters = has_master(b);
  return state < masters ? of(b).master : of(b).moments[static_cast<size_t>(state - masters)];
}

Tensor OptimizerStates::state(const Bucket& b, int state, int64_t at, int64_t n) const {
  const State& s = of(b);
  const Tensor& resident = on_device(b, state);
  if (at < s.resident) return resident.flat(at, {n});
  LT_CHECK(s.resident + n <= layout_.stored_count(b),
           "expected states within the {} elements of bucket {}, got {} beyond {} resident ones",
           layout_.stored_count(b), b.index, n, s.resident);
  Tensor offloaded = resident;
  offloaded.shape = {n};
  offloaded.data = c_.meta() ? nullptr : access_.states->at(offset(b, state, at));
  return offloaded;
}

int64_t OptimizerStates::offset(const Bucket& b, int state, int64_t at) const {
  return of(b).offloaded[static_cast<size_t>(state)] + (at - of(b).resident) * dtype_size(type(b, state));
}

void OptimizerStates::fetch(const Bucket& b, int state, int64_t at, const Tensor& t) const {
  access_.states->fetch(t, offset(b, state, at));
}

void OptimizerStates::store(const Bucket& b, int state, int64_t at, const Tensor& t) const {
  access_.states->store(t, offset(b, state, at));
}

std::vector<NamedState> OptimizerStates::named(const Bucket& b, int64_t at, int64_t n) const {
  std::vector<NamedState> out;
  const State& s = of(b);
  const std::vector<std::string_view> names = optimizer_of(b).element_states(b.kind.rule);
  for (size_t i = 0; i < names.size(); ++i) {
    if (!is_coded(b)) {
      out.push_back({names[i], state(b, static_cast<int>(i) + has_master(b), at, n)});
      continue;
    }
    Tensor open;
    open.dtype = DType::f32;
    open.shape = {n};
    open.record = s.coded.first.record;
    if (!s.open.empty())
      open.data = const_cast<float*>(s.open.data()) + static_cast<int64_t>(i) * s.coded.first.elements() + at;
    out.push_back({names[i], open});
  }
  return out;
}

Tensor OptimizerStates::master(const Bucket& b, int64_t at, int64_t n) const {
  return has_master(b) ? state(b, 0, at, n) : weights_.part(b, layout_.stored_begin(b) + at, n);
}

void OptimizerStates::copy_master(const Bucket& b, const Tensor& to) const {
  const bool masters = has_master(b);
  const int64_t resident = masters ? of(b).resident : to.elements(), offloaded = to.elements() - resident;
  const Tensor from = masters ? of(b).master : weights_.updated(b);
  const auto view = [&](const Tensor& t) { return access_.view(c_.compute, t); };
  access_.in_parts(resident, [&](int64_t at, int64_t n) {
    cast(c_.compute, view(to.flat(at, {n})), view(from.flat(at, {n})));
  });
  access_.in_parts(offloaded, [&](int64_t at, int64_t n) {
    cast(c_.compute, view(to.flat(resident + at, {n})), view(state(b, 0, resident + at, n)));
  });
}

void OptimizerStates::show(const Bucket& b, int64_t from, int64_t n, Elements& e) const {
  const State& s = of(b);
  const int64_t at = from - layout_.stored_begin(b);
  const bool resident = at + n <= s.resident;
  const Tensor weights = weights_.part(b, from, n);
  if (!has_master(b)) {
    e.master = weights;
  } else {
    if (!b.kind.derived()) e.low = weights;
    if (resident) e.master = s.master.flat(at, {n});
  }
  if (resident)
    for (const Tensor& t : s.moments) e.states.push_back(t.flat(at, {n}));
}

int64_t OptimizerStates::open_bytes(bool own_memory) const {
  int64_t bytes = 0, codes = 0;
  for (const Bucket& b : layout_.buckets()) {
    if (!is_coded(b)) continue;
    const CodedMoments& m = coded(b);
    bytes += 2 * m.first.elements() * static_cast<int64_t>(sizeof(float));
    if (own_memory) codes = std::max(codes, m.first.bytes() + m.second.bytes() + m.scales.bytes());
  }
  return bytes + codes;
}

namespace {

/// A bucket's codes for host kernels: the codes themselves, or a copy.
class HostCodes {
 public:
  HostCodes(Stream& stream, const CodedMoments& coded) : stream_(stream), coded_(coded), here_(coded) {
    if (stream.device() == DeviceKind::cpu) return;
    bytes_.resize(static_cast<size_t>(coded.first.bytes() + coded.second.bytes() + coded.scales.bytes()));
    here_.scales.data = bytes_.data();  // first, because it needs 4-byte alignment
    here_.first.data = bytes_.data() + coded.scales.bytes();
    here_.second.data = bytes_.data() + coded.scales.bytes() + coded.first.bytes();
  }
  void decode(Tensor values) {
    each([&](const Tensor& device, const Tensor& host) { download(stream_, host.data, device); });
    decode_moments(*cpu_, values, here_);
  }
  void encode(Tensor values) {
    encode_moments(*cpu_, here_, values);
    each([&](const Tensor& device, const Tensor& host) { upload(stream_, device, host.data); });
  }

 private:
  template <class F>
  void each(F f) {
    if (bytes_.empty()) return;
    f(coded_.first, here_.first), f(coded_.second, here_.second), f(coded_.scales, here_.scales);
  }
  Stream& stream_;
  const CodedMoments& coded_;
  CodedMoments here_;
  std::vector<char> bytes_;
  const std::unique_ptr<Stream> cpu_ = make_inline_stream("8-bit moments");
};

Tensor values_of(std::vector<float>& open) {
  Tensor values;
  values.data = open.data();
  values.shape = {static_cast<int64_t>(open.size())};
  return values;
}

}  // namespace

void OptimizerStates::open() {
  for (const Bucket& b : layout_.buckets()) {
    if (!is_coded(b)) continue;
    State& s = of(b);
    s.open.resize(2 * static_cast<size_t>(s.coded.first.elements()));
    HostCodes(c_.compute, s.coded).decode(values_of(s.open));
  }
}

void OptimizerStates::close(bool changed) {
  for (const Bucket& b : layout_.buckets()) {
    State& s = of(b);
    if (s.open.empty()) continue;
    if (changed) HostCodes(c_.compute, s.coded).encode(values_of(s.open));
    s.open = {};
  }
}

void OptimizerStates::each_tensor(const std::function<void(const Tensor&)>& f) const {
  for (const Bucket& b : layout_.buckets()) {
    const State& s = of(b);
    for (const Tensor& t : {s.master, s.coded.first, s.coded.second, s.coded.scales}) f(t);
    for (const Tensor& t : s.moments) f(t);
    for (int i = 0; !s.offloaded.empty() && i < count(b); ++i)
      f(state(b, i, s.resident, layout_.stored_count(b) - s.resident));
  }
}

}  // namespace ltrain
