// The placement rules: good and bad compositions, with the exact text of each refusal.
#include <catch2/catch.hpp>

#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/matmul/matmul.h"
#include "kernels/meta/meta_memory.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/optimizer/adamw.h"
#include "parallel/comm/communicator.h"
#include "tests/kernels/meta/placements.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// A mesh of 4 ranks along data, the layer "layers.3.mlp".
struct DataMeta {
  MetaTrace trace;
  std::unique_ptr<Stream> s;
  MetaMemory memory{trace};
  DataMeta() {
    trace.set_axis_size(Axis::data, 4);
    s = make_meta_stream("compute", trace);
    trace.set_layer("layers.3.mlp");
  }
  Tensor tensor(const char* name, Placement p, Shape shape = {4, 4}, DType type = DType::f32) {
    Tensor t = memory.allocate(MemoryKind::activations, name, type, shape);
    t.record->place[Axis::data] = p;
    t.record->written = true;
    return t;
  }
};
Placement on_data(const Tensor& t) { return t.record->place[Axis::data]; }

struct RuleRow {
  Rule rule;
  Placement a, b;
  const char*
      gives;  ///< the placement, or the refusal after "placement error: op in layers.3.mlp, axis data: "
};

}  // namespace

TEST_CASE("element-wise, linear and summing ops over every pair of placements") {
  const RuleRow rows[] = {
      {Rule::elementwise, R, R, "R"},
      {Rule::elementwise, V, R, "V"},
      {Rule::elementwise, R, V, "V"},
      {Rule::elementwise, V, V, "V"},
      {Rule::elementwise, S0, R, "S(0)"},
      {Rule::elementwise, S1, S1, "S(1)"},
      {Rule::elementwise, S0, S1, "'a' is S(0) but 'b' is S(1)\n  fix: bring both to one placement"},
      {Rule::elementwise, S0, V, "'a' is S(0) but 'b' is V\n  fix: bring both to one placement"},
      {Rule::elementwise, P, R,
       "'a' is P; op is not linear in it\n  fix: all-reduce or reduce-scatter 'a' over data before"},
      {Rule::elementwise, R, P,
       "'b' is P; op is not linear in it\n  fix: all-reduce or reduce-scatter 'b' over data before"},
      {Rule::elementwise, P, P,
       "'a' is P; op is not linear in it\n  fix: all-reduce or reduce-scatter 'a' over data before"},
      {Rule::linear, R, R, "R"},
      {Rule::linear, V, R, "V"},
      {Rule::linear, P, P, "P"},
      {Rule::linear, P, R,
       "'a' is P but 'b' is R: the sum counts it once a rank\n  fix: reduce 'a' over data first"},
      {Rule::linear, R, P,
       "'b' is P but 'a' is R: the sum counts it once a rank\n  fix: reduce 'b' over data first"},
      {Rule::linear, P, V, "'a' is P but 'b' is V\n  fix: bring both to one placement"},
      {Rule::sum_rows, R, R, "R"},
      {Rule::sum_rows, V, R, "P"},
      {Rule::sum_rows, S0, R, "P"},
      {Rule::sum_rows, S1, R, "S(0)"},
      {Rule::sum_columns, R, R, "R"},
      {Rule::sum_columns, S1, R, "P"},
      {Rule::sum_columns, S0, R, "S(0)"},
      {Rule::sum_columns, V, R, "V"},
      {Rule::sum_to_rows, S0, R, "P"},
      {Rule::sum_to_rows, V, V, "P"},
      {Rule::sum_to_rows, S1, R, "S(1)"},
      {Rule::sum_rows, P, R,
       "'a' is P; op is not linear in it\n  fix: all-reduce or reduce-scatter 'a' over data before"},
  };
  for (const RuleRow& row : rows) {
    DataMeta m;
    const Tensor a = m.tensor("a", row.a), b = m.tensor("b", row.b), out = m.tensor("out", R);
    std::string got;
    try {
      place(*m.s, "op", row.rule, {out}, {a, b});
      got = to_string(on_data(out));
    } catch (const Error& e) {
      const std::string head = "placement error: op in layers.3.mlp, axis data: ";
      got = e.what();
      REQUIRE(got.rfind(head, 0) == 0);
      got = got.substr(head.size());
    }
    INFO(to_string(row.a) << " with " << to_string(row.b));
    CHECK(got == row.gives);
  }
}

TEST_CASE("an axis of size one is not checked") {
  DataMeta m;
  m.trace.set_axis_size(Axis::data, 1);
  const Tensor a = m.tensor("a", P), out = m.tensor("out", R);
  CHECK_NOTHROW(place(*m.s, "op", Rule::elementwise, {out}, {a}));
}

TEST_CASE("products over every pair of placements") {
  struct Product {
    Placement a;
    bool trans_a;
    Placement b;
    bool trans_b;
    const char* gives;
  };
  const Product products[] = {
      {R, false, R, false, "R"},
      {V, false, R, true, "V"},  // activations by a replicated weight
      {V, true, V, false, "P"},  // dW = dy^T x: contracted over the ranks' own rows
      {V, false, V, true, nullptr},
      {S1, false, S0, false, "P"},  // row-parallel: contraction sharded on
                                    // both sides
      {S0, false, R, false, "S(0)"},
      {R, false, S1, false, "S(1)"},  // column-parallel
      {R, false, S0, true, "S(1)"},   // the same with the weight stored (out, in)
      {S0, true, S0, false, "P"},
      {S1, false, R, false, nullptr},
      {S1, false, S1, false, nullptr},
      {P, false, R, false, "P"},
      {R, false, P, false, "P"},
      {P, false, V, false, nullptr},
      {P, false, P, false, nullptr},
      {V, false, S0, false, nullptr},
  };
  for (const Product& row : products) {
    DataMeta m;
    const Tensor a = m.tensor("a", row.a), b = m.tensor("b", row.b), out = m.tensor("out", R);
    INFO(to_string(row.a) << (row.trans_a ? "^T" : "") << " times " << to_string(row.b)
                          << (row.trans_b ? "^T" : ""));
    if (row.gives) {
      place_matmul(*m.s, out, a, row.trans_a, b, row.trans_b, false);
      CHECK(to_string(on_data(out)) == row.gives);
    } else {
      CHECK_THROWS_WITH(place_matmul(*m.s, out, a, row.trans_a, b, row.trans_b, false),
                        Catch::StartsWith("placement error: matmul in layers.3.mlp, axis data: 'a' is ") &&
                            Catch::Contains("\n  fix: "));
    }
  }
}

TEST_CASE("refusals of products, word by word") {
  DataMeta m;
  const Tensor out = m.tensor("out", R);
  CHECK_THROWS_WITH(
      place_matmul(*m.s, out, m.tensor("x", S1), false, m.tensor("w", R), false, false),
      "placement error: matmul in layers.3.mlp, axis data: 'x' is S(1) but 'w' is R\n  fix: shard both along "
      "the contraction, or one of them along an outer dim and replicate the other");
  CHECK_THROWS_WITH(place_matmul(*m.s, out, m.tensor("x", P), false, m.tensor("w", V), false, false),
                    "placement error: matmul in layers.3.mlp, axis data: 'x' is P and 'w' is V: a product of "
                    "P is linear only with R\n  fix: reduce the partial one first");
}

TEST_CASE("adding to a tensor of another placement is refused, to a zeroed one is not") {
  DataMeta m;
  const Tensor x = m.tensor("dy", V), grad = m.tensor("gradients", R);
  CHECK_THROWS_WITH(place(*m.s, "sum_rows", Rule::sum_rows, {grad}, {x}, true),
                    "placement error: sum_rows in layers.3.mlp, axis data: adds P to 'gradients' is R\n  "
                    "fix: reduce the partial one first, or accumulate before the reduction");
  place_zero(grad);
  CHECK_NOTHROW(place(*m.s, "sum_rows", Rule::sum_rows, {grad}, {x}, true));
  CHECK(on_data(grad) == P);
  CHECK_NOTHROW(place(*m.s, "sum_rows", Rule::sum_rows, {grad}, {x}, true));
}

TEST_CASE("collectives take one placement and give another") {
  DataMeta m;
  auto group = make_recording_group(1, 4, "data", Axis::data);
  const auto refusal = [&](auto&& f) {
    try {
      f();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  Tensor p = m.tensor("p", P), part = m.tensor("part", R, {1, 4});
  group->all_reduce(*m.s, p);
  CHECK(on_data(p) == R);
  CHECK(refusal([&] { group->all_reduce(*m.s, p); }) ==
        "placement error: all_reduce in layers.3.mlp, axis data: takes P but 'p' is R: it was reduced "
        "before, by all_reduce in layers.3.mlp\n  fix: remove one of the two reductions");
  p.record->place[Axis::data] = P;
  group->reduce_scatter(*m.s, part, p);
  CHECK(on_data(part) == S0);
  group->all_gather(*m.s, p, part);
  CHECK(on_data(p) == R);
  CHECK(refusal([&] { group->all_gather(*m.s, p, p.narrow(0, 1)); }) ==
        "placement error: all_gather in layers.3.mlp, axis data: takes S(0) but 'p' is R\n  fix: check the "
        "group of this collective and of the one before");
  CHECK(refusal([&] { group->reduce_scatter(*m.s, part, m.tensor("v", V)); }) ==
        "placement error: reduce_scatter in layers.3.mlp, axis data: takes P but 'v' is V\n  fix: check the "
        "group of this collective and of the one before");
  Tensor largest = m.tensor("largest", V);
  group->all_reduce(*m.s, largest, ReduceOp::max);
  CHECK(on_data(largest) == R);
  Tensor own = m.tensor("own", S1), block = m.tensor("block", R);
  place_spent(*m.s, block);
  group->broadcast(*m.s, block, own, 0);
  CHECK(on_data(block) == R);
  CHECK(on_data(own) == S1);
  CHECK(refusal([&] { group->broadcast(*m.s, block, own, 0); }) ==
        "placement error: broadcast in layers.3.mlp, axis data: writes 'block' again, which broadcast in "
        "layers.3.mlp wrote and nothing has read\n  fix: remove one of the two");
  CHECK(refusal([&] { group->broadcast(*m.s, own, m.tensor("r", R), 0); }) ==
        "placement error: broadcast in layers.3.mlp, axis data: takes what each rank has of its own but 'r' "
        "is R\n  fix: check the group of this broadcast");
  Tensor summand = m.tensor("summand", P);
  group->reduce(*m.s, summand, 2);
  CHECK(on_data(summand) == V);
  CHECK(refusal([&] { group->reduce(*m.s, summand, 2); }) ==
        "placement error: reduce in layers.3.mlp, axis data: takes P but 'summand' is V\n  fix: check the "
        "group of this collective and of the one before");
  auto half = make_recording_group(0, 2, "half", Axis::data);
  CHECK(refusal([&] { half->all_reduce(*m.s, m.tensor("q", P)); }) ==
        "placement error: all_reduce in layers.3.mlp, axis data: group \"half\" has 2 ranks but the axis has "
        "4\n  fix: use the mesh's group of the axis");
}

TEST_CASE("the update wants a gradient that lies as its parameter's shard") {
  const auto update = [](Placement grad, Placement shard) {
    DataMeta m;
    Placements want;
    want[Axis::data] = shard;
    place_update(*m.s, "adamw", m.tensor("w", R), m.tensor("g", grad), want);
  };
  CHECK_NOTHROW(update(R, R));
  CHECK_NOTHROW(update(S0, S0));
  CHECK_THROWS_WITH(update(P, R),
                    "placement error: adamw in layers.3.mlp, axis data: parameter 'w' is stored as R but its "
                    "gradient 'g' is P\n  fix: all-reduce the gradient over data");
  CHECK_THROWS_WITH(update(P, S0),
                    "placement error: adamw in layers.3.mlp, axis data: parameter 'w' is stored as S(0) but "
                    "its gradient 'g' is P\n  fix: reduce-scatter the gradient over data");
  CHECK_THROWS_WITH(update(R, S0),
                    "placement error: adamw in layers.3.mlp, axis data: parameter 'w' is stored as S(0) but "
                    "its gradient 'g' is R\n  fix: cut the gradient as the parameter is cut");
}

TEST_CASE("what leaves the step must be whole") {
  DataMeta m;
  CHECK_NOTHROW(place_require(*m.s, "reading the loss", m.tensor("sums", R), R));
  CHECK_THROWS_WITH(place_require(*m.s, "reading the loss", m.tensor("sums", P), R),
                    "placement error: reading the loss in layers.3.mlp, axis data: needs R but 'sums' is P\n "
                    " fix: all-reduce 'sums' over data");
  CHECK_THROWS_WITH(place_require(*m.s, "end of the update", m.tensor("w", S0), R),
                    "placement error: end of the update in layers.3.mlp, axis data: needs R but 'w' is "
                    "S(0)\n  fix: all-gather 'w' over data");
}

TEST_CASE("a forgotten reduction is traced to the op that made the tensor partial") {
  DataMeta m;
  const Tensor x = m.tensor("x", V), dy = m.tensor("dy", V), dw = m.tensor("dw", R), y = m.tensor("y", R);
  MatmulArgs outer;
  outer.trans_a = true;
  m.trace.set_layer("layers.2.attention");
  matmul(*m.s, dw, dy, x, outer);
  m.trace.set_layer("optimizer");
  CHECK_THROWS_WITH(gelu_forward(*m.s, y, dw),
                    "placement error: gelu_forward in optimizer, axis data: 'dw' is P (made partial by "
                    "matmul in layers.2.attention); gelu_forward is not linear in it\n  fix: all-reduce or "
                    "reduce-scatter 'dw' over data before");
}

TEST_CASE("ops record their cost on meta and touch no memory") {
  DataMeta m;
  const Tensor a = m.tensor("a", V, {8, 16}), w = m.tensor("w", R, {32, 16}),
               out = m.tensor("out", R, {8, 32});
  MatmulArgs args;
  args.trans_b = true;
  matmul(*m.s, out, a, w, args);
  REQUIRE(m.trace.entries().size() == 1);
  CHECK(m.trace.entries()[0].name == "matmul_nt");
  CHECK(m.trace.entries()[0].flops == 2.0 * 8 * 32 * 16);
  CHECK(m.trace.entries()[0].bytes == 4.0 * (8 * 16 + 32 * 16 + 8 * 32));
  CHECK(on_data(out) == V);
  CHECK(out.data == nullptr);
}
