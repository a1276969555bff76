// Eight bits and TF32 on the CUDA device, against the CPU's.
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/matmul_fp8.h"
#include "kernels/matmul/quantize.h"
#include "kernels/matmul/swiglu_fp8.h"
#include "kernels/norm/norm_fp8.h"
#include "tests/cuda/twin.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

Tensor codes_of(Tensor t, DType format) {
  t.dtype = format;
  return t;
}

/// One device and its tensors.
struct OneDevice {
  explicit OneDevice(bool on_cuda)
      : cuda(on_cuda), stream(on_cuda ? cuda::make_cuda_stream("cuda") : make_inline_stream("cpu")) {}

  /// Random values up to `size`, or zeros; element `odd_at` is `odd`.
  Tensor make(DType type, Shape shape, double size, int64_t odd_at = -1, double odd = 0) {
    const int64_t bytes = shape.elements() * dtype_size(type);
    std::vector<char> host(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < shape.elements(); ++i) {
      const double v = i == odd_at ? odd : size == 0 ? 0 : random_value(memory.size(), i, size);
      const auto put = [&](auto x) {
        std::memcpy(host.data() + i * static_cast<int64_t>(sizeof x), &x, sizeof x);
      };
      if (type == DType::f32) put(static_cast<float>(v));
      if (type == DType::f64) put(v);
      if (type == DType::bf16) put(bf16(static_cast<float>(v)));
      if (type == DType::f16) put(f16(static_cast<float>(v)));
    }
    memory.push_back(cuda ? cuda::device_memory(bytes)
                          : std::shared_ptr<void>(new char[static_cast<size_t>(bytes)],
                                                  [](void* p) { delete[] static_cast<char*>(p); }));
    stream->copy(memory.back().get(), host.data(), bytes);
    stream->synchronize();
    Tensor out;
    out.data = memory.back().get(), out.dtype = type, out.shape = shape;
    out.device = cuda ? DeviceKind::cuda : DeviceKind::cpu;
    return out;
  }
  bool same(const Tensor& a, const Tensor& b) { return bytes_of(a) == bytes_of(b); }
  std::vector<uint8_t> bytes_of(const Tensor& x) {
    std::vector<uint8_t> host(static_cast<size_t>(x.bytes()));
    stream->copy(host.data(), x.data, x.bytes());
    stream->synchronize();
    return host;
  }
  bool cuda;
  std::unique_ptr<Stream> stream;
  std::vector<std::shared_ptr<void>> memory;
};

}  // namespace

TEST_CASE("largest magnitudes, rounding to FP8 in place and transposed: the same bits as on the CPU") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 70}, {65, 33}, {40, 700}, {80, 136}, {0, 64}}) {
      CAPTURE(dtype_name(t), rows, cols);
      Twin w(t);
      const auto x = w.random(t, {rows, cols}, 600);
      const auto plain = w.blank(DType::u8, {rows, cols}), transposed = w.blank(DType::u8, {cols, rows});
      const auto step = w.of(DType::f32, {1}, [](int64_t) { return 0.5; });
      const auto amax = w.of(DType::f32, {3}, [](int64_t i) { return i == 1 ? 1e9 : 0.0; });
      w.check(
          [&, rows = rows, cols = cols](Stream& s, const Twin::At& at) {
            quantize(s, codes_of(at(plain), DType::f8e4m3), at(x), false, at(step), at(amax).flat(0, {1}));
            quantize(s, codes_of(at(transposed), DType::f8e5m2), at(x), true, at(step),
                     at(amax).flat(2, {1}));
            max_abs(s, at(amax).flat(1, {1}), at(x));
          },
          0);
    }
}

TEST_CASE("a matrix rounded to FP8 both ways from one reading has the bits of two roundings") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{3, 70}, {16, 8}, {144, 136}, {272, 264}, {0, 64}})
      for (const double odd : {1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
        CAPTURE(dtype_name(t), rows, cols, odd);
        Twin w(t);
        const auto x =
            w.of(t, {rows, cols}, [&](int64_t i) { return i == 77 ? odd : random_value(3, i, 600); });
        const auto both = w.blank(DType::u8, {rows, cols}),
                   both_transposed = w.blank(DType::u8, {cols, rows});
        const auto plain = w.blank(DType::u8, {rows, cols}), transposed = w.blank(DType::u8, {cols, rows});
        const auto step = w.of(DType::f32, {1}, [](int64_t) { return 0.5; });
        const auto amax = w.of(DType::f32, {2}, [](int64_t) { return 1.0; });
        w.check(
            [&](Stream& s, const Twin::At& at) {
              const auto codes = [&](Twin::Id id) { return codes_of(at(id), DType::f8e5m2); };
              quantize_both(s, codes(both), codes(both_transposed), at(x), at(step), at(amax).flat(0, {1}));
              quantize(s, codes(plain), at(x), false, at(step), at(amax).flat(1, {1}));
              quantize(s, codes(transposed), at(x), true, at(step));
              s.synchronize();
              if (s.device() == DeviceKind::cuda) return;
              CHECK(std::memcmp(at(both).data, at(plain).data, static_cast<size_t>(rows * cols)) == 0);
              CHECK(std::memcmp(at(both_transposed).data, at(transposed).data,
                                static_cast<size_t>(rows * cols)) == 0);
              CHECK(std::memcmp(at(amax).ptr<float>(), at(amax).ptr<float>() + 1, 4) == 0);
            },
            0);
      }
}

TEST_CASE("rounding to FP8 with a step for each block: the same bits as on the CPU") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 70}, {130, 33}, {48, 260}, {128, 256}, {144, 136}}) {
      CAPTURE(dtype_name(t), rows, cols);
      Twin w(t);
      // Values of many magnitudes, so that blocks have different steps; one is not finite, one line is zero.
      const auto x = w.of(t, {rows, cols}, [&, cols = cols](int64_t i) -> double {
        const int64_t row = i / cols, col = i % cols;
        if (row == 2) return 0;
        if (row == 40 && col == 5) return NAN;
        return random_value(7, i, 1) * std::exp2((row / 30 + col / 50 + row % 3) % 9 - 4);
      });
      const auto across = [](int64_t n) { return (n + kFp8Block - 1) / kFp8Block; };
      struct Out {
        bool turn;
        int64_t block_rows;
        Twin::Id codes, steps;
      };
      std::vector<Out> outs;
      for (const bool turn : {false, true})
        for (const int64_t block_rows : {int64_t{1}, kFp8Block}) {
          const int64_t r = turn ? cols : rows, c = turn ? rows : cols;
          outs.push_back({turn, block_rows, w.blank(DType::u8, {r, c}),
                          w.blank(DType::f32, {block_rows > 1 ? across(r) : r, across(c)})});
        }
      w.check(
          [&](Stream& s, const Twin::At& at) {
            for (const Out& o : outs)
              quantize_blocks(s, codes_of(at(o.codes), o.turn ? DType::f8e5m2 : DType::f8e4m3), at(o.steps),
                              at(x), o.turn, o.block_rows);
          },
          0);
    }
}

TEST_CASE("products of FP8 with a step for each block: sums of the CPU's, in every type") {
  if (!have_cuda()) return;
  struct Case {
    int64_t m, n, k, b_rows;
    DType a, b;
    bool spoilt;  ///< one element is NaN
  };
  for (const Case& c : {Case{5, 7, 9, kFp8Block, DType::f8e4m3, DType::f8e4m3, false},
                        Case{130, 140, 300, kFp8Block, DType::f8e5m2, DType::f8e4m3, false},
                        Case{16, 40, 272, 1, DType::f8e5m2, DType::f8e4m3, true},
                        Case{70, 24, 144, 1, DType::f8e4m3, DType::f8e5m2, true},
                        Case{70, 24, 144, 1, DType::f8e4m3, DType::f8e4m3, true}}) {
    CAPTURE(c.m, c.n, c.k, c.b_rows, dtype_name(c.a), dtype_name(c.b));
    Twin w(DType::f32);
    const auto value = [&](uint64_t seed, int64_t i) {
      const double v = random_value(seed, i, 1) * std::exp2((i / 64) % 7 - 3);
      return i % 11 == 4 ? v * 0x1p-12 : v;  // subnormal beside the others
    };
    const auto x = w.of(DType::f32, {c.m, c.k}, [&](int64_t i) {
      return c.spoilt && i == 3 * c.k + 5 ? static_cast<double>(NAN) : value(1, i);
    });
    const auto y = w.of(DType::f32, {c.n, c.k}, [&](int64_t i) { return value(2, i); });
    const auto across = [](int64_t n) { return (n + kFp8Block - 1) / kFp8Block; };
    const auto a_codes = w.blank(DType::u8, {c.m, c.k}), b_codes = w.blank(DType::u8, {c.n, c.k});
    const auto a_steps = w.blank(DType::f32, {c.m, across(c.k)});
    const auto b_steps = w.blank(DType::f32, {c.b_rows > 1 ? across(c.n) : c.n, across(c.k)});
    const auto out32 = w.random(DType::f32, {c.m, c.n}), out64 = w.random(DType::f64, {c.m, c.n});
    const auto out16 = w.blank(DType::bf16, {c.m, c.n}), half = w.blank(DType::f16, {c.m, c.n});
    const auto bias16 = w.random(DType::bf16, {c.n}, 3), bias64 = w.random(DType::f64, {c.n}, 3);
    w.check([&](Stream& s, const Twin::At& at) {
      Fp8Operand a{codes_of(at(a_codes), c.a), at(a_steps), 1, at(x), false};
      Fp8Operand b{codes_of(at(b_codes), c.b), at(b_steps), c.b_rows, at(y), false};
      quantize_blocks(s, a.codes, a.steps, at(x), false, 1);
      quantize_blocks(s, b.codes, b.steps, at(y), false, c.b_rows);
      MatmulArgs add, with_bias;
      add.accumulate = true;
      matmul_fp8(s, at(out32), a, b, add);
      matmul_fp8(s, at(half), a, b);
      with_bias.bias = at(bias16);
      matmul_fp8(s, at(out16), a, b, with_bias);
      with_bias.bias = at(bias64), with_bias.accumulate = true;
      matmul_fp8(s, at(out64), a, b, with_bias);
    });
  }
}

TEST_CASE("steps of FP8 from a history: the same bits as on the CPU") {
  if (!have_cuda()) return;
  for (const int64_t length : {0, 1, 5, 700})
    for (const bool most_recent : {false, true}) {
      CAPTURE(length, most_recent);
      Twin w(DType::f32);
      const int64_t n = 9;
      const auto amax = w.random(DType::f32, {n}),
                 steps = w.of(DType::f32, {n, kFp8StepStride}, [](int64_t) -> double { return 0; });
      const auto history = w.of(DType::f32, {n, std::max<int64_t>(length, 1)}, [&](int64_t i) -> double {
        if (i < length) return i % 2 ? INFINITY : NAN;  // nothing of the first element is finite
        return i % 7 == 0 ? INFINITY : i % 11 == 0 ? NAN : std::abs(random_value(5, i, 1000));
      });
      w.check(
          [&](Stream& s, const Twin::At& at) {
            Fp8StepArgs args;
            args.period = 3;
            args.top[2] = 15;
            args.most_recent = most_recent;
            const Tensor past = length > 0 ? at(history) : Tensor();
            args.record = false;
            if (length > 0) update_fp8_steps(s, at(steps), at(amax), past, args);
            args.record = true;
            update_fp8_steps(s, at(steps), at(amax), past, args);
            update_fp8_steps(s, at(steps), at(amax), past, args);
          },
          0);
    }
}

TEST_CASE("norms and SwiGLU rounded to FP8: the bits of rounding their results") {
  if (!have_cuda()) return;
  for (const DType t : kFloats)
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 8}, {5, 70}, {32, 64}, {3, 8200}, {144, 136}}) {
      CAPTURE(dtype_name(t), rows, cols);
      // Codes that a device makes of its own results: both sets, as bytes, are equal on each device.
      for (const bool on_cuda : {false, true}) {
        OneDevice device(on_cuda);
        Stream* const stream = device.stream.get();
        const auto make = [&](DType type, Shape shape, double size) {
          return device.make(type, shape, size);
        };
        const auto same = [&](const Tensor& x, const Tensor& y) { return device.same(x, y); };
        const auto codes = [&](Shape shape) { return make(DType::f8e4m3, shape, 0); };
        const Tensor step = make(DType::f32, {1}, 0);
        fill_value(*stream, step, 0x1p-5);  // some are beyond the largest code
        const auto rounded = [&] {
          return RoundedOutput{codes({rows, cols}), step, make(DType::f32, {1}, 0)};
        };
        for (const NormKind kind : {NormKind::rms, NormKind::layer})
          for (const bool delta : {false, true}) {
            NormForward a;
            a.kind = kind;
            a.x = make(t, {rows, cols}, 3), a.weight = make(t, {cols}, 12);
            if (delta) a.delta = make(t, {rows, cols}, 3), a.sum = make(t, {rows, cols}, 0);
            if (kind == NormKind::layer) a.bias = make(t, {cols}, 2), a.mean = make(wide(t), {rows}, 0);
            a.rstd = make(wide(t), {rows}, 0);
            NormForward plain = a;
            plain.y = make(t, {rows, cols}, 0);
            plain.rstd = make(wide(t), {rows}, 0);
            const RoundedOutput one = rounded(), two = rounded();
            norm_forward(*stream, plain);
            quantize(*stream, one.codes, plain.y, false, step, one.amax);
            norm_forward_fp8(*stream, a, two);
            CHECK(same(one.codes, two.codes));
            CHECK(same(one.amax, two.amax));
            CHECK(same(plain.rstd, a.rstd));
            const Tensor transposed = codes({cols, rows}), also = codes({cols, rows});
            quantize(*stream, transposed, plain.y, true, step);
            turn_codes(*stream, also, two.codes);
            CHECK(same(transposed, also));
            RoundedOutput quiet = rounded();
            quiet.amax = Tensor();
            norm_forward_fp8(*stream, a, quiet);
            CHECK(same(one.codes, quiet.codes));
          }
        const Tensor gate_up = make(t, {rows, 2 * cols}, 9), y = make(t, {rows, cols}, 0);
        const RoundedOutput one = rounded(), two = rounded();
        swiglu_forward(*stream, y, gate_up);
        quantize(*stream, one.codes, y, false, step, one.amax);
        swiglu_forward_fp8(*stream, two, gate_up);
        CHECK(same(one.codes, two.codes));
        CHECK(same(one.amax, two.amax));
        RoundedOutput both = rounded();
        both.transposed = codes({cols, rows});
        const Tensor transposed = codes({cols, rows});
        swiglu_forward_fp8(*stream, both, gate_up);
        quantize(*stream, transposed, y, true, step);
        CHECK(same(one.codes, both.codes));
        CHECK(same(transposed, both.transposed));
        CHECK(same(one.amax, both.amax));
      }
    }
}

TEST_CASE("SwiGLU's gradient rounded to FP8 both ways: the bits of rounding its result") {
  if (!have_cuda()) return;
  for (const DType t : kFloats)
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 8}, {5, 70}, {16, 8}, {144, 136}, {272, 72}})
      for (const double odd : {1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)})
        for (const bool on_cuda : {false, true}) {
          const DType format = rows % 5 == 4 ? DType::f8e4m3 : DType::f8e5m2;
          CAPTURE(dtype_name(t), rows, cols, odd, on_cuda);
          OneDevice device(on_cuda);
          Stream& s = *device.stream;
          const Tensor gate_up = device.make(t, {rows, 2 * cols}, 9);
          const Tensor dy = device.make(t, {rows, cols}, 60, rows * cols - 3, odd);
          const Tensor gradient = device.make(t, {rows, 2 * cols}, 0), step = device.make(DType::f32, {1}, 0);
          fill_value(s, step, 0x1p-5);  // some are beyond the largest code
          const auto rounded = [&] {
            return RoundedOutput{.codes = device.make(format, {rows, 2 * cols}, 0),
                                 .step = step,
                                 .amax = device.make(DType::f32, {1}, 0),
                                 .transposed = device.make(format, {2 * cols, rows}, 0)};
          };
          const RoundedOutput after = rounded(), at_once = rounded();
          swiglu_backward(s, gradient, dy, gate_up);
          quantize_both(s, after.codes, after.transposed, gradient, step, after.amax);
          swiglu_backward_fp8(s, at_once, dy, gate_up);
          CHECK(device.same(after.codes, at_once.codes));
          CHECK(device.same(after.transposed, at_once.transposed));
          CHECK(device.same(after.amax, at_once.amax));
          RoundedOutput quiet = rounded();
          quiet.amax = Tensor();
          swiglu_backward_fp8(s, quiet, dy, gate_up);
          CHECK(device.same(after.transposed, quiet.transposed));
        }
}

TEST_CASE("SwiGLU's FP8 kernels on more tiles than a grid has blocks: the bits of two halves") {
  if (!have_cuda()) return;
  OneDevice device(true);
  Stream& s = *device.stream;
  constexpr int64_t rows = 128 * 4096 + 144, half = rows / 32 * 16, cols = 8;
  const Tensor gate_up = device.make(DType::bf16, {rows, 2 * cols}, 9);
  const Tensor dy = device.make(DType::bf16, {rows, cols}, 60);
  const Tensor step = device.make(DType::f32, {1}, 0);
  fill_value(s, step, 0x1p-5);
  const auto rounded = [&](DType format, int64_t n, int64_t width) {
    return RoundedOutput{.codes = device.make(format, {n, width}, 0),
                         .step = step,
                         .amax = device.make(DType::f32, {1}, 0),
                         .transposed = device.make(format, {width, n}, 0)};
  };
  const auto check = [&](DType format, int64_t width, const auto& run) {
    const RoundedOutput whole = rounded(format, rows, width);
    RoundedOutput first = rounded(format, half, width), second = rounded(format, rows - half, width);
    const Tensor both = device.make(format, {rows, width}, 0);
    first.codes = both.narrow(0, half), second.codes = both.narrow(half, rows - half);
    second.amax = first.amax;
    const Tensor turned = device.make(format, {width, rows}, 0);
    run(whole, 0, rows);
    run(first, 0, half);
    run(second, half, rows - half);
    turn_codes(s, turned, both);
    CHECK(device.same(whole.codes, both));
    CHECK(device.same(whole.transposed, turned));
    CHECK(device.same(whole.amax, first.amax));
  };
  check(DType::f8e5m2, 2 * cols, [&](const RoundedOutput& to, int64_t from, int64_t n) {
    swiglu_backward_fp8(s, to, dy.narrow(from, n), gate_up.narrow(from, n));
  });
  check(DType::f8e4m3, cols, [&](const RoundedOutput& to, int64_t from, int64_t n) {
    swiglu_forward_fp8(s, to, gate_up.narrow(from, n));
  });
}

TEST_CASE("training in FP8 and in TF32 on cuda equals the CPU") {
  if (!have_cuda()) return;
  TinyOptions o;
  o.hidden = 32, o.heads = 2, o.kv_heads = 2, o.intermediate = 32, o.vocab = 37, o.seq = 16;
  o.global_batch = 4, o.micro_batch = 2, o.steps = 3;
  const auto on_cuda = [](TinyOptions m) {
    m.device = DeviceKind::cuda;
    return m;
  };
#ifdef LTRAIN_CUDA_EMULATED
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::blockwise}) {
    o.fp8.emplace().recipe = recipe;
    o.fp8->output_layer = true;
    const TinyResult cpu = train_tiny(o), cuda = train_tiny(on_cuda(o));
    require_parity(cpu, cuda, 1e-11);
    CHECK(cuda.used_bytes == cuda.plan_bytes);
    CHECK(cuda.used_bytes == cpu.used_bytes);
    if (recipe == Fp8Recipe::blockwise) continue;  // ranks would cut these blocks
    TinyOptions many = on_cuda(o);
    many.tensor = 2;
    require_parity(cpu, train_tiny(many), 1e-11);
  }
  // Experts with rows that are not a multiple of 16, and ranks whose experts get none.
  TinyOptions experts = o;
  experts.architecture = "mixtral";
  experts.moe.num_experts = 4;
  experts.moe.intermediate_size = 48;
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::blockwise}) {
    experts.fp8.emplace().recipe = recipe;
    const TinyResult cpu = train_tiny(experts), cuda = train_tiny(on_cuda(experts));
    require_parity(cpu, cuda, 1e-11);
    CHECK(cuda.used_bytes == cuda.plan_bytes);
    CHECK(cuda.used_bytes == cpu.used_bytes);
    if (recipe != Fp8Recipe::delayed) continue;
    TinyOptions many = on_cuda(experts);
    many.ranks = many.expert = 2, many.micro_batch = 1, many.zero_stage = 2;
    const TinyResult spread = train_tiny(many);
    require_parity(cpu, spread, 1e-11);
    CHECK(spread.used_bytes == spread.plan_bytes);
  }
#endif
  for (const std::string products : {"delayed", "blockwise", "tf32"}) {
    CAPTURE(products);
    o.precision = products == "tf32" ? "tf32" : "bf16";
    o.fp8.reset();
    if (products != "tf32") {
      o.fp8.emplace().recipe = enum_value<Fp8Recipe>(products).value();
      o.fp8->output_layer = true;
      o.vocab = 48;  // a multiple of 16
    }
    const TinyResult cpu = train_tiny(o), cuda = train_tiny(on_cuda(o));
    for (size_t i = 0; i < cpu.losses.size(); ++i) CHECK(std::abs(cuda.losses[i] / cpu.losses[i] - 1) < 5e-3);
    CHECK(cuda.used_bytes == cuda.plan_bytes);
  }
}
