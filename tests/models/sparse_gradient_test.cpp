// Three updates of a linear layer of two sparse matrices whose output gradient is pruned, in double, against
// the same written here with loops.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "kernels/tensor/arena.h"
#include "models/layers/linear.h"
#include "tests/models/differences.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

using Values = std::vector<double>;

constexpr int64_t kSampleTokens = 4, kTokens = 8, kIn = 8, kPartRows = 6, kOut = 2 * kPartRows, kUpdates = 3;
constexpr double kRate = 0.05;
constexpr uint64_t kSeed = 21;
const std::vector<std::string> kNames{"layer.gate.weight", "layer.up.weight"};

/// In [-1, 1), of what it is for, the step and the element.
double noise(const char* what, int64_t step, size_t i) {
  return 2 * to_uniform(philox(5, hash_name(what) + static_cast<uint64_t>(step), i).v[0]) - 1;
}

int64_t sample_at(int64_t step, int64_t row) { return 10 * step + row / kSampleTokens; }

struct Updated {
  Values weights, dx;  // (out, in); input gradient of the last step
};

/// Declares the layer of the tests in fp64.
ParameterStore::Layout declare(Linear& layer, ParameterStore& store, const GroupSet& alone) {
  store.begin_segment(0);
  layer.declare(store, alone.groups(), false, {{"layer.gate", kPartRows}, {"layer.up", kPartRows}}, kIn,
                false, 0.3, LinearSharding::column);
  ParameterStore::Layout layout;
  layout.precision = {DType::f64, DType::f64, DType::f64, DType::f64};
  return layout;
}

Updated train_sparse(const SparsitySettings& sparsity) {
  auto compute = make_inline_stream("compute");
  CpuArena arena(int64_t{1} << 22);
  const GroupSet alone;
  ParameterStore store;
  Linear layer;
  ParameterStore::Layout layout = declare(layer, store, alone);
  layout.optimizer.rule = UpdateRule::sgd;
  layout.optimizer.sgd_momentum = 0;
  layout.optimizer.sparsity = sparsity;
  store.allocate(*compute, arena, alone.groups(), layout);
  store.initialize(1);
  Step step{.compute = *compute,
            .memory = arena,
            .params = store,
            .groups = alone.groups(),
            .dtype = DType::f64,
            .seed = kSeed};
  const auto tensor = [&](const char* name, DType t, Shape s) {
    return arena.allocate(MemoryKind::temporaries, name, t, s);
  };
  MicroBatch mb;
  mb.batch = kTokens / kSampleTokens, mb.seq = kSampleTokens;
  mb.sample_index = tensor("samples", DType::i64, {mb.batch});
  const Tensor x = tensor("x", DType::f64, {kTokens, kIn}), dx = tensor("dx", DType::f64, {kTokens, kIn}),
               y = tensor("y", DType::f64, {kTokens, kOut});
  Updated result;
  result.weights.resize(kOut * kIn);
  for (int64_t n = 1; n <= kUpdates; ++n) {
    for (int64_t b = 0; b < mb.batch; ++b)
      mb.sample_index.ptr<int64_t>()[b] = sample_at(n, b * kSampleTokens);
    for (size_t i = 0; i < kTokens * kIn; ++i) x.ptr<double>()[i] = noise("x", n, i);
    store.begin_step(1, n);
    store.gather_weights();
    const RunningBatch running(step, mb);
    layer.forward(step, y, x);
    for (size_t i = 0; i < kTokens * kOut; ++i) y.ptr<double>()[i] -= noise("target", n, i);
    layer.backward(step, dx, y, x);  // gradient of half the squared distance to the targets
    store.finish_gradients();
    store.update({.lr = kRate, .weight_decay = 0, .step = n});
    store.complete_weights();
  }
  for (const OwnedPiece& p : store.owned_pieces())
    for (int64_t i = 0; i < p.master.elements(); ++i)
      result.weights[static_cast<size_t>(p.id * kPartRows * kIn + i)] = p.master.ptr<double>()[i];
  result.dx.assign(dx.ptr<double>(), dx.ptr<double>() + dx.elements());
  return result;
}

/// True where a weight is one of the two largest of its four.
bool stays(const Values& w, size_t i) {
  int larger = 0;
  for (size_t j = i / 4 * 4; j < i / 4 * 4 + 4; ++j) larger += std::abs(w[j]) > std::abs(w[i]);
  return larger < 2;
}

/// dy, (tokens, out), with columns of matrix `part` pruned.
Values pruned(Values dy, int64_t step, int64_t part) {
  const int64_t calls = (kPartRows + 3) / 4;
  for (int64_t row = 0; row < kTokens; row += 2)
    for (int64_t c = 0; c < kPartRows; ++c) {
      double &a = dy[static_cast<size_t>(row * kOut + part * kPartRows + c)],
             &b = dy[static_cast<size_t>((row + 1) * kOut + part * kPartRows + c)];
      const uint64_t stream = hash_name(kNames[static_cast<size_t>(part)] + ".output_gradient");
      const int64_t call = (sample_at(step, row) * kSampleTokens + row % kSampleTokens) * calls + c / 4;
      const double u = to_uniform(philox(kSeed, stream, static_cast<uint64_t>(call)).v[c % 4]);
      const double sum = std::abs(a) + std::abs(b);
      const bool first = u * sum < std::abs(a);
      a = first ? std::copysign(sum, a) : 0;
      b = first ? 0 : std::copysign(sum, b);
    }
  return dy;
}

/// `moving`: master weights are dense, and each step multiplies with the largest of them. Otherwise the first
/// update chooses zeros of the matrices in `sparse`, and later steps are pruned.
Updated reference(Values w, bool moving, const std::vector<bool>& sparse) {
  Updated result;
  std::vector<bool> kept(w.size(), true);
  for (int64_t n = 1; n <= kUpdates; ++n) {
    const auto matrix = [](size_t i) { return i / static_cast<size_t>(kPartRows * kIn); };
    const auto choose = [&] {
      for (size_t i = 0; i < w.size(); ++i) kept[i] = !sparse[matrix(i)] || stays(w, i);
    };
    if (moving) choose();
    Values used = w;
    for (size_t i = 0; i < w.size(); ++i) used[i] = kept[i] ? w[i] : 0;
    Values dy(kTokens * kOut), dw(w.size());
    result.dx.assign(kTokens * kIn, 0);
    for (size_t t = 0; t < kTokens; ++t)
      for (size_t o = 0; o < kOut; ++o) {
        double& d = dy[t * kOut + o];
        for (size_t k = 0; k < kIn; ++k) d += noise("x", n, t * kIn + k) * used[o * kIn + k];
        d -= noise("target", n, t * kOut + o);
        for (size_t k = 0; k < kIn; ++k) result.dx[t * kIn + k] += d * used[o * kIn + k];
      }
    for (int64_t part = 0; part < 2; ++part)
      if (sparse[static_cast<size_t>(part)] && (moving || n > 1)) dy = pruned(dy, n, part);
    for (size_t t = 0; t < kTokens; ++t)
      for (size_t o = 0; o < kOut; ++o)
        for (size_t k = 0; k < kIn; ++k) dw[o * kIn + k] += dy[t * kOut + o] * noise("x", n, t * kIn + k);
    if (!moving && n == 1) choose();
    for (size_t i = 0; i < w.size(); ++i) w[i] = moving || kept[i] ? w[i] - kRate * dw[i] : 0;
  }
  result.weights = w;
  return result;
}

/// Weights before the first update.
Values initial_weights() {
  Values w(kOut * kIn);
  ParameterStore store;
  const GroupSet alone;
  auto compute = make_inline_stream("compute");
  CpuArena arena(int64_t{1} << 20);
  Linear layer;
  const ParameterStore::Layout layout = declare(layer, store, alone);
  store.allocate(*compute, arena, alone.groups(), layout);
  store.initialize(1);
  for (int id = 0; id < 2; ++id)
    for (int64_t i = 0; i < kPartRows * kIn; ++i)
      w[static_cast<size_t>(id * kPartRows * kIn + i)] = store.value(id).ptr<double>()[i];
  return w;
}

}  // namespace

TEST_CASE("three updates from pruned output gradients are those of loops in double") {
  for (const bool moving : {false, true})
    for (const bool both : {true, false}) {
      if (moving && !both) continue;  // parts of one matrix move together
      INFO("moving " << moving << ", both matrices " << both);
      SparsitySettings sparsity{.match = {both ? "*" : "*.up.*"}, .at_step = 1};
      sparsity.mask_interval = moving;
      sparsity.masked_decay = 0;
      const Updated dense = train_sparse(sparsity);
      sparsity.gradient_estimator = GradientEstimator::mvue;
      const Updated got = train_sparse(sparsity), want = reference(initial_weights(), moving, {both, true});
      CHECK(largest_difference(got.weights, want.weights) < 1e-14);
      CHECK(largest_difference(got.dx, want.dx) < 1e-14);
      CHECK(largest_difference(got.weights, dense.weights) > 1e-3);
    }
}
