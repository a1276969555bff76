// Tensor parallelism in two, two and a half and three dimensions against one process.
#include "kernels/meta/meta_memory.h"
#include "kernels/meta/placement_rules.h"
#include "models/layers/linear.h"
#include "tests/parity/mutant_group.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct Mode {
  const char* name;
  int tensor, depth;
};
constexpr Mode kGrid4{"2d", 4, 1}, kGrid9{"2d", 9, 1}, kGrids8{"2.5d", 8, 2}, kCube8{"3d", 8, 1};

std::string describe(const TinyOptions& o) {
  return fmt::format("{}{}, {} of {} ranks, depth {}, data {}, ZeRO {}, micro-batch {}", o.architecture,
                     o.tied ? " tied" : "", o.tensor_mode, o.tensor, o.tensor_depth, o.ranks, o.zero_stage,
                     o.micro_batch);
}

TinyOptions spread(TinyOptions o, const Mode& m) {
  o.tensor_mode = m.name;
  o.tensor = m.tensor;
  o.tensor_depth = m.depth;
  return o;
}

/// 61 tokens do not divide over 2, 3 or 4 ranks: the vocabulary is padded.
TinyOptions small(const char* architecture, bool tied) {
  TinyOptions o;
  o.architecture = architecture;
  o.tied = tied;
  o.untied = !tied;
  o.micro_batch = 8;
  o.seq = 16;
  o.padded_targets = true;
  o.dropout = 0.1;
  return o;
}

void check(const TinyResult& base, const TinyOptions& many) {
  INFO(describe(many));
  const TinyResult result = train_tiny(many);
  require_parity(base, result, 1e-12);
  CHECK(result.plan_bytes == result.used_bytes);
  CHECK(result.plan_wire == result.used_wire);
}

/// One linear layer forward and backward on meta, on the last rank of the mode's ranks.
struct LinearRun {
  MetaTrace trace;
  GroupSet groups;
  std::unique_ptr<Stream> compute;
  MetaMemory memory;
  ParameterStore store;
  Linear linear;
  int64_t forward = 0, backward = 0;  ///< elements that the rank receives, which is as many as it sends

  LinearRun(const Mode& m, int64_t rows, int64_t in, int64_t out)
      : groups(make_meta_groups(mesh_of(m), trace)),
        compute(make_meta_stream("compute", trace)),
        memory(trace) {
    const Groups& g = groups.groups();
    linear.declare(store, g, false, {{"w", out}}, in, false, 0.02, LinearSharding::column);
    store.allocate(*compute, memory, g, {precision_policy("fp64"), {}, 1 << 20, true});
    store.begin_step(1, 1);
    Step step{*compute, memory, store, g, DType::f64};
    const int64_t mine = rows / g.mesh.sequence_parts();
    const int q = g.column.size();
    const auto activation = [&](const char* name, int64_t cols, Axis row, Axis column) {
      const Tensor t = step.activation(name, {mine, cols / q});
      place_set(*compute, t, Axis::depth, Placement::V());
      place_set(*compute, t, row, Placement::S(0));
      place_set(*compute, t, column, Placement::S(1));
      return t;
    };
    const bool turns = g.mesh.tensor_mode == TensorMode::three_d;
    const Axis row = turns ? Axis::column : Axis::row, column = turns ? Axis::row : Axis::column;
    const Tensor x = activation("x", in, Axis::row, Axis::column), dx = step.activation("dx", x.shape);
    const Tensor y = step.activation("y", {mine, out / q}), dy = activation("dy", out, row, column);
    linear.forward(step, y, x);
    forward = g.wire_bytes() / 8;
    linear.backward(step, dx, dy, x);
    store.finish_gradients();
    backward = g.wire_bytes() / 8 - forward;
    CHECK(y.record->place == dy.record->place);
    CHECK(dx.record->place == x.record->place);
  }
  static Mesh mesh_of(const Mode& m) {
    Mesh mesh;
    mesh.cut_tensor(tensor_mode(m.name), m.tensor, m.depth);
    mesh.rank = m.tensor - 1;
    return mesh;
  }
};

}  // namespace

TEST_CASE("a linear layer receives the elements that the papers count", "[tensor_modes]") {
  constexpr int64_t m = 72, k = 144, n = 288;
  for (const Mode& mode : {kGrid4, kGrid9, kGrids8, Mode{"2.5d", 12, 3}, Mode{"2.5d", 18, 2}}) {
    const int64_t d = mode.depth, q = static_cast<int64_t>(std::lround(std::sqrt(mode.tensor / d)));
    INFO(mode.name << " on " << mode.tensor << " of depth " << d);
    const LinearRun run(mode, m, k, n);
    const int64_t forward = (q - 1) * (m * k / d + k * n) / (q * q);
    CHECK(run.forward == forward);
    // dX and dW as much as Y each, and the sum over depth.
    CHECK(run.backward == 2 * forward + 2 * (d - 1) * (k * n / (q * q)) / d);
  }
  for (const Mode& mode : {kCube8, Mode{"3d", 27, 1}}) {
    const int64_t l = std::lround(std::cbrt(mode.tensor));
    INFO(mode.name << " on " << mode.tensor);
    const LinearRun run(mode, l == 3 ? m : 64, l == 3 ? 108 : 128, l == 3 ? 216 : 256);
    const int64_t M = l == 3 ? m : 64, K = l == 3 ? 108 : 128, N = l == 3 ? 216 : 256;
    const int64_t forward = (l - 1) * (M * K + K * N + M * N) / (l * l * l);
    CHECK(run.forward == forward);
    // Twice the bytes, and the operands once more, which a forward does not keep gathered.
    CHECK(run.backward == forward + (l - 1) * (M * K + K * N) / (l * l * l));
  }
}

TEST_CASE("2d, 2.5d and 3d tensor parallelism equal one process to 1e-12 in fp64", "[tensor_modes]") {
  const char* architecture = GENERATE("llama", "gpt2");
  const bool tied = GENERATE(false, true);
  const TinyOptions one = small(architecture, tied);
  const TinyResult base = train_tiny(one);
  for (const Mode& m : {kGrid4, kGrids8, kCube8, Mode{"2.5d", 2, 2}}) {
    TinyOptions many = spread(one, m);
    check(base, many);
    many.micro_batch = 4;  // accumulates
    check(base, many);
    if (m.tensor > 4) continue;
    many.ranks = 2;
    many.zero_stage = tied ? 1 : 0;
    check(base, many);
  }
}

TEST_CASE("norms after sublayers in 2d, 2.5d and 3d equal one process to 1e-12 in fp64", "[tensor_modes]") {
  TinyOptions one = small("llama", false);
  Family f = family_of("llama");
  f.traits.norm_placement = NormPlacement::after;
  one.family = &f;
  const TinyResult base = train_tiny(one);
  for (const Mode& m : {kGrid4, kGrids8, kCube8}) check(base, spread(one, m));
}

TEST_CASE("a 3 by 3 grid equals one process to 1e-12 in fp64", "[tensor_modes]") {
  TinyOptions one = small(GENERATE("llama", "gpt2"), GENERATE(false, true));
  one.hidden = 36;
  one.intermediate = one.architecture == "gpt2" ? 144 : 45;
  one.heads = 6;
  one.kv_heads = one.architecture == "gpt2" ? 6 : 3;
  one.micro_batch = one.global_batch = 6;
  const TinyResult base = train_tiny(one);
  TinyOptions many = spread(one, kGrid9);
  check(base, many);
  many.micro_batch = 3;
  check(base, many);
  many.interleaved = true;  // a turn may not end at another place on another row
  check(base, many);
}

TEST_CASE("micro-batches by turns on grids of four rows and on two grids of three equal one process to 1e-12",
          "[tensor_modes]") {
  TinyOptions one = small("llama", true);
  one.hidden = one.intermediate = 48;
  one.heads = one.kv_heads = 12;
  one.layers = 1;
  one.micro_batch = one.global_batch = 24;
  one.steps = 2;
  one.seq = 8;
  const TinyResult base = train_tiny(one);
  for (const Mode& m : {Mode{"2d", 16, 1}, Mode{"2.5d", 18, 2}}) {
    TinyOptions many = spread(one, m);
    many.micro_batch = 12;
    many.interleaved = true;
    check(base, many);
  }
}

TEST_CASE("tensor parallelism in 2D and 3D with ZeRO, pipelines, packed documents, and in fp32 and bf16",
          "[tensor_modes]") {
  const Mode m = GENERATE(kGrid4, kGrids8, kCube8);
  TinyOptions one = small("llama", true);
  one.packed = true;
  one.layers = 4;
  one.micro_batch = 4;
  one.global_batch = 16;
  const TinyResult base = train_tiny(one);
  TinyOptions many = spread(one, m);
  if (m.tensor == 4)
    for (int zero : {2, 3}) {
      many.ranks = 2;
      many.zero_stage = zero;
      check(base, many);
    }
  many = spread(one, m);
  many.pipeline = 2;
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    many.schedule = schedule;
    check(base, many);
  }
  many = spread(one, m);
  one.precision = many.precision = "fp32";
  require_parity(train_tiny(one), train_tiny(many), 2e-5);
  one.precision = many.precision = "bf16";
  const TinyResult a = train_tiny(one), b = train_tiny(many);
  for (size_t i = 0; i < a.losses.size(); ++i) CHECK(b.losses[i] == Approx(a.losses[i]).epsilon(0.01));
  CHECK(b.plan_bytes == b.used_bytes);
}

TEST_CASE("negative control: every collective of the first step that is left out is seen", "[tensor_modes]") {
  const Mode m = GENERATE(kGrid4, kCube8);
  TinyOptions one = small("gpt2", true);
  one.layers = 1;
  one.steps = 1;
  one.micro_batch = one.global_batch = 4;
  one.seq = 8;
  const TinyResult base = train_tiny(one);
  const TinyOptions many = spread(one, m);
  const auto differs = [&](const std::string& group, int64_t target) {
    const auto wrap = [&](const GroupRequest& r,
                          std::unique_ptr<Communicator> inner) -> std::unique_ptr<Communicator> {
      if (r.name != group) return inner;
      return std::make_unique<MutantGroup>(std::move(inner), target < 0 ? Mutation::none : Mutation::remove,
                                           target);
    };
    const TinyResult cut = train_tiny(many, wrap);
    return !(std::abs(base.losses[0] - cut.losses[0]) < 1e-9 &&
             std::abs(base.norms[0] - cut.norms[0]) < 1e-9);
  };
  int64_t all = 0, seen = 0;
  for (const std::string group : {"row", "column", "depth", "rows", "turned rows"}) {
    CHECK_FALSE(differs(group, -1));
    int64_t calls = 0;
    {
      MetaJob meta(many, 0, [&](const GroupRequest& r, std::unique_ptr<Communicator> inner) {
        return std::make_unique<MutantGroup>(std::move(inner), Mutation::none, -1);
      });
      meta.program.train_step({}, tiny_adamw(1));
      const Groups& g = meta.groups.groups();
      for (const Group* of : {&g.row, &g.column, &g.depth, &g.rows, &g.turned_rows})
        if (of->communicator().name() == group && of->size() > 1)
          calls = static_cast<const MutantGroup&>(of->communicator()).calls();
    }
    for (int64_t target = 0; target < calls; ++target) {
      INFO(m.name << " call " << target << " of " << calls << " of " << group);
      ++all;
      bool broken = true;
      try {
        broken = differs(group, target);
      } catch (const std::exception&) {  // refused, which is seen too
      }
      seen += broken;
    }
  }
  // A block that is not sent leaves what memory held, which may by chance be the block of another step.
  CHECK(all > 30);
  CHECK(seen >= all - all / 20);
}
