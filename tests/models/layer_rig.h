// One layer on its own, in double: on one rank, or on tensor-parallel ranks that are threads.
#pragma once
#include <barrier>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/tensor/rng.h"
#include "models/layers/step.h"
#include "tests/support/thread_ranks.h"

namespace ltrain::test {

/// How a layer is spread. The residual stream has `batch` samples of `seq` tokens.
struct LayerLayout {
  int tensor = 1;
  bool sequence_parallel = false;
  int64_t batch = 2, seq = 6, hidden = 8, key_value_heads = 0;
};

/// State of a layer on one rank.
struct LayerRank {
  Step& step;
  MicroBatch& mb;
  Tensor x, dy;            ///< (stream rows, hidden): input, and gradient of the output
  Tensor y, dx;            ///< tensors of the same shape, to be filled
  double* loss = nullptr;  ///< only for layers that end in a loss
};

/// A layer of one rank: declares its parameters; then forward and backward, which fill y and dx.
struct LayerCase {
  std::function<void(ParameterStore&, const Groups&, bool sequence_parallel)> declare;
  std::function<void(LayerRank&)> run;
};
using MakeLayer = std::function<LayerCase()>;

/// Whole tensors, whatever the layout: y and dx (rows, hidden), gradients by the parameter's name.
struct LayerResult {
  std::vector<double> y, dx;
  std::map<std::string, std::vector<double>> gradients;
  double loss = 0;
};

/// An element of a parameter, or of the input ("x"), that is moved by `by`.
struct Moved {
  std::string name;
  int64_t at = 0;
  double by = 0;
};

/// In [-1, 1), of a name and an element.
inline double layer_noise(const std::string& name, int64_t i) {
  return 2 * to_uniform(philox(11, hash_name(name), static_cast<uint64_t>(i)).v[0]) - 1;
}

/// `visit(element of the slice, element of the whole tensor)`.
inline void for_each_element(const Slice& slice, const std::function<void(int64_t, int64_t)>& visit) {
  const int dims = slice.extent.rank;
  for (int64_t e = slice.begin; e < slice.end; ++e) {
    int64_t rest = e, whole = 0, stride = 1;
    for (int d = dims - 1; d >= 0; --d) {
      whole += (slice.offset[d] + rest % slice.extent[d]) * stride;
      rest /= slice.extent[d];
      stride *= slice.global[d];
    }
    visit(e - slice.begin, whole);
  }
}

inline void run_layer_rank(const LayerCase& layer, const LayerLayout& l, const Moved& moved, int rank,
                           ThreadGroups& threads, LayerResult& result, std::mutex& mutex,
                           std::barrier<>& end) {
  Mesh mesh;
  mesh.degree[static_cast<int>(Axis::tensor)] = l.tensor;
  mesh.rank = rank;
  GroupSet::Options options;
  options.key_value_heads = l.key_value_heads;
  GroupSet groups = threads.on(mesh, options);
  auto compute = make_inline_stream("compute");
  CpuArena arena(int64_t{1} << 24);
  ParameterStore store;
  store.begin_segment(0);
  layer.declare(store, groups.groups(), l.sequence_parallel);
  ParameterStore::Layout stored;
  stored.precision = {DType::f64, DType::f64, DType::f64, DType::f64};
  store.allocate(*compute, arena, groups.groups(), stored);
  store.clear();
  store.initialize(1);
  // Norms and biases begin with ones and zeros, which hide errors.
  for (int id = 0; id < store.count(); ++id) {
    const ParameterSpec& spec = store.spec(id);
    const Slice slice = spec.slice.elements() > 0 ? spec.slice : Slice::whole(spec.shape);
    double* w = store.value(id).ptr<double>();
    for_each_element(slice, [&](int64_t own, int64_t whole) {
      w[own] += 0.3 * layer_noise(spec.name, whole);
      if (moved.name == spec.name && moved.at == whole) w[own] += moved.by;
    });
  }
  Step step{*compute, arena, store, groups.groups(), DType::f64, 1};
  step.sequence_parallel = l.sequence_parallel;
  const auto tensor = [&](const char* name, DType t, Shape s) {
    return arena.allocate(MemoryKind::temporaries, name, t, s);
  };
  MicroBatch mb;
  mb.batch = l.batch;
  mb.seq = l.seq;
  mb.grad_scale = 0.25;
  mb.sample_index = tensor("samples", DType::i64, {mb.batch});
  for (int64_t b = 0; b < mb.batch; ++b) mb.sample_index.ptr<int64_t>()[b] = b;
  mb.targets = tensor("targets", DType::i32, {mb.rows()});
  for (int64_t r = 0; r < mb.rows(); ++r)
    mb.targets.ptr<int32_t>()[r] = r % 5 == 4 ? -1 : static_cast<int32_t>(r % 7);
  mb.loss = tensor("loss", DType::f64, {1});
  *mb.loss.ptr<double>() = 0;
  const int64_t rows = step.stream_rows(mb), first = step.row_map(mb).first_row;
  LayerRank r{step, mb, {}, {}, {}, {}};
  for (auto [t, name] : {std::pair{&r.x, "x"}, {&r.dy, "dy"}, {&r.y, "y"}, {&r.dx, "dx"}})
    *t = tensor(name, DType::f64, {rows, l.hidden});
  for (int64_t i = 0; i < r.x.elements(); ++i) {
    const int64_t whole = first * l.hidden + i;
    r.x.ptr<double>()[i] = layer_noise("x", whole) + (moved.name == "x" && moved.at == whole ? moved.by : 0);
    r.dy.ptr<double>()[i] = layer_noise("dy", whole);
  }
  store.begin_step(1, 1);
  layer.run(r);
  store.finish_gradients();
  groups.synchronize();
  {
    std::lock_guard lock(mutex);
    result.y.resize(mb.rows() * l.hidden);
    result.dx.resize(mb.rows() * l.hidden);
    std::copy_n(r.y.ptr<double>(), r.y.elements(), result.y.begin() + first * l.hidden);
    std::copy_n(r.dx.ptr<double>(), r.dx.elements(), result.dx.begin() + first * l.hidden);
    result.loss = *mb.loss.ptr<double>();
    for (const OwnedPiece& p : store.owned_pieces()) {
      std::vector<double>& whole = result.gradients[store.spec(p.id).name];
      whole.resize(p.slice.global.elements());
      for_each_element(p.slice, [&](int64_t own, int64_t at) { whole[at] = p.grad.ptr<double>()[own]; });
    }
  }
  end.arrive_and_wait();  // nobody leaves while others still receive
}

inline LayerResult run_layer(const MakeLayer& make, const LayerLayout& l, const Moved& moved = {}) {
  LayerResult result;
  std::mutex mutex;
  ThreadGroups threads;
  std::barrier end(l.tensor);
  on_threads(l.tensor, [&](int rank) {
    try {
      run_layer_rank(make(), l, moved, rank, threads, result, mutex, end);
    } catch (...) {
      end.arrive_and_drop();
      throw;
    }
  });
  return result;
}

}  // namespace ltrain::test
