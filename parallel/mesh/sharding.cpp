#include "parallel/mesh/sharding.h"

#include <algorithm>

namespace ltrain {

Slice Slice::whole(const Shape& shape) {
  Shape offset;
  offset.rank = shape.rank;
  return {shape, offset, shape, 0, shape.elements()};
}

Slice Slice::box(const Shape& shape, const Shape& offset, const Shape& extent) {
  const Slice s{shape, offset, extent, 0, extent.elements()};
  const std::string wrong = invalid_slice(s);
  LT_CHECK(wrong.empty(), "expected a valid slice, got: {}", wrong);
  return s;
}

Slice Slice::shard(const Shape& shape, int dim, int index, int parts) {
  LT_CHECK(dim >= 0 && dim < shape.rank && parts >= 1 && index >= 0 && index < parts,
           "expected a part below {} along a dim below {} of {}, got part {} along dim {}", parts, shape.rank,
           to_string(shape), index, dim);
  Slice s = whole(shape);
  const int64_t n = shape[dim], base = n / parts, extra = n % parts;
  s.offset.dims[dim] = index * base + std::min<int64_t>(index, extra);
  s.extent.dims[dim] = base + (index < extra);
  s.end = s.extent.elements();
  return s;
}

Slice Slice::flat(const Shape& shape, int64_t begin, int64_t end) { return whole(shape).range(begin, end); }

Slice Slice::range(int64_t from, int64_t to) const {
  LT_CHECK(from >= 0 && from <= to && to <= elements(),
           "expected a range within the elements of {}, got {} to {}", to_string(*this), from, to);
  Slice s = *this;
  s.begin = begin + from;
  s.end = begin + to;
  return s;
}

Slice Slice::per(int64_t each) const {
  Slice s = *this;
  const int last = global.rank - 1;
  for (int64_t* n : {&s.global.dims[last], &s.offset.dims[last], &s.extent.dims[last], &s.begin, &s.end}) {
    LT_CHECK(*n % each == 0, "expected a slice of multiples of {} elements, got {}", each, to_string(*this));
    *n /= each;
  }
  return s;
}

Slice Slice::part(int index, int parts) const {
  const int64_t n = elements(), base = n / parts, extra = n % parts;
  const int64_t from = index * base + std::min<int64_t>(index, extra);
  return range(from, from + base + (index < extra));
}

std::string to_string(const Slice& s) {
  std::string text = to_string(s.global);
  if (!(s.extent == s.global))
    text = fmt::format("{} of {} at {}", to_string(s.extent), to_string(s.global), to_string(s.offset));
  if (!s.is_box()) text += fmt::format(", elements {} to {}", s.begin, s.end);
  return text;
}

int64_t checked_elements(const Shape& shape) {
  constexpr int64_t kMost = int64_t{1} << 62;
  int64_t n = 1;
  bool zero = false;
  for (int i = 0; i < shape.rank; ++i) {
    if (shape[i] < 0) return -1;
    if (shape[i] == 0) {
      zero = true;
      continue;
    }
    if (n > kMost / shape[i]) return -1;  // also if another dim is 0: strides must not overflow either
    n *= shape[i];
  }
  return zero ? 0 : n;
}

std::string invalid_slice(const Slice& s) {
  if (s.global.rank < 0 || s.global.rank > 5)
    return fmt::format("{} dims; a tensor has at most 5", s.global.rank);
  if (s.offset.rank != s.global.rank || s.extent.rank != s.global.rank)
    return fmt::format("a box of {} and {} dims in a tensor of {}", s.offset.rank, s.extent.rank,
                       s.global.rank);
  if (checked_elements(s.global) < 0)
    return fmt::format("shape {}: a negative dim, or too many elements", to_string(s.global));
  for (int i = 0; i < s.global.rank; ++i)
    if (s.offset[i] < 0 || s.extent[i] < 0 || s.offset[i] > s.global[i] ||
        s.extent[i] > s.global[i] - s.offset[i])
      return fmt::format("box {} at {} is outside {}", to_string(s.extent), to_string(s.offset),
                         to_string(s.global));
  if (s.begin < 0 || s.begin > s.end || s.end > checked_elements(s.extent))
    return fmt::format("elements {} to {} are outside box {}", s.begin, s.end, to_string(s.extent));
  return "";
}

Runs::Runs(const Slice& slice) : slice_(slice), at_(slice.begin) {
  // Trailing dims that the box spans fully form one run with the dim before them.
  outer_ = slice_.global.rank;
  length_ = 1;
  while (outer_ > 0) {
    --outer_;
    length_ *= slice_.extent[outer_];
    if (slice_.extent[outer_] != slice_.global[outer_]) break;
  }
}

Run Runs::next() {
  if (at_ >= slice_.end) return {};
  const int64_t which = at_ / length_, within = at_ % length_;
  Run run;
  run.local = at_ - slice_.begin;
  run.count = std::min(length_ - within, slice_.end - at_);
  // Index of the run's first element in the full tensor: outer dims from `which`, the others from the box's
  // offset.
  int64_t stride = 1, rest = which, index = within;
  for (int i = slice_.global.rank - 1; i >= 0; --i) {
    int64_t coordinate = slice_.offset[i];
    if (i < outer_) {
      coordinate += rest % slice_.extent[i];
      rest /= slice_.extent[i];
    }
    index += coordinate * stride;
    stride *= slice_.global[i];
  }
  run.global = index;
  at_ += run.count;
  return run;
}

int64_t common_elements(const Slice& a, const Slice& b) {
  if (!(a.global == b.global)) return 0;
  int64_t common_box = 1;
  for (int i = 0; i < a.global.rank; ++i)
    common_box *= std::max<int64_t>(0, std::min(a.offset[i] + a.extent[i], b.offset[i] + b.extent[i]) -
                                           std::max(a.offset[i], b.offset[i]));
  if (common_box == 0) return 0;
  if (a.is_box() && b.is_box()) return common_box;
  if (a.offset == b.offset && a.extent == b.extent)
    return std::max<int64_t>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
  int64_t n = 0;
  for_each_common(a, b, [&](int64_t, int64_t, int64_t count) { n += count; });
  return n;
}

}  // namespace ltrain
