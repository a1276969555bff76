// Sums over ranks in a compressed all-reduce: gradients in 8, the moments of 1-bit Adam and LAMB in one.
//
// A rank adds to its values what rounding left over last time, and rounds them. Each rank gets all ranks'
// codes of its piece, sums them, adds what its own rounding of such sums left over, and rounds the sum, whose
// codes all get. Two phases of as many bytes as the codes have, like those of an all-reduce; all ranks hold
// the same bits at the end. What was left over is kept, so that over steps nothing is lost (error feedback,
// DeepSpeed's compressed all-reduce).
#include <algorithm>

#include "kernels/meta/placement_rules.h"
#include "parallel/zero/parameter_store.h"

namespace ltrain {

Code ParameterStore::code_of(const Bucket& b) const {
  return is_onebit(b.kind.rule.rule) ? Code::sign : Code::int8;
}

bool ParameterStore::is_compressed(const Bucket& b) const {
  return layout_.for_training && b.kind.rule.trains() && shard_group(b).size() > 1 &&
         (layout_.reduce_int8 || is_onebit(b.kind.rule.rule));
}

void ParameterStore::allocate_errors(Bucket& b, const std::string& name) {
  LT_CHECK(!layout_.sharding.shards_gradients() && replicate_group(b).size() == 1,
           "compressed all-reduce of pieces of gradients");
  const auto make = [&](const char* what, int64_t n) {
    return memory_->allocate(MemoryKind::optimizer, fmt::format("{}, {}", what, name), layout_.precision.grad,
                             {n});
  };
  b.sent_error = make("error of what is sent", b.padded);
  b.sum_error = make("error of sums", b.piece);
}

void ParameterStore::allocate_codes() {
  int64_t most = 0;
  for (const Bucket& b : buckets_)
    if (is_compressed(b)) most = std::max(most, coded_bytes(code_of(b), layout_.precision.grad, b.padded));
  if (most == 0) return;
  codes_ = memory_->allocate(MemoryKind::communication, "codes that are sent", DType::u8, {most});
  received_ = memory_->allocate(MemoryKind::communication, "codes that are summed", DType::u8, {most});
}

/// values := factor times their sum over the ranks of the bucket, of all of them or of the piece alone. Of
/// what `where` leaves out nothing is summed.
void ParameterStore::compressed_all_reduce(Bucket& b, Tensor values, double factor, Tensor where, bool all) {
  const Group& g = shard_group(b);
  Stream& s = *g.stream;
  const Code code = code_of(b);
  const int64_t part = coded_bytes(code, values.dtype, b.piece), from = piece_begin(b);
  const auto piece_of = [&](const Tensor& t) { return t.defined() ? t.flat(from, {b.piece}) : t; };
  const Tensor sent = codes_.flat(0, {g.size() * part}), got = received_.flat(0, {g.size() * part});
  if (s.meta())  // each rank's summand, of which it sends slices
    for (int i = 0; i < kAxisCount; ++i)
      if (const Axis a = static_cast<Axis>(i);
          g.comm->axes().has(a) && values.record->place[a] == Placement::P())
        place_as(s, "sum in a compressed all-reduce", a, values, Placement::P(), Placement::S(0));
  const Placements parts = s.meta() ? values.record->place : Placements{};
  compress(s, code, sent, values, b.sent_error, where);
  const auto elsewhere =
      [&](auto f) {  // axes that cut parameters: codes of one part say nothing of another's
        for (int i = 0; s.meta() && i < kAxisCount; ++i)
          if (const Axis a = static_cast<Axis>(i);
              !g.comm->axes().has(a) && parts[a].kind == Placement::sharded)
            f(a);
      };
  elsewhere([&](Axis a) { place_set(s, sent, a, Placement::V()); });
  g.comm->all_to_all(s, got, sent);
  const Tensor own = sent.flat(g.rank() * part, {part});
  compress_sum(s, code, own, got, g.size(), factor, b.sum_error, piece_of(where));
  place_spent(s, got);
  if (all) g.comm->all_gather(s, sent, own);
  if (all)
    decompress(s, code, values, sent, where);
  else
    decompress(s, code, piece_of(values), own, piece_of(where));
  elsewhere([&](Axis a) { place_set(s, values, a, parts[a]); });
  place_spent(s, sent);
}

std::vector<RoundingError> ParameterStore::rounding_errors(bool owned) const {
  std::vector<RoundingError> out;
  for (const Bucket& b : buckets_) {
    if (!b.sent_error.defined() || (owned && !first_copy(b))) continue;
    const Group& g = shard_group(b);
    for (int id : members(b)) {
      const Parameter& p = parameters_[id];
      const int64_t n = p.spec.slice.elements(), begin = piece_begin(b);
      if (n == 0) continue;
      out.push_back({id, p.spec.slice, true, g.rank(), g.size(), b.sent_error.flat(p.offset, {n})});
      const int64_t from = std::max(begin, p.offset), to = std::min(begin + b.piece, p.offset + n);
      if (from < to)
        out.push_back({id, p.spec.slice.range(from - p.offset, to - p.offset), false, g.rank(), g.size(),
                       b.sum_error.flat(from - begin, {to - from})});
    }
  }
  return out;
}

}  // namespace ltrain
