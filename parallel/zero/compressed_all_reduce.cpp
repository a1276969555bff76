#include "parallel/zero/compressed_all_reduce.h"

#include <algorithm>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "parallel/optim/optimizer.h"

namespace ltrain {

CompressedAllReduce::CompressedAllReduce(const StoreContext& context, const ParameterLayout& layout,
                                         std::optional<Code> gradients)
    : c_(context), layout_(layout), gradients_(gradients), errors_(layout.buckets().size()) {}

Code CompressedAllReduce::code_of(const Bucket& b) const { return gradients_.value_or(Code::sign); }

bool CompressedAllReduce::applies(const Bucket& b) const {
  return b.kind.rule.trains() && layout_.shard_group(b).size() > 1 &&
         (gradients_.has_value() || is_onebit(b.kind.rule.rule));
}

void CompressedAllReduce::allocate(const Bucket& b) {
  if (!applies(b)) return;
  LT_CHECK(!c_.sharding.shards_gradients() && layout_.replicate_group(b).size() == 1,
           "expected full gradients and one level of ranks for a compressed all-reduce, got {} replicas and "
           "sharded gradients: {}",
           layout_.replicate_group(b).size(), c_.sharding.shards_gradients());
  const auto make = [&](const char* what, int64_t n) {
    return c_.memory.allocate(MemoryKind::optimizer, fmt::format("{}, bucket {}", what, b.index),
                              c_.precision.grad, {n});
  };
  Errors& e = errors_[static_cast<size_t>(b.index)];
  e.sent = make("error of what is sent", b.padded);
  e.sum = make("error of sums", b.piece);
}

void CompressedAllReduce::allocate_codes() {
  int64_t most = 0;
  for (const Bucket& b : layout_.buckets())
    if (applies(b)) most = std::max(most, coded_bytes(code_of(b), c_.precision.grad, b.padded));
  if (most == 0) return;
  codes_ = c_.memory.allocate(MemoryKind::communication, "codes that are sent", DType::u8, {most});
  received_ = c_.memory.allocate(MemoryKind::communication, "codes that are summed", DType::u8, {most});
}

void CompressedAllReduce::each_error(const std::function<void(const Tensor&)>& f) const {
  for (const Errors& e : errors_) {
    f(e.sent);
    f(e.sum);
  }
}

void compressed_all_reduce(Stream& s, const Group& g, const CompressedSum& sum, double factor, bool all) {
  const Tensor &values = sum.values, &sent = sum.sent, &got = sum.received, &where = sum.where;
  const int64_t piece = values.elements() / g.size(), part = sent.elements() / g.size();
  const auto piece_of = [&](const Tensor& t) { return t.defined() ? t.flat(g.rank() * piece, {piece}) : t; };
  if (s.meta())  // each rank has a summand, and sends slices of it
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis a = static_cast<Axis>(i); g.axes().has(a) && values.record->place[a] == Placement::P())
        place_as(s, "sum in a compressed all-reduce", a, values, Placement::P(), Placement::S(0));
  const Placements parts = s.meta() ? values.record->place : Placements{};
  compress(s, sum.code, sent, values, sum.sent_error, where);
  const auto elsewhere =
      [&](auto f) {  // axes that shard parameters: codes of one part are unrelated to another's
        for (int i = 0; s.meta() && i < kAxisCount; ++i)
          if (const Axis a = static_cast<Axis>(i); !g.axes().has(a) && parts[a].kind == Placement::sharded)
            f(a);
      };
  elsewhere([&](Axis a) { place_set(s, sent, a, Placement::V()); });
  g.all_to_all(s, got, sent);
  const Tensor own = sent.flat(g.rank() * part, {part});
  compress_sum(s, sum.code, own, got, g.size(), factor, sum.sum_error, piece_of(where));
  place_spent(s, got);
  if (all) g.all_gather(s, sent, own);
  if (all)
    decompress(s, sum.code, values, sent, where);
  else
    decompress(s, sum.code, piece_of(values), own, piece_of(where));
  elsewhere([&](Axis a) { place_set(s, values, a, parts[a]); });
  place_spent(s, sent);
}

void CompressedAllReduce::run(Stream& s, const Bucket& b, Tensor values, double factor, Tensor where,
                              bool all) {
  const Group& g = layout_.shard_group(b);
  const Errors& errors = errors_[static_cast<size_t>(b.index)];
  const Code code = code_of(b);
  const int64_t bytes = g.size() * coded_bytes(code, values.dtype, b.piece);
  compressed_all_reduce(s, g,
                        {.code = code,
                         .values = values,
                         .sent_error = errors.sent,
                         .sum_error = errors.sum,
                         .sent = codes_.flat(0, {bytes}),
                         .received = received_.flat(0, {bytes}),
                         .where = where},
                        factor, all);
  if (code != Code::sign || where.defined()) return;
  const int64_t begin = layout_.piece_begin(b);
  clear_gaps(s, b, errors.sent, 0);
  clear_gaps(s, b, errors.sum, begin);
  if (all)
    clear_gaps(s, b, values, 0);
  else
    clear_gaps(s, b, values.flat(begin, {b.piece}), begin);
}

void CompressedAllReduce::clear_gaps(Stream& s, const Bucket& b, const Tensor& elements,
                                     int64_t begin) const {
  std::vector<std::pair<int64_t, int64_t>> taken;  // first element of a parameter, and the one behind it
  for (int id : layout_.members(b)) {
    const auto& p = layout_.parameter(id);
    taken.emplace_back(p.offset, p.offset + p.spec.slice.elements());
  }
  taken.emplace_back(b.padded, b.padded);
  std::sort(taken.begin(), taken.end());
  int64_t at = begin;
  const int64_t end = begin + elements.elements();
  for (const auto& [first, behind] : taken) {
    if (at < std::min(first, end))
      fill_zero(s, place_apart(s, elements.flat(at - begin, {std::min(first, end) - at}), "gap of a bucket"));
    at = std::max(at, behind);
  }
}

std::vector<RoundingError> CompressedAllReduce::rounding_errors(bool owned) const {
  std::vector<RoundingError> out;
  for (const Bucket& b : layout_.buckets()) {
    const Errors& e = errors_[static_cast<size_t>(b.index)];
    if (!e.sent.defined() || (owned && !layout_.first_copy(b))) continue;
    const Group& g = layout_.shard_group(b);
    for (int id : layout_.members(b)) {
      const auto& p = layout_.parameter(id);
      const int64_t n = p.spec.slice.elements(), begin = layout_.piece_begin(b);
      if (n == 0) continue;
      out.push_back({id, p.spec.slice, true, g.rank(), g.size(), e.sent.flat(p.offset, {n})});
      const int64_t from = std::max(begin, p.offset), to = std::min(begin + b.piece, p.offset + n);
      if (from < to)
        out.push_back({id, p.spec.slice.range(from - p.offset, to - p.offset), false, g.rank(), g.size(),
                       e.sum.flat(from - begin, {to - from})});
    }
  }
  return out;
}

}  // namespace ltrain
