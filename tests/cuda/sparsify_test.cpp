#include "kernels/optimizer/sparsify.h"

#include "tests/cuda/twin.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("sparse are the same elements, and zeros mask the same ones") {
  if (!have_cuda()) return;
  for (const SparsePattern& p : {SparsePattern{}, {.kept = 3, .group = 8}, {.cols = 16}})
    for (DType t : kFloats)
      for (DType tx : {t, DType::f32})
        for (int64_t n : {64, 192, 4096}) {
          CAPTURE(dtype_name(t), dtype_name(tx), n, p.group, p.cols);
          Twin w(t);
          const auto weights =
              w.of(t, {n}, [](int64_t i) { return i % 5 == 0 ? 0.0 : (i * 7 % 11 - 5) * 0.25; });  // ties
          const auto along = w.random(tx, {n}), grad = w.random(tx, {n});
          w.check([&](Stream& s, const Twin::At& at) {
            prune(s, at(along), at(weights), p);
            prune(s, at(weights), at(weights), p);
            mask_by_zeros(s, at(grad), at(weights));
          });
        }
}

TEST_CASE("masks that move are the same") {
  if (!have_cuda()) return;
  for (const SparsePattern& p : {SparsePattern{}, {.kept = 3, .group = 8}, {.cols = 16}})
    for (DType t : kFloats)
      for (DType tg : {t, DType::f32}) {
        CAPTURE(dtype_name(t), dtype_name(tg), p.group, p.cols);
        const int64_t n = 4096;
        const DType wide = t == DType::f64 ? t : DType::f32;
        Twin w(t);
        const auto first = w.random(wide, {n}), next = w.random(wide, {n});
        const auto low = w.random(t, {n}), grad = w.random(tg, {n}), revived = w.random(tg, {n});
        w.check([&](Stream& s, const Twin::At& at) {
          choose_mask(s, at(low), at(first), Tensor(), p);
          masked_copy(s, at(low), at(next));
          masked_decay(s, at(grad), at(low), at(next), 0.5);
          choose_mask(s, at(low), at(next), at(revived), p);
        });
      }
}
