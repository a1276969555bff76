// Every optimizer against a double-precision reference of whole tensors over 20 steps, whatever cuts the
// tensors: buckets over ranks under each stage of ZeRO, one level and two, and the tensor axis.
#include <catch2/catch.hpp>
#include <cmath>
#include <mutex>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/meta_memory.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/rng.h"
#include "parallel/zero/parameter_store.h"
#include "tests/parallel/optimizer_values.h"
#include "tests/support/optimizer_reference.h"
#include "tests/support/thread_ranks.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

struct Cut {
  int data = 1, zero = 0, shard = 0, tensor = 1;
};

Mesh mesh_of(const Cut& c, int rank) {
  Mesh m;
  m.degree = {c.data, 1, 1, 1, 1, 1, 1, 1, 1};
  m.rank = rank;
  m.cut_tensor(TensorMode::one_d, c.tensor, 1);
  // Ranks are threads, where Catch's assertions are not for.
  if (c.shard) LT_CHECK(m.split_levels(c.shard).empty(), "levels of {}", c.shard);
  return m;
}

/// A unit of two matrices, one cut by columns, a vector of each kind, an embedding.
void declare(ParameterStore& store, const Groups& g) {
  const auto matrix = [&](const char* name, int64_t rows, int64_t cols, int dim, bool embedding = false) {
    ParameterSpec s{name, {rows, cols}, Init::normal, 0.3, true};
    s.embedding = embedding;
    return cut_over(Axis::tensor, s, dim, g.tensor.rank(), g.tensor.size());
  };
  store.begin_segment(0);
  store.add({matrix("embed", 37, 16, 0, true)});
  store.begin_segment(1);
  store.add({matrix("q", 16, 16, 0), matrix("k", 8, 16, 0)});
  store.add({ParameterSpec{"norm", {16}, Init::ones, 0, false}});
  store.add({matrix("out", 12, 32, 1)});
  store.add({cut_over(Axis::tensor, ParameterSpec{"bias", {10}, Init::normal, 0.3, false}, 0, g.tensor.rank(),
                      g.tensor.size())});
}

double full_gradient(const std::string& name, int64_t element, int step) {
  const uint64_t at = hash_name(name) + static_cast<uint64_t>(element) * 64 + static_cast<uint64_t>(step);
  return normal_value(11, 3, at) * std::pow(10.0, static_cast<double>(element % 3) - 1);
}

OptimizerStep optimizer_step(int step) {
  OptimizerStep a;
  a.lr = 0.02 / step;
  a.weight_decay = 0.1;
  a.step = step;
  return a;
}

/// NamedValues after all steps, put together from what the ranks own. `spoil`: the gradient of one element
/// differs.
NamedValues train_cut(const Cut& cut, const OptimizerSettings& optimizer, DType type, bool spoil = false) {
  const int ranks = cut.data * cut.tensor;
  ThreadGroups made;
  std::mutex mutex;
  NamedValues result;
  const auto body = [&](int rank) {
    MetaTrace trace;
    GroupSet meta_groups = make_meta_groups(mesh_of(cut, rank), trace);
    const auto meta_stream = make_meta_stream("compute", trace);
    MetaMemory meta_memory(trace);
    GroupSet groups = made.on(mesh_of(cut, rank));
    const auto stream = make_inline_stream("compute");
    ParameterStore::Layout layout;
    layout.precision = {type, type, type, type};
    layout.sharding = ShardingPolicy::zero(cut.zero);
    layout.bucket_elements = 500;
    layout.optimizer = optimizer;
    const auto step = [&](ParameterStore& store, Stream& s, int n, double wrong) {
      store.begin_step(1, 1);
      store.gather_weights();
      for (int segment : {1, 0}) {
        store.gather_segment(segment);
        for (int id = store.count() - 1; id >= 0; --id) {
          if ((store.spec(id).name == "embed") != (segment == 0) || store.spec(id).name == "k") continue;
          const int count = store.spec(id).name == "q" ? 2 : 1;
          store.accumulate(id, count);
          for (int i = id; i < id + count; ++i) {
            const Tensor g = store.grad(id, count);
            const Tensor mine = g.flat(i == id ? 0 : store.spec(id).shape.elements(), store.spec(i).shape);
            if (s.meta()) {
              fill_value(s, mine, 0);
              place_set(s, mine, kGradientAxes, Placement::P());
              for (Axis a : kTensorAxes) place_set(s, mine, a, store.spec(i).place[a]);
              mine.record->written = true, mine.record->zero = false;
              continue;
            }
            fill_zero(s, mine);
            Runs runs(store.spec(i).slice);
            for (Run r = runs.next(); r.count > 0; r = runs.next())
              for (int64_t e = 0; e < r.count; ++e) {
                // Each data-parallel rank has a part of it.
                const double v = full_gradient(store.spec(i).name, r.global + e, n) / cut.data +
                                 (rank == 0 && i == 0 && r.global + e == 3 ? wrong : 0);
                if (type == DType::f64)
                  mine.ptr<double>()[r.local + e] = v;
                else
                  mine.ptr<float>()[r.local + e] = static_cast<float>(v);
              }
          }
          store.grad_ready(id);
        }
      }
      store.finish_gradients();
      store.update(optimizer_step(n));
      store.complete_weights();
    };
    ParameterStore planned, store;
    declare(planned, meta_groups.groups());
    planned.allocate(*meta_stream, meta_memory, meta_groups.groups(), layout);
    step(planned, *meta_stream, 1, 0);
    CpuArena arena(meta_memory.peak().arena_bytes);
    declare(store, groups.groups());
    store.allocate(*stream, arena, groups.groups(), layout);
    store.initialize(5);
    for (int n = 1; n <= kSteps; ++n) step(store, *stream, n, spoil ? 1.0 : 0);
    groups.synchronize();
    LT_CHECK(arena.peak().arena_bytes == meta_memory.peak().arena_bytes, "{} bytes used, {} planned",
             arena.peak().arena_bytes, meta_memory.peak().arena_bytes);
    LT_CHECK(groups.groups().wire_bytes() == kSteps * meta_groups.groups().wire_bytes(), "{} bytes sent",
             groups.groups().wire_bytes());
    std::lock_guard lock(mutex);
    for (const OwnedPiece& p : store.owned_pieces()) {
      std::vector<double>& whole = result[store.spec(p.id).name];
      whole.resize(p.slice.global.elements());
      Runs runs(p.slice);
      for (Run r = runs.next(); r.count > 0; r = runs.next())
        for (int64_t e = 0; e < r.count; ++e)
          whole[r.global + e] =
              type == DType::f64 ? p.master.ptr<double>()[r.local + e] : p.master.ptr<float>()[r.local + e];
    }
  };
  on_threads(ranks, body);
  return result;
}

NamedValues optimizer_reference(const OptimizerSettings& optimizer) {
  const GroupSet alone;
  ParameterStore store;
  declare(store, alone.groups());
  NamedValues out;
  for (int id = 0; id < store.count(); ++id) {
    const ParameterSpec& s = store.spec(id);
    const ParameterRule rule = rule_of(optimizer, {s.name, s.shape.rank == 2, s.embedding, s.decay});
    ReferenceTensor t;
    t.matrix = s.shape.rank == 2;
    t.rows = t.matrix ? s.shape[0] : 1;
    t.cols = s.shape[-1];
    for (int64_t i = 0; i < s.shape.elements(); ++i)
      t.w.push_back(
          s.init == Init::ones ? 1.0 : 0.3 * normal_value(5, hash_name(s.name), static_cast<uint64_t>(i)));
    for (int n = 1; n <= kSteps; ++n) {
      std::vector<double> g;
      for (int64_t i = 0; i < s.shape.elements(); ++i) g.push_back(full_gradient(s.name, i, n));
      reference_step(t, g, rule, optimizer, optimizer_step(n));
    }
    out[s.name] = t.w;
  }
  return out;
}

const std::vector<Cut>& cuts() {
  static const std::vector<Cut> all{{2, 0},    {2, 1},    {2, 2},       {2, 3},       {3, 1},      {4, 0, 2},
                                    {4, 1, 2}, {4, 3, 2}, {1, 0, 0, 2}, {2, 1, 0, 2}, {2, 3, 0, 2}};
  return all;
}

}  // namespace

TEST_CASE("every optimizer equals its double reference over 20 steps, however tensors are cut") {
  int compared = 0;
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    // These have tests of their own: moments of 8 bits below, gradients of each rank, passes at other
    // weights.
    if (optimizer_of(rule).coded_states() || is_onebit(rule) || rule == UpdateRule::sophia) continue;
    ++compared;
    OptimizerSettings o;
    o.rule = rule;
    o.sgd_nesterov = true;
    const NamedValues want = optimizer_reference(o), one = train_cut({}, o, DType::f64);
    INFO(update_rule_name(rule));
    CHECK(worst(want, one) < 1e-12);
    NamedValues level;  // one level and no tensor axis: the stages agree to the bit
    for (const Cut& c : cuts()) {
      INFO("data " << c.data << " ZeRO " << c.zero << " inside " << c.shard << " tensor " << c.tensor);
      const NamedValues got = train_cut(c, o, DType::f64);
      CHECK(worst(want, got) < 1e-12);
      if (c.data != 2 || c.shard || c.tensor > 1) continue;
      if (level.empty()) level = got;
      CHECK(level == got);
    }
    CHECK(worst(want, train_cut({2, 1, 0, 1}, o, DType::f32)) < 2e-3);
    CHECK(worst(want, train_cut({2, 1}, o, DType::f64, true)) > 1e-9);  // negative control: another gradient
  }
  CHECK(compared == kUpdateRules - 4);
}

TEST_CASE("8-bit AdamW: quantised as its reference, the same bits under every stage of ZeRO") {
  OptimizerSettings o, whole;
  o.rule = UpdateRule::adamw8bit;
  const NamedValues one = train_cut({}, o, DType::f32), exact = optimizer_reference(whole);
  const double apart = worst(one, exact);
  CHECK(apart > 1e-6);  // it is not plain AdamW
  CHECK(apart < 0.05);
  NamedValues level;
  for (const Cut& c : {Cut{2, 0}, Cut{2, 1}, Cut{2, 2}, Cut{2, 3}}) {
    const NamedValues got = train_cut(c, o, DType::f32);
    if (level.empty()) level = got;
    CHECK(level == got);
  }
  CHECK(worst(one, level) < 0.02);  // blocks are of the bucket, so only sums were reassociated
}

TEST_CASE("groups of parameters have their own optimizer, learning rate and decay") {
  OptimizerSettings o;
  o.groups = {{"out", UpdateRule::lion, 0.25, 0.0}, {"?", UpdateRule::lamb, 1.0, {}}, {"bias", {}, 2.0, 0.3}};
  const NamedValues want = optimizer_reference(o);
  for (const Cut& c : {Cut{}, Cut{2, 1}, Cut{2, 3, 0, 2}})
    CHECK(worst(want, train_cut(c, o, DType::f64)) < 1e-12);
  CHECK(worst(want, optimizer_reference({})) > 1e-3);
  o.groups = {{"q", UpdateRule::lion, 1.0, {}}};  // and k, which is one matrix with it, has not
  CHECK_THROWS_WITH(train_cut({}, o, DType::f64), Catch::Contains("parts of one matrix"));
}

TEST_CASE("name patterns") {
  CHECK(name_matches("*.bias", "model.layers.0.bias"));
  CHECK(name_matches("model.layers.?.mlp.*", "model.layers.3.mlp.up_proj.weight"));
  CHECK_FALSE(name_matches("*.bias", "model.bias.weight"));
  CHECK(name_matches("a[0-9]*", "a[0-9].bias"));
  CHECK_FALSE(name_matches("a[0-9]*", "a5.bias"));
  CHECK(name_matches("a\\*", "a\\b"));
  CHECK_FALSE(name_matches("q", "qq"));
  CHECK(name_matches("**", ""));
}
