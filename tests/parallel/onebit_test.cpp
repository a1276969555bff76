// 1-bit Adam and 1-bit LAMB, and gradients summed in 8 bits, on ranks whose gradients differ: against a
// reference in double over 20 steps, and by what they send.
#include <catch2/catch.hpp>
#include <cmath>
#include <mutex>
#include <numeric>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/meta_memory.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/tensor/rng.h"
#include "parallel/zero/parameter_store.h"
#include "tests/parallel/optimizer_values.h"
#include "tests/support/thread_ranks.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int kFreeze = 8;
constexpr int64_t kRows = 64, kCols = 48, kNorm = 32;

double rank_gradient(int tensor, int64_t element, int step, int rank) {
  if (tensor == 0 && element == 7) return 0;  // never has any: does not move but by its decay
  const uint64_t at = static_cast<uint64_t>(((element * 64 + step) * 8 + rank) * 2 + tensor);
  return normal_value(11, 3, at) * std::pow(10.0, static_cast<double>(element % 3) - 1) +
         0.3 * normal_value(11, 4, at / 1024);
}

OptimizerStep onebit_step(int step) {
  OptimizerStep a;
  a.lr = 0.01 / step;
  a.weight_decay = 0.1;
  a.step = step;
  a.grad_scale = 0.7;
  return a;
}

struct Outcome {
  NamedValues values;
  std::vector<std::vector<int64_t>> wire;  // indexed by rank and step
  std::vector<NamedValues> whole;          // values of each rank
  std::vector<Values> norms;               // squares by rank and step, summed over ranks by the test
};

Outcome train_compressed(int ranks, const ParameterStore::Layout& of, DType type, bool forget = false) {
  Outcome run;
  run.wire.resize(static_cast<size_t>(ranks)), run.whole.resize(static_cast<size_t>(ranks));
  run.norms.resize(static_cast<size_t>(ranks));
  ThreadGroups made;
  std::mutex mutex;
  const auto body = [&](int rank) {
    Mesh mesh;
    mesh.degree = {ranks, 1, 1, 1, 1, 1, 1, 1, 1};
    mesh.rank = rank;
    ParameterStore::Layout layout = of;
    layout.precision = {type, type, type, type};
    const auto declare = [](ParameterStore& store) {
      store.begin_segment(0);
      store.add({ParameterSpec{"matrix", {kRows, kCols}, Init::normal, 0.3, true}});
      store.add({ParameterSpec{"norm", {kNorm}, Init::ones, 0, false}});
    };
    const auto step = [&](ParameterStore& store, Stream& s, int n) {
      store.begin_step(1, n);
      for (int id : {1, 0}) {
        const GradBuffer to = store.accumulate(id);
        if (s.meta()) {
          fill_value(s, to.tensor, 0);
          place_set(s, to.tensor, kGradientAxes, Placement::P());
        } else {
          for (int64_t i = 0; i < to.tensor.elements(); ++i) {
            const double v = rank_gradient(id, i, n, rank) / ranks;
            type == DType::f64 ? to.tensor.ptr<double>()[i] = v
                               : to.tensor.ptr<float>()[i] = static_cast<float>(v);
          }
        }
        store.grad_ready(id);
      }
      store.finish_gradients();
    };
    std::vector<int64_t> planned;
    MetaTrace trace;
    GroupSet meta_groups = make_meta_groups(mesh, trace);
    const auto meta_stream = make_meta_stream("compute", trace);
    MetaMemory memory(trace);
    {
      ParameterStore store;
      declare(store);
      store.allocate(*meta_stream, memory, meta_groups.groups(), layout);
      for (int n : {kFreeze, kFreeze + 1}) {
        const int64_t before = meta_groups.groups().wire_bytes();
        step(store, *meta_stream, n);
        store.update(onebit_step(n));
        store.complete_weights();
        planned.push_back(meta_groups.groups().wire_bytes() - before);
      }
    }
    GroupSet groups = made.on(mesh);
    const auto stream = make_inline_stream("compute");
    CpuArena arena(memory.peak().arena_bytes);
    ParameterStore store;
    declare(store);
    store.allocate(*stream, arena, groups.groups(), layout);
    store.initialize(5);
    for (int n = 1; n <= kSteps; ++n) {
      const int64_t before = groups.groups().wire_bytes();
      if (forget)  // negative control: what was left over is lost
        for (const RoundingError& e : store.rounding_errors(false)) fill_zero(*stream, e.tensor);
      step(store, *stream, n);
      double squares = 0;
      Tensor sum;
      sum.data = &squares;
      sum.dtype = DType::f64;
      sum.shape = {1};
      store.add_grad_squares(sum);
      stream->synchronize();
      run.norms[static_cast<size_t>(rank)].push_back(squares);
      store.update(onebit_step(n));
      store.complete_weights();
      groups.synchronize();
      run.wire[static_cast<size_t>(rank)].push_back(groups.groups().wire_bytes() - before);
      LT_CHECK(run.wire[static_cast<size_t>(rank)].back() == planned[n > kFreeze],
               "step {} sent {}, planned {}", n, run.wire[static_cast<size_t>(rank)].back(),
               planned[n > kFreeze]);
    }
    LT_CHECK(arena.peak().arena_bytes == memory.peak().arena_bytes, "{} bytes used, {} planned",
             arena.peak().arena_bytes, memory.peak().arena_bytes);
    std::lock_guard lock(mutex);
    for (int id = 0; id < store.count(); ++id) {
      const Tensor t = store.value(id);
      Values& all = run.whole[static_cast<size_t>(rank)][store.spec(id).name];
      for (int64_t i = 0; i < t.elements(); ++i)
        all.push_back(type == DType::f64 ? t.ptr<double>()[i] : t.ptr<float>()[i]);
    }
  };
  on_threads(ranks, body);
  run.values = run.whole[0];
  return run;
}

// ---- the reference: the two tensors as they lie in their bucket ----

/// Blocks of n elements with a scale each; what is left over stays in `error`.
Values rounded(const Values& c, Values& error, bool signs, const Values& where) {
  const size_t block = signs ? 2048 : 256;
  Values out(c.size());
  for (size_t b = 0; b < c.size(); b += block) {
    double squares = 0, most = 0;
    int count = 0;
    for (size_t i = b; i < b + block; ++i) {
      if (where[i] == 0) continue;
      ++count;
      squares += c[i] * c[i];
      most = std::max(most, std::abs(c[i]));
    }
    const double scale = signs ? std::sqrt(squares / std::max(count, 1)) : most / 127;
    for (size_t i = b; i < b + block; ++i) {
      out[i] = signs ? (c[i] >= 0 ? scale : -scale) : scale > 0 ? std::nearbyint(c[i] / scale) * scale : 0;
      if (where[i] == 0) out[i] = 0;
      error[i] = where[i] == 0 ? 0 : c[i] - out[i];
    }
  }
  return out;
}

struct Averager {
  bool signs;
  std::vector<Values> sent;
  Values summed;
  Averager(int ranks, size_t n, bool s) : signs(s), sent(static_cast<size_t>(ranks), Values(n)), summed(n) {}
  /// factor times the sum of the ranks' values.
  Values operator()(std::vector<Values> values, double factor, const Values& where) {
    Values sum(summed.size());
    for (size_t r = 0; r < values.size(); ++r) {
      for (size_t i = 0; i < sum.size(); ++i) values[r][i] = where[i] == 0 ? 0 : values[r][i] + sent[r][i];
      const Values out = rounded(values[r], sent[r], signs, where);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += out[i];
    }
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = where[i] == 0 ? 0 : factor * sum[i] + summed[i];
    return rounded(sum, summed, signs, where);
  }
};

/// `gradients`: code in which gradients are summed; nullopt: moments are, by signs.
NamedValues compressed_reference(int ranks, UpdateRule rule, std::optional<Code> gradients = {}) {
  const bool signs = gradients.value_or(Code::sign) == Code::sign;
  const int64_t unit = signs ? 2048 : 256, used = kNorm + kRows * kCols;
  const size_t n = static_cast<size_t>((used + unit * ranks - 1) / (unit * ranks) * unit * ranks);
  const auto tensor_of = [](size_t i) { return i < kNorm ? 1 : 0; };  // backward finishes norm first
  const auto element_of = [](size_t i) { return static_cast<int64_t>(i < kNorm ? i : i - kNorm); };
  Values w(n), m(n), v(n), fresh(n), all(n, 1.0);
  for (size_t i = 0; i < static_cast<size_t>(used); ++i)
    w[i] = tensor_of(i) == 1
               ? 1.0
               : 0.3 * normal_value(5, hash_name("matrix"), static_cast<uint64_t>(element_of(i)));
  Averager average(ranks, n, signs);
  double coefficient[2] = {0, 0}, factor[2] = {1, 1};
  const LambLimits limits;
  for (int step = 1; step <= kSteps; ++step) {
    const OptimizerStep a = onebit_step(step);
    const bool frozen = is_onebit(rule) && step > kFreeze;
    std::vector<Values> own(static_cast<size_t>(ranks), Values(n));
    for (int r = 0; r < ranks; ++r)
      for (size_t i = 0; i < static_cast<size_t>(used); ++i)
        own[static_cast<size_t>(r)][i] = rank_gradient(tensor_of(i), element_of(i), step, r) / ranks;
    Values g(n);
    if (gradients) {
      g = average(own, 1, all);
      for (size_t i = static_cast<size_t>(used); i < n; ++i) {  // padding has no error
        average.summed[i] = 0;
        for (Values& sent : average.sent) sent[i] = 0;
      }
    } else {
      for (const Values& x : own)
        for (size_t i = 0; i < n; ++i) g[i] += x[i];
    }
    const double t = step, c1 = 1 - std::pow(a.beta1, t);
    const double c2 = 1 - std::pow(a.beta2, frozen ? kFreeze : t), fresh2 = 1 - std::pow(a.beta2, t);
    if (frozen) {
      if (step == kFreeze + 1) fresh = v;
      for (Values& x : own)
        for (size_t i = 0; i < n; ++i) x[i] = a.beta1 * m[i] + (1 - a.beta1) * ranks * x[i] * a.grad_scale;
      const Values mean = ranks > 1 ? average(own, 1.0 / ranks, v) : own[0];
      for (size_t i = 0; i < n; ++i) {
        const double made = (mean[i] - a.beta1 * m[i]) / (1 - a.beta1);
        fresh[i] = a.beta2 * fresh[i] + (1 - a.beta2) * made * made;
        m[i] = mean[i];
      }
    } else {
      for (size_t i = 0; i < n; ++i) {
        const double x = g[i] * a.grad_scale;
        m[i] = a.beta1 * m[i] + (1 - a.beta1) * x;
        v[i] = a.beta2 * v[i] + (1 - a.beta2) * x * x;
      }
    }
    for (int tensor : {0, 1}) {
      const double decay = tensor == 0 ? a.weight_decay : 0;
      const size_t from = tensor == 1 ? 0 : kNorm, to = tensor == 1 ? kNorm : static_cast<size_t>(used);
      Values u(n);
      double w2 = 0, u2 = 0, most = 0;
      for (size_t i = from; i < to; ++i) {
        const double below = std::sqrt(v[i] / c2) + a.eps;
        u[i] = m[i] / c1 / below + decay * w[i];
        w2 += w[i] * w[i], u2 += u[i] * u[i];
        most = std::max(most, below / (std::sqrt(fresh[i] / fresh2) + a.eps));
      }
      double by = 1;
      if (rule == UpdateRule::onebit_lamb && !frozen) {
        by = std::min(std::max(std::sqrt(w2 / u2), limits.min_coeff), limits.max_coeff);
        coefficient[tensor] = limits.coeff_beta * coefficient[tensor] + (1 - limits.coeff_beta) * by;
      } else if (rule == UpdateRule::onebit_lamb) {
        double f = std::min(std::max(most, limits.factor_min), limits.factor_max);
        f = std::min(std::max(f, factor[tensor] * 0.9), factor[tensor] * 1.1);
        factor[tensor] = f;
        by = coefficient[tensor] * f;
      }
      for (size_t i = from; i < to; ++i) w[i] -= a.lr * by * u[i];
    }
  }
  return {{"norm", Values(w.begin(), w.begin() + kNorm)},
          {"matrix", Values(w.begin() + kNorm, w.begin() + used)}};
}

ParameterStore::Layout layout_of(UpdateRule rule) {
  ParameterStore::Layout l;
  l.optimizer.rule = rule;
  l.optimizer.freeze_step = kFreeze;
  return l;
}

}  // namespace

TEST_CASE("1-bit Adam and LAMB equal their double reference, warm-up and compressed steps") {
  for (const UpdateRule rule : {UpdateRule::onebit_adam, UpdateRule::onebit_lamb})
    for (int ranks : {1, 2, 3}) {
      INFO(update_rule_name(rule) << " on " << ranks);
      const Outcome run = train_compressed(ranks, layout_of(rule), DType::f64);
      const auto want = compressed_reference(ranks, rule);
      CHECK(worst(want, run.values) < 1e-11);
      for (const auto& rank : run.whole) CHECK(rank == run.values);
      if (ranks == 1) continue;
      CHECK(worst(want, train_compressed(ranks, layout_of(rule), DType::f64, true).values) >
            1e-4);  // negative control
      // Gradients that nobody sums: the mean of the squares of each rank's own.
      double own = 0;
      for (int r = 0; r < ranks; ++r)
        for (int tensor : {0, 1})
          for (int64_t i = 0; i < (tensor ? kNorm : kRows * kCols); ++i)
            own += std::pow(rank_gradient(tensor, i, kSteps, r), 2) / ranks;
      double got = 0;
      for (const Values& squares : run.norms) got += squares.back();
      CHECK(got == Approx(own).epsilon(1e-9));
    }
}

TEST_CASE(
    "1-bit Adam: the warm-up is AdamW's to the bit, and compressed steps send a sixteenth of two bytes") {
  const Outcome adamw = train_compressed(2, layout_of(UpdateRule::adamw), DType::f32);
  ParameterStore::Layout later = layout_of(UpdateRule::onebit_adam);
  const Outcome onebit = train_compressed(2, later, DType::f32);
  CHECK(onebit.values != adamw.values);
  later.optimizer.freeze_step = kSteps;
  CHECK(train_compressed(2, later, DType::f32).values == adamw.values);
  CHECK(worst(compressed_reference(2, UpdateRule::onebit_adam), onebit.values) < 0.05);
  // In the warm-up the bucket goes round in fp32: half of that is what gradients of two bytes would send.
  const double whole = static_cast<double>(onebit.wire[0][0]) / 2,
               few = static_cast<double>(onebit.wire[0][kSteps - 1]);
  CHECK(few / whole == Approx(1.0 / 16).epsilon(0.05));
}

TEST_CASE("gradients in 8 bits and in one equal their double reference, the same bits under ZeRO-0 and 1") {
  ParameterStore::Layout l = layout_of(UpdateRule::adamw);
  const Outcome plain = train_compressed(2, l, DType::f32);
  for (const Code code : {Code::sign, Code::int8})
    for (int ranks : {2, 3}) {
      INFO(ranks << " ranks, signs: " << (code == Code::sign));
      l.reduce_code = code;
      const Outcome run = train_compressed(ranks, l, DType::f64);
      CHECK(worst(compressed_reference(ranks, UpdateRule::adamw, code), run.values) < 1e-11);
      for (const auto& rank : run.whole) CHECK(rank == run.values);
      CHECK(worst(run.values, train_compressed(ranks, l, DType::f64, true).values) >
            1e-5);  // negative control
      l.sharding = ShardingPolicy::zero(1);
      CHECK(train_compressed(ranks, l, DType::f64).values == run.values);
      l.sharding = ShardingPolicy::zero(0);
    }
  l.reduce_code = Code::sign;
  CHECK(train_compressed(2, l, DType::f32).wire[0][0] < plain.wire[0][0] / 20);
  l.reduce_code = Code::int8;
  const Outcome few = train_compressed(2, l, DType::f32);
  CHECK(static_cast<double>(few.wire[0][0]) / static_cast<double>(plain.wire[0][0]) ==
        Approx(260.0 / 1024 * 3584 / 3104));  // a quarter, a scale for each block, and the bucket's padding
}
