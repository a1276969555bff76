// Which part of a logical tensor a rank holds: a box (what tensor, expert or pipeline parallelism cut), and a
// range of the box's row-major elements (what ZeRO cuts). Initialisation, checkpoints and export read this
// one description.
#pragma once
#include <algorithm>
#include <cstdint>

#include <string>

#include "kernels/tensor/tensor.h"

namespace ltrain {

/// Consecutive elements of the whole tensor that are consecutive in the slice's memory too.
struct Run {
  int64_t global = 0;  ///< row-major index in the whole tensor
  int64_t local = 0;   ///< index in the slice
  int64_t count = 0;
  bool operator==(const Run&) const = default;
};

struct Slice {
  Shape global;                ///< the whole tensor
  Shape offset, extent;        ///< the box: first element and size, by dim
  int64_t begin = 0, end = 0;  ///< range of the box's elements that the slice holds, contiguous in its memory

  int64_t elements() const { return end - begin; }
  bool is_box() const { return begin == 0 && end == extent.elements(); }  ///< holds all of its box
  bool operator==(const Slice&) const = default;

  static Slice whole(const Shape& shape);
  /// Part `index` of `parts` along `dim`; sizes differ by at most one where the dim does not divide.
  static Slice shard(const Shape& shape, int dim, int index, int parts);
  static Slice box(const Shape& shape, const Shape& offset, const Shape& extent);
  /// Elements [begin, end) of the whole tensor, row-major: one rank's piece of a flat bucket.
  static Slice flat(const Shape& shape, int64_t begin, int64_t end);
  /// Elements [begin, end) of this slice.
  Slice range(int64_t begin, int64_t end) const;
  /// Part `index` of `parts` of this slice: for replicas that share the writing of one slice.
  Slice part(int index, int parts) const;
};

/// "[4, 8] of [16, 8] at [4, 0], elements 3 to 9": for messages.
std::string to_string(const Slice& slice);

/// "" or why it is no slice: a box outside the tensor, a range outside the box, sizes whose product
/// overflows.
std::string invalid_slice(const Slice& slice);

/// The product of the dims, or -1 when one is negative or the product is beyond 2^62.
int64_t checked_elements(const Shape& shape);

/// The runs of a slice in ascending order, which is the order of its memory.
class Runs {
 public:
  explicit Runs(const Slice& slice);
  /// The next run, or count 0 at the end.
  Run next();

 private:
  Slice slice_;
  int64_t length_ = 0;  // of a run of the whole box
  int outer_ = 0;       // dims that are counted over; the rest is contiguous
  int64_t at_ = 0;      // next element of the box
};

/// Calls f(local index in a, local index in b, count) for every run of elements that both hold.
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

/// Elements that both hold; fast when one of the boxes is apart from the other.
int64_t common_elements(const Slice& a, const Slice& b);

}  // namespace ltrain
