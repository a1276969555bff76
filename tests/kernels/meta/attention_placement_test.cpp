// Placements of attention over a sharded sequence: gathered keys get partial gradients, travelling keys do
// not, and operands that were not brought together are refused.
#include <catch2/catch.hpp>

#include "kernels/attention/attention.h"
#include "kernels/attention/merge_attention.h"
#include "kernels/elementwise/copy_rectangles.h"
#include "kernels/meta/meta_memory.h"
#include "kernels/meta/placement_rules.h"
#include "tests/kernels/meta/placements.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Matchers::Contains;

namespace {

/// Two context ranks; a sequence of 8 of which this one has 4 rows; one head of 4.
struct ContextMeta {
  MetaTrace trace;
  std::unique_ptr<Stream> s;
  MetaMemory memory{trace};
  ContextMeta() {
    trace.set_axis_size(Axis::context, 2);
    s = make_meta_stream("compute", trace);
    trace.set_layer("layers.0.attention");
  }
  Tensor tensor(const char* name, Shape shape, Placement p = R) {
    Tensor t = memory.allocate(MemoryKind::activations, name, DType::f32, shape);
    t.record->place[Axis::context] = p;
    t.record->written = true;
    return t;
  }
  AttentionBlock block(Placement q, Placement kv, int64_t keys) {
    AttentionBlock b;
    b.shape = {1, 8, 1, 1, 4};
    b.q = {tensor("q", {4, 4}, q), 0};
    const Tensor t = tensor("kv", {keys, 8}, kv);
    b.k = {t, 0}, b.v = {t, 4};
    b.q_at = Positions::two_runs(0, 6, 2, 8);
    b.k_at = keys == 8 ? Positions(8) : b.q_at;
    return b;
  }
};
Placement of(const Tensor& t) { return t.record->place[Axis::context]; }

/// dk's placement for queries, upstream gradient and keys that lie so.
Placement key_gradient(Placement q, Placement kv) {
  ContextMeta m;
  AttentionBlock b = m.block(q, kv, 8);
  const Tensor dkv = m.tensor("dkv", {8, 8}), dq = m.tensor("dq", {4, 4});
  const Tensor out = m.tensor("out", {4, 4}, q), lse = m.tensor("lse", {1, 1, 4}, q);
  attention_block_backward(*m.s, {{dq, 0}, {dkv, 0}, {dkv, 4}}, m.tensor("dout", {4, 4}, q), out, lse, b);
  CHECK(of(dq) == q);
  return of(dkv);
}

}  // namespace

TEST_CASE("the gradient of keys that all ranks hold is partial, of keys that travel it varies") {
  CHECK(key_gradient(V, R) == P);
  CHECK(key_gradient(V, V) == V);
  CHECK(key_gradient(S1, S1) == S1);
  CHECK(key_gradient(R, R) == R);
  CHECK_THROWS_WITH(key_gradient(V, S0), Contains("'kv' is S(0)"));
  CHECK_THROWS_WITH(key_gradient(V, P), Contains("'kv' is P") && Contains("not linear"));
}

TEST_CASE("merging takes whole results") {
  ContextMeta m;
  const Tensor out = m.tensor("out", {4, 4}, V), lse = m.tensor("lse", {1, 1, 4}, V);
  merge_attention(*m.s, out, lse, m.tensor("part", {4, 4}, V), m.tensor("part lse", {1, 1, 4}, V));
  CHECK(of(out) == V);
  CHECK_THROWS_WITH(
      merge_attention(*m.s, out, lse, m.tensor("owed", {4, 4}, P), m.tensor("part lse", {1, 1, 4}, V)),
      Contains("'owed' is P; merge_attention is not linear in it"));
}

TEST_CASE("the rest of a matrix must lie as what was written first") {
  ContextMeta m;
  const Tensor dqkv = m.tensor("dqkv", {4, 12});
  copy_rectangles(*m.s, dqkv, m.tensor("dq", {4, 4}, V), {{4, 4, 0, 0, 0, 0}});
  CHECK(of(dqkv) == V);
  copy_rectangles(*m.s, dqkv, m.tensor("dkv", {4, 8}, V), {{4, 8, 0, 0, 0, 4}});
  CHECK_THROWS_WITH(copy_rectangles(*m.s, dqkv, m.tensor("owed", {4, 8}, P), {{4, 8, 0, 0, 0, 4}}),
                    Contains("adds P to 'dqkv' is V"));
  copy_rectangles(*m.s, dqkv, m.tensor("whole", {4, 12}, R), {{4, 12, 0, 0, 0, 0}});  // a new matrix
  CHECK(of(dqkv) == R);
}

TEST_CASE("a claim about a tensor must fit what it is") {
  ContextMeta m;
  const Tensor t = m.tensor("heads", {4, 4}, V);
  place_as(*m.s, "sequence to heads", Axis::context, t, V, S1);
  CHECK(of(t) == S1);
  CHECK_THROWS_WITH(
      place_as(*m.s, "sequence to heads", Axis::context, t, V, S1),
      Contains("sequence to heads in layers.0.attention, axis context: takes V but 'heads' is S(1)"));
  place_as(*m.s, "sequence to heads", Axis::data, t, V, S1);  // an axis of one
}
