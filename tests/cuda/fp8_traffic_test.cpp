// Bytes of rounding to FP8, counted access by access on the emulated device, against what the plan prices:
// weights once a step, and what norms and SwiGLU write rounded themselves.
#ifdef LTRAIN_CUDA_EMULATED
#include <catch2/catch.hpp>

#include "kernels/cuda/kernel_cuda.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/swiglu_fp8.h"
#include "kernels/meta/meta_memory.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/norm/norm_fp8.h"
#include "models/layers/fp8.h"
#include "models/layers/step.h"
#include "tests/cuda/operands.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr DType kE4m3 = DType::f8e4m3;

struct Fp8Moved {
  int64_t device, planned;
};

/// Bytes of what `make(stream, memory)` returns, on the emulated device and on meta, without products.
template <class Make>
Fp8Moved moved(Make make) {
  Fp8Moved out;
  {
    const auto stream = cuda::make_cuda_stream("cuda");
    Arena memory(DeviceKind::cuda, 16 << 20);
    const auto op = make(*stream, memory);
    stream->synchronize();
    cuda::emulated_traffic.clear();
    op();
    stream->synchronize();
    out.device = cuda::emulated_traffic.loaded + cuda::emulated_traffic.stored;
  }
  MetaTrace trace;
  const auto stream = make_meta_stream("compute", trace);
  MetaMemory memory{trace};
  const auto op = make(*stream, memory);
  trace.clear_entries();
  op();
  double bytes = 0;
  for (const TraceEntry& e : trace.entries())
    if (e.cls != OpClass::matmul) bytes += e.bytes;
  out.planned = static_cast<int64_t>(bytes);
  return out;
}

Tensor filled(Stream& s, Memory& memory, DType type, Shape shape, double value) {
  const Tensor t = memory.allocate(MemoryKind::activations, "operand", type, shape);
  fill_value(s, t, value);
  place_set(s, t, kAllAxes, Placement::R());
  return t;
}

}  // namespace

TEST_CASE("traffic: weights of FP8 are rounded once a step, not once a use") {
  const int64_t rows = 64, in = 128, out = 256, micros = 3;
  const auto linear = [=](bool kept) {
    return moved([=](Stream& s, Memory& memory) {
      Fp8Settings settings;
      settings.history = 1;
      auto state = std::make_shared<Fp8State>(settings, s, memory, 1);
      if (kept) state->keep_weights(s, memory, {{0, out, in}});
      const Tensor w = filled(s, memory, kBf16, {out, in}, 0.5), x = filled(s, memory, kBf16, {rows, in}, 2),
                   dy = filled(s, memory, kBf16, {rows, out}, 1),
                   y = filled(s, memory, kBf16, {rows, out}, 0), dx = filled(s, memory, kBf16, {rows, in}, 0),
                   dw = filled(s, memory, kF32, {out, in}, 0);
      state->begin_step(s);
      return [=, &s, &memory] {
        const GroupSet alone;
        ParameterStore store;
        Step step{s, memory, store, alone.groups(), kBf16};
        state->forget_weights();
        for (int64_t k = 0; k < micros; ++k) {
          state->multiply(step, 0, y, {x, false, Fp8Role::input}, {w, false, Fp8Role::weight}, {});
          state->multiply(step, 0, dx, {dy, false, Fp8Role::gradient}, {w, true, Fp8Role::weight}, {});
          state->multiply(step, 0, dw, {dy, true, Fp8Role::gradient}, {x, true, Fp8Role::input}, {});
        }
      };
    });
  };
  // Two bytes of an element are read and one is written, of each operand as it is and transposed.
  const int64_t weight = 2 * 3 * out * in, others = 2 * 3 * rows * (in + out);
  const Fp8Moved before = linear(false), after = linear(true);
  CHECK(before.planned == micros * (weight + others));
  CHECK(after.planned == weight + micros * others);
  // Beside them each block's largest magnitude.
  CHECK(before.device - before.planned < 4096);
  CHECK(after.device - after.planned < 4096);
  CHECK(before.device >= before.planned);
  CHECK(after.device >= after.planned);
}

TEST_CASE("traffic: norms and SwiGLU write what FP8 products read") {
  const int64_t rows = 64, cols = 2048, n = rows * cols;
  const auto norm = [=](bool fused) {
    return moved([=](Stream& s, Memory& memory) {
      NormForward a;
      a.x = filled(s, memory, kBf16, {rows, cols}, 1), a.delta = filled(s, memory, kBf16, {rows, cols}, 1);
      a.sum = filled(s, memory, kBf16, {rows, cols}, 0), a.weight = filled(s, memory, kBf16, {cols}, 1);
      a.rstd = filled(s, memory, kF32, {rows}, 0);
      RoundedOutput out{memory.allocate(MemoryKind::activations, "codes", kE4m3, {rows, cols}),
                        filled(s, memory, kF32, {1}, 1), filled(s, memory, kF32, {1}, 0)};
      const Tensor transposed = memory.allocate(MemoryKind::activations, "transposed", kE4m3, {cols, rows});
      if (!fused) a.y = filled(s, memory, kBf16, {rows, cols}, 0);
      return [=, &s] {
        if (fused) {
          norm_forward_fp8(s, a, out);
          turn_codes(s, transposed, out.codes);
        } else {
          norm_forward(s, a);
          quantize(s, out.codes, a.y, false, out.step, out.amax);
          quantize(s, transposed, a.y, true, out.step, out.amax);
        }
      };
    });
  };
  // x, delta and their sum are three of two bytes; then y is written, and read twice for two sets of codes;
  // or codes are written, and read once for the other set.
  const Fp8Moved before = norm(false), after = norm(true);
  CHECK(before.planned == n * (6 + 2 + 2 * 3));
  CHECK(after.planned == n * (6 + 1 + 2));
  const int64_t weights = rows * cols * 2 + rows * 4;  // the weight a row, from the caches, and rstd
  CHECK(before.device - before.planned >= weights);
  CHECK(before.device - before.planned - weights < 4096);
  CHECK(after.device - after.planned >= weights);
  CHECK(after.device - after.planned - weights < 4096);

  const auto swiglu = [=](bool fused) {
    return moved([=](Stream& s, Memory& memory) {
      const Tensor gate_up = filled(s, memory, kBf16, {rows, 2 * cols}, 1);
      RoundedOutput out{memory.allocate(MemoryKind::activations, "codes", kE4m3, {rows, cols}),
                        filled(s, memory, kF32, {1}, 1), filled(s, memory, kF32, {1}, 0)};
      const Tensor transposed = memory.allocate(MemoryKind::activations, "transposed", kE4m3, {cols, rows});
      const Tensor y = filled(s, memory, kBf16, {rows, cols}, 0);
      return [=, &s] {
        if (fused) {
          RoundedOutput both = out;
          both.transposed = transposed;
          swiglu_forward_fp8(s, both, gate_up);
        } else {
          swiglu_forward(s, y, gate_up);
          quantize(s, out.codes, y, false, out.step, out.amax);
          quantize(s, transposed, y, true, out.step, out.amax);
        }
      };
    });
  };
  const Fp8Moved apart = swiglu(false), together = swiglu(true);
  CHECK(apart.planned == n * (4 + 2 + 2 * 3));
  CHECK(together.planned == n * (4 + 1 + 1));
  CHECK(apart.device - apart.planned < 4096);
  CHECK(together.device - together.planned < 4096);
  CHECK(together.device >= together.planned);
}

TEST_CASE("traffic: SwiGLU's backward writes both sets of codes that FP8 products read") {
  const int64_t rows = 144, cols = 2056, n = rows * cols;
  const auto backward = [=](bool fused) {
    return moved([=](Stream& s, Memory& memory) {
      const Tensor gate_up = filled(s, memory, kBf16, {rows, 2 * cols}, 1),
                   dy = filled(s, memory, kBf16, {rows, cols}, 1);
      const auto codes = [&](Shape shape) {
        return memory.allocate(MemoryKind::activations, "codes", DType::f8e5m2, shape);
      };
      const RoundedOutput out{.codes = codes({rows, 2 * cols}),
                              .step = filled(s, memory, kF32, {1}, 1),
                              .amax = filled(s, memory, kF32, {1}, 0),
                              .transposed = codes({2 * cols, rows})};
      return [=, &s] {
        if (fused) return swiglu_backward_fp8(s, out, dy, gate_up);
        swiglu_backward(s, gate_up, dy, gate_up);
        quantize_both(s, out.codes, out.transposed, gate_up, out.step, out.amax);
      };
    });
  };
  // Gate, up and dy are read. The gradient is written and read again, or never there.
  const Fp8Moved before = backward(false), after = backward(true);
  CHECK(before.planned == n * (3 * 2 + 2 * (2 + 2 + 2)));
  CHECK(after.planned == n * (3 * 2 + 2 * 2));
  CHECK(after.device - after.planned < 4096);
  CHECK(after.device >= after.planned);
}

#endif
