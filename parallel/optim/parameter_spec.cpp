#include "parallel/optim/parameter_spec.h"

#include <algorithm>

namespace ltrain {

ParameterSpec cut_over(Axis axis, ParameterSpec whole, int dim, int rank, int parts) {
  if (parts == 1) return whole;
  const int64_t n = whole.shape[dim], each = (n + parts - 1) / parts;
  LT_CHECK(dim == 0 || n % parts == 0, "expected dim {} of {} {} to be a multiple of {} ranks, got {}", dim,
           whole.name, to_string(whole.shape), parts, n);
  const Slice before = whole.slice.global.rank ? whole.slice : Slice::whole(whole.shape);
  Shape offset = before.offset, extent = before.extent;
  const int64_t first = std::min(extent[dim], rank * each);  // padding comes last
  offset.dims[dim] += first;
  extent.dims[dim] = std::min(each, extent[dim] - first);
  whole.slice = Slice::box(before.global, offset, extent);
  whole.shape.dims[dim] = each;
  whole.place[axis] = Placement::S(dim);
  return whole;
}

BoxElements elements_of(const ParameterSpec& spec, int64_t begin) {
  const Slice& s = spec.slice;
  BoxElements e;
  e.rank = s.global.rank;
  for (int d = 0; d < e.rank; ++d)
    e.global[d] = s.global[d], e.offset[d] = s.offset[d], e.extent[d] = s.extent[d];
  e.begin = s.begin + begin;
  return e;
}

}  // namespace ltrain
