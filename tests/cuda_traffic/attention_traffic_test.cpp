// Bytes of attention, and of what goes before and after it.
//
// The floor of attention is its operands and results once. Its kernels go over the keys once for each tile of
// queries that sees them (and in the backward over the queries once for each tile of keys): those are tiles
// from the level-2 cache, which holds the keys and values of a head (256 KiB at 1024 x 64), and are counted
// under `repeated`.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_sinks.h"
#include "kernels/attention/latent_heads.h"
#include "kernels/attention/merge_attention.h"
#include "tests/cuda_traffic/accesses.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct Moves {
  Expected forward, backward;
};

/// One sample of `seq` positions, two heads of queries that share one of keys and values.
void check_attention(const char* kernel, int64_t seq, const Moves& expected) {
  CAPTURE(kernel);
  ::setenv("LTRAIN_ATTENTION", kernel, 1);
  AttentionShape shape;
  shape.seq = seq, shape.heads = 2, shape.kv_heads = 1, shape.head_dim = 64;
  check_bytes(
      [=](Operands& o) {
        const Tensor out = o.make(kBf16, {seq, shape.out_width()}), lse = o.make(kF32, {1, 2, seq}),
                     qkv = o.make(kBf16, {seq, shape.qkv_width()});
        return [=](Stream& s) { attention_forward(s, out, lse, qkv, shape, {}); };
      },
      expected.forward);
  check_bytes(
      [=](Operands& o) {
        const Tensor out = o.make(kBf16, {seq, shape.out_width()}), lse = o.make(kF32, {1, 2, seq}),
                     qkv = o.make(kBf16, {seq, shape.qkv_width()}),
                     dout = o.make(kBf16, {seq, shape.out_width()}),
                     dqkv = o.make(kBf16, {seq, shape.qkv_width()});
        return [=](Stream& s) { attention_backward(s, dqkv, dout, qkv, out, lse, shape, {}); };
      },
      expected.backward);
  ::unsetenv("LTRAIN_ATTENTION");
}

}  // namespace

TEST_CASE("bytes: attention by each kernel") {
  const int64_t seq = 384, head = seq * 64 * 2, lse = 2 * seq * 4;
  const int64_t forward = 6 * head + lse, backward = 12 * head + lse;
  // Keys and values of a head (2 * head) for each tile of queries, up to its last: a mean of (tiles + 1) / 2
  // times, by each of two heads. Tiles of queries are 32, 128 and 192 rows; the last kernel's 128 keys.
  const auto again = [=](double times) { return static_cast<int64_t>((2 * times - 1) * 2 * head); };
  check_attention("base", seq,
                  {{.floor = forward, .repeated = again(6.5)}, {.floor = backward, .repeated = 3376128}});
  check_attention(
      "mma", seq,
      {{.floor = forward, .repeated = again(2)}, {.floor = backward, .repeated = 1199616, .scratch = 26112}});
  check_attention("wgmma", seq,
                  {{.floor = forward, .repeated = again((2 + 3) / 3.0)},
                   {.floor = backward, .repeated = 983040, .scratch = 44544}});
}

TEST_CASE("bytes: attention sinks") {
  const int64_t rows = 128, chunks = rows / 64, heads = 4, dim = 64, n = rows * heads * dim,
                pairs = rows * heads;
  check_bytes(
      [=](Operands& o) {
        const Tensor out = o.make(kBf16, {rows, heads * dim}), lse = o.make(kF32, {1, heads, rows}),
                     sinks = o.make(kBf16, {heads});
        return [=](Stream& s) { attention_sinks_forward(s, out, lse, sinks, 0); };
      },
      // A row's sum and its head's sink by each lane.
      {.floor = 2 * (n * 2 + pairs * 4),
       .unpriced = heads * 2,
       .repeated = pairs * (31 * 4 + 32 * 2) - heads * 2});
  check_bytes(
      [=](Operands& o) {
        const Tensor out = o.make(kBf16, {rows, heads * dim}), lse = o.make(kF32, {1, heads, rows}),
                     sinks = o.make(kBf16, {heads}), dout = o.make(kBf16, {rows, heads * dim}),
                     dsinks = o.make(kF32, {heads});
        return [=](Stream& s) { attention_sinks_backward(s, dsinks, dout, out, lse, sinks, 0, false); };
      },
      {.floor = 2 * n * 2 + pairs * 4,
       .unpriced = heads * (2 + 4),
       .repeated = /*sinks by each of 8 warps*/ (chunks * 8 - 1) * heads * 2,
       .scratch = chunks * heads * 4 * 2});
}

TEST_CASE("bytes: partial results of attention become one") {
  const int64_t rows = 64, heads = 4, dim = 64, n = rows * heads * dim, pairs = rows * heads;
  check_bytes(
      [=](Operands& o) {
        const Tensor out = o.make(kF32, {rows, heads * dim}), lse = o.make(kF32, {1, heads, rows}),
                     other = o.make(kF32, {rows, heads * dim}), sum = o.make(kF32, {1, heads, rows});
        return [=](Stream& s) { merge_attention(s, out, lse, other, sum); };
      },
      {.floor = 3 * (n + pairs) * 4, .repeated = /*both sums by each lane*/ pairs * 31 * 4 * 2});
}

TEST_CASE("bytes: heads of latent attention") {
  LatentHeads p;
  p.heads = 4, p.nope = 32, p.rope = 16, p.value = 32;
  const int64_t rows = 32, parts = p.heads * (p.nope + p.value);
  const int64_t once = rows * (p.qkv_width() + p.heads * p.width() + parts + p.rope) * 2;
  check_bytes(
      [=](Operands& o) {
        const Tensor qkv = o.make(kBf16, {rows, p.qkv_width()}),
                     q = o.make(kBf16, {rows, p.heads * p.width()}), kv = o.make(kBf16, {rows, parts}),
                     rope = o.make(kBf16, {rows, p.rope});
        return [=](Stream& s) { latent_heads_forward(s, qkv, q, kv, rope, p); };
      },
      {.floor = once, .repeated = /*shared channels for each head*/ (p.heads - 1) * rows * p.rope * 2});
  check_bytes(
      [=](Operands& o) {
        const Tensor qkv = o.make(kBf16, {rows, p.qkv_width()}),
                     q = o.make(kBf16, {rows, p.heads * p.width()}), kv = o.make(kBf16, {rows, parts}),
                     rope = o.make(kBf16, {rows, p.rope});
        return [=](Stream& s) { latent_heads_backward(s, q, kv, rope, qkv, p); };
      },
      {.floor = once});
}
