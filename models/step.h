// What a layer is handed: the streams, memory and parameters of this rank, and one micro-batch.
#pragma once
#include <string>

#include "kernels/core/arena.h"
#include "kernels/core/meta.h"
#include "kernels/ops/dropout.h"
#include "parallel/parameter_store.h"

namespace ltrain {

struct MicroBatch {
  int64_t batch = 1, seq = 1;
  Tensor tokens;          ///< (B * seq) i32
  Tensor targets;         ///< (B * seq) i32, negative = not counted
  Tensor sample_index;    ///< (B) i64, global
  double grad_scale = 1;  ///< 1 / counted tokens of the whole global batch
  Tensor loss;            ///< (1) f64: the sum of token losses is added
  int64_t rows() const { return batch * seq; }
};

struct Step {
  Stream& compute;
  Memory& memory;
  ParameterStore& params;
  DType dtype = DType::f32;  ///< of activations
  uint64_t seed = 0;
  bool training = true;  ///< dropout on, activations saved

  DType stat_type() const { return dtype == DType::f64 ? DType::f64 : DType::f32; }
  Tensor activation(std::string_view name, Shape shape) {
    return memory.allocate(training ? MemoryKind::activations : MemoryKind::temporaries, name, dtype, shape);
  }
  Tensor statistic(std::string_view name, Shape shape) {
    return memory.allocate(training ? MemoryKind::activations : MemoryKind::temporaries, name, stat_type(),
                           shape);
  }
  Tensor temporary(std::string_view name, Shape shape) {
    return memory.allocate(MemoryKind::temporaries, name, dtype, shape);
  }
  void release(Tensor& t) {
    if (t.defined()) memory.release(t);
  }
  /// Names what runs now in plans and messages.
  void enter(const std::string& layer) {
    if (compute.meta()) compute.meta()->set_layer(layer);
  }
  Dropout dropout(double p, const std::string& place, const MicroBatch& mb) const {
    Dropout d;
    if (!training || p <= 0) return d;
    d.p = p;
    d.seed = seed;
    d.stream = hash_name(place);
    d.sample_index = mb.sample_index;
    d.seq = mb.seq;
    return d;
  }
};

}  // namespace ltrain
