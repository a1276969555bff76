// Part of a logical tensor on a rank: a box (from tensor, expert or pipeline parallelism), and a range of the
// box's row-major elements (from ZeRO). Initialisation, checkpoints and export read this one description.
#pragma once
#include <algorithm>
#include <cstdint>

#include <string>

#include "kernels/tensor/tensor.h"

namespace ltrain {

/// Consecutive elements of the full tensor that are also consecutive in the slice's memory.
struct Run {
  int64_t global = 0;  ///< row-major index in the full tensor
  int64_t local = 0;   ///< index in the slice
  int64_t count = 0;
  bool operator==(const Run&) const = default;
};

struct Slice {
  Shape global;                ///< the full tensor
  Shape offset, extent;        ///< the box: first element and size, by dim
  int64_t begin = 0, end = 0;  ///< range of the box's elements in the slice, contiguous in its memory

  int64_t elements() const { return end - begin; }
  bool is_box() const { return begin == 0 && end == extent.elements(); }  ///< true if it holds its full box
  bool operator==(const Slice&) const = default;

  static Slice whole(const Shape& shape);
  /// Part `index` of `parts` along `dim`; sizes differ by at most one if the dim does not divide.
  static Slice shard(const Shape& shape, int dim, int index, int parts);
  static Slice box(const Shape& shape, const Shape& offset, const Shape& extent);
  /// Elements [begin, end) of the full tensor, row-major: one rank's piece of a flat bucket.
  static Slice flat(const Shape& shape, int64_t begin, int64_t end);
  /// Elements [begin, end) of this slice.
  Slice range(int64_t begin, int64_t end) const;
  /// The same part of a tensor with one element for `each` elements of a row. Rows, box and range must be
  /// multiples of `each`.
  Slice per(int64_t each) const;
  /// Part `index` of `parts` of this slice, for replicas that share the writing of one slice.
  Slice part(int index, int parts) const;
};

/// "[4, 8] of [16, 8] at [4, 0], elements 3 to 9", for messages.
std::string to_string(const Slice& slice);

/// Empty, or the reason why it is invalid: a box outside the tensor, a range outside the box, sizes with an
/// overflowing product.
std::string invalid_slice(const Slice& slice);

/// Product of the dims, or -1 if one is negative or the product exceeds 2^62.
int64_t checked_elements(const Shape& shape);

/// Runs of a slice in ascending order, the order of its memory.
class Runs {
 public:
  explicit Runs(const Slice& slice);
  /// The next run, or count 0 at the end.
  Run next();

 private:
  Slice slice_;
  int64_t length_ = 0;  // length of a run of the full box
  int outer_ = 0;       // leading dims that are counted; the rest is contiguous
  int64_t at_ = 0;      // next element of the box
};

/// Calls f(local index in a, local index in b, count) for every run of common elements.
template <class F>
void for_each_common(const Slice& a, const Slice& b, F f) {
  Runs ra(a), rb(b);
  Run x = ra.next(), y = rb.next();
  while (x.count > 0 && y.count > 0) {
    const int64_t begin = std::max(x.global, y.global),
                  end = std::min(x.global + x.count, y.global + y.count);
    if (begin < end) f(x.local + (begin - x.global), y.local + (begin - y.global), end - begin);
    if (x.global + x.count <= y.global + y.count)
      x = ra.next();
    else
      y = rb.next();
  }
}

/// Number of common elements; fast if the boxes are disjoint.
int64_t common_elements(const Slice& a, const Slice& b);

}  // namespace ltrain
