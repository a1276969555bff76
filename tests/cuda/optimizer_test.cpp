#include "kernels/elementwise/group_codes.h"
#include "kernels/elementwise/scale_add.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/optimizer/adafactor.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw_8bit.h"
#include "kernels/optimizer/fake_quantize.h"
#include "kernels/optimizer/momentum.h"
#include "kernels/optimizer/onebit/error_feedback.h"
#include "kernels/optimizer/onebit/onebit.h"
#include "kernels/optimizer/sophia.h"
#include "kernels/optimizer/two_step_update.h"
#include "tests/cuda/twin.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("updates with one moment, and directions") {
  if (!have_cuda()) return;
  for (DType t : {DType::f32, DType::f64})
    for (int64_t n : {1, 37, 4096}) {
      CAPTURE(dtype_name(t), n);
      Twin w(t);
      const auto master = w.random(t, {n}), m = w.random(t, {n}), g = w.random(t, {n}), u = w.random(t, {n});
      const auto v = w.of(t, {n}, [](int64_t i) { return 0.1 + static_cast<double>(i % 7); });
      const auto low = w.blank(n % 2 ? DType::f16 : DType::bf16, {n});
      const auto sums = w.of(DType::f64, {2}, [](int64_t i) { return 2.0 + static_cast<double>(i); });
      const auto length = w.of(DType::f64, {1}, [](int64_t) { return 9.0; });
      w.check(
          [&](Stream& s, const Twin::At& at) {
            for (MomentumRule rule : {MomentumRule::sgd, MomentumRule::lion}) {
              MomentumArgs a;
              a.rule = rule, a.lr = 0.01, a.weight_decay = 0.1, a.nesterov = true, a.grad_scale = 0.5;
              momentum_update(s, at(master), at(m), at(g), at(low), true, a);
            }
            MomentumArgs muon;
            muon.rule = MomentumRule::muon, muon.nesterov = true;
            momentum_update(s, at(master), at(m), at(g), {}, false, muon);
            OptimizerStep a;
            a.lr = 0.01, a.weight_decay = 0.1, a.step = 2;
            lamb_direction(s, at(master), at(m), at(v), at(u), true, a);
            for (DirectionScale scale : {DirectionScale::none, DirectionScale::trust, DirectionScale::rms}) {
              DirectionArgs d;
              d.scale = scale, d.lr = 0.01, d.keep = 0.99, d.elements = static_cast<double>(n);
              apply_direction(s, at(master), at(u), at(low),
                              scale == DirectionScale::none ? Tensor() : at(sums), d);
            }
            scale_add(s, at(u), 0.5, at(g), 2.0, at(length));
            scale_add(s, at(u), 0.5, {}, 0);
          },
          4);
    }
}

TEST_CASE("AdamW, Adam, SGD and Lion: the same bits on both devices") {
  if (!have_cuda()) return;
  struct Types {
    DType master, moment, grad;
  };
  using enum DType;
  for (const Types& t :
       {Types{f64, f64, f64}, Types{f32, f32, f32}, Types{f32, f32, bf16}, Types{f32, bf16, bf16}})
    for (const int64_t n : {37, 4096}) {
      CAPTURE(dtype_name(t.master), dtype_name(t.moment), dtype_name(t.grad), n);
      Twin w(t.master);
      const auto grad = w.random(t.grad, {n}, 3);
      const auto own_grad = w.random(t.master, {n}, 3);
      std::vector<Twin::Id> ids;
      for (int i = 0; i < 4; ++i) {
        ids.push_back(w.random(t.master, {n}));
        ids.push_back(w.random(i < 2 ? t.moment : t.master, {n}, 0.1));
        ids.push_back(w.of(t.moment, {n}, [](int64_t k) { return std::abs(random_value(9, k, 1e-3)); }));
        ids.push_back(w.blank(n % 2 ? DType::f16 : DType::bf16, {n}));
      }
      const auto update = [&](Stream& s, const Twin::At& at) {
        OptimizerStep a;
        a.lr = 3e-2, a.weight_decay = 0.1, a.step = 3, a.grad_scale = 0.37;
        MomentumArgs m;
        m.lr = 3e-2, m.weight_decay = 0.1, m.grad_scale = 0.37;
        for (size_t i = 0; i < 4; ++i) {
          const Tensor master = at(ids[4 * i]), first = at(ids[4 * i + 1]), low = at(ids[4 * i + 3]);
          a.coupled = i == 1;
          m.rule = i == 2 ? MomentumRule::sgd : MomentumRule::lion;
          if (i < 2)
            adamw(s, master, first, at(ids[4 * i + 2]), at(grad), low, {{n / 2, true, a}, {n, false, a}});
          else
            momentum_update(s, master, first, at(own_grad), low, true, m);
        }
      };
      w.check(update, 0);
    }
}

TEST_CASE("Adafactor's sums and directions of parts of a matrix") {
  if (!have_cuda()) return;
  for (DType t : {DType::f32, DType::f64})
    for (const MatrixPart& part :
         {MatrixPart{0, 0, 20, 0, 140}, MatrixPart{2, 5, 9, 4, 31}, MatrixPart{3, 1, 17, 20, 3}}) {
      Twin w(t);
      const int64_t rows = 8, cols = 24;
      const auto g = w.random(t, {part.count});
      const auto v = w.of(t, {part.count}, [](int64_t i) { return 0.1 * static_cast<double>(i % 5); });
      const auto sums =
          w.of(DType::f64, {rows + cols}, [](int64_t i) { return 0.5 + static_cast<double>(i % 3); });
      const auto factors =
          w.of(t, {rows + cols + 1}, [](int64_t i) { return 0.2 + static_cast<double>(i % 4); });
      w.check(
          [&](Stream& s, const Twin::At& at) {
            factor_sums(s, at(sums), at(g), part, rows, 0.5);
            factor_moments(s, at(factors), at(sums), rows, cols, 0.9);
            factor_direction(s, at(g), at(factors), part, rows, 0.5, 1e-7);
            plain_direction(s, at(g), at(v), 0.9, 0.5, 1e-7);
          },
          4);
    }
}

TEST_CASE("8-bit moments: the same codes on both devices, and codes of decoded values are themselves") {
  if (!have_cuda()) return;
  const int64_t n = 11 * kCodeBlock;  // not whole blocks of warps
  Twin w(DType::f32);
  const auto master = w.random(DType::f32, {n}), g = w.random(DType::f32, {n});
  const auto values = w.blank(DType::f32, {2 * n}), low = w.blank(DType::bf16, {n});
  const auto code = [](int64_t i) { return static_cast<double>((i * 37) % 256); };
  const auto first = w.of(DType::u8, {n}, code), second = w.of(DType::u8, {n}, code);
  const auto scales =
      w.of(DType::f32, {2 * (n / kCodeBlock)}, [](int64_t i) { return 0.5 + static_cast<double>(i); });
  w.check(
      [&](Stream& s, const Twin::At& at) {
        const CodedMoments m{at(first), at(second), at(scales)};
        OptimizerStep a;
        a.lr = 0.01, a.weight_decay = 0.1, a.step = 3;
        adamw_8bit(s, {{at(master), m, at(g), at(low), true, a}});
        decode_moments(s, at(values), m);
        encode_moments(s, m, at(values));
      },
      4);
}

TEST_CASE("8-bit AdamW of many parts: the bits of each alone, on both devices") {
  if (!have_cuda()) return;
  const int parts = 70;  // more than a launch takes
  std::vector<int64_t> begin(1, 0);
  for (int i = 0; i < parts; ++i) begin.push_back(begin.back() + (1 + i % 3) * kCodeBlock);
  const int64_t n = begin.back(), blocks = n / kCodeBlock;
  Twin w(DType::f32);
  const auto code = [](int64_t i) { return static_cast<double>((i * 37 + i / 256) % 256); };
  const auto scale = [](int64_t i) { return 0.1 + static_cast<double>(i % 5); };
  struct Ids {
    Twin::Id master, grad, first, second, scales, low;
  };
  const auto make = [&] {
    // From the same numbers, whatever the buffer.
    const auto value = [](int64_t i) { return random_value(3, i, 1); };
    return Ids{w.of(DType::f32, {n}, value),
               w.of(DType::f32, {n}, [](int64_t i) { return random_value(4, i, 1); }),
               w.of(DType::u8, {n}, code),
               w.of(DType::u8, {n}, code),
               w.of(DType::f32, {2 * blocks}, scale),
               w.blank(DType::bf16, {n})};
  };
  const Ids together = make(), apart = make();
  const auto difference = w.blank(DType::f32, {n});
  const auto part = [&](const Twin::At& at, const Ids& of, int i) {
    const int64_t from = begin[static_cast<size_t>(i)], m = begin[static_cast<size_t>(i) + 1] - from;
    OptimizerStep a;
    a.lr = 0.01 * (1 + i % 4), a.weight_decay = 0.1, a.step = 3;
    return CodedPart{at(of.master).flat(from, {m}),
                     {at(of.first).flat(from, {m}), at(of.second).flat(from, {m}),
                      at(of.scales).flat(2 * from / kCodeBlock, {2 * m / kCodeBlock})},
                     at(of.grad).flat(from, {m}),
                     at(of.low).flat(from, {m}),
                     i % 2 == 0,
                     a};
  };
  w.check(
      [&](Stream& s, const Twin::At& at) {
        std::vector<CodedPart> all;
        for (int i = 0; i < parts; ++i) all.push_back(part(at, together, i));
        adamw_8bit(s, all);
        for (int i = 0; i < parts; ++i) adamw_8bit(s, {part(at, apart, i)});
        cast(s, at(difference), at(together.master));
        scale_add(s, at(difference), 1.0, at(apart.master), -1.0);
        scale_add(s, at(difference), 1e30, {}, 0);  // a nonzero value is beyond any bound
      },
      4);
}

TEST_CASE("compressed all-reduce: the same codes and errors on both devices") {
  if (!have_cuda()) return;
  for (DType t : {DType::f32, DType::f64})
    for (const Code code : {Code::sign, Code::int8}) {
      CAPTURE(dtype_name(t), code == Code::sign);
      const int64_t n = 3 * code_block(code), bytes = coded_bytes(code, t, n);
      Twin w(t);
      const auto x = w.random(t, {n}), y = w.random(t, {n}), error = w.random(t, {n}, 0.5);
      const auto sum_error = w.random(t, {n}, 0.5), out = w.blank(t, {n});
      const auto where = w.of(t, {n}, [](int64_t i) { return i % 11 == 4 ? 0.0 : 1.0; });
      // Codes are compared through what they stand for, since scales among them are rounded otherwise.
      const auto coded = w.of(DType::u8, {2 * bytes}, [](int64_t) { return 0; });
      const auto sum = w.of(DType::u8, {bytes}, [](int64_t) { return 0; });
      w.check(
          [&](Stream& s, const Twin::At& at) {
            compress(s, code, at(coded).flat(0, {bytes}), at(x), at(error), at(where));
            compress(s, code, at(coded).flat(bytes, {bytes}), at(y), at(error), at(where));
            compress_sum(s, code, at(sum), at(coded), 2, 0.5, at(sum_error), at(where));
            decompress(s, code, at(out), at(sum), at(where));
            fill_zero(s, at(coded));
            fill_zero(s, at(sum));
          },
          4);
    }
}

TEST_CASE("1-bit Adam and LAMB after their warm-up, and Sophia") {
  if (!have_cuda()) return;
  for (DType t : {DType::f32, DType::f64})
    for (int64_t n : {1, 37, 4096}) {
      CAPTURE(dtype_name(t), n);
      Twin w(t);
      const auto master = w.random(t, {n}), m = w.random(t, {n}), mean = w.random(t, {n}),
                 g = w.random(t, {n});
      const auto beside = w.random(t, {n}), h = w.random(t, {n}), y = w.random(t, {n});
      const auto v = w.of(t, {n}, [](int64_t i) { return 0.1 + static_cast<double>(i % 7); });
      const auto fresh = w.of(t, {n}, [](int64_t i) { return 0.2 + static_cast<double>(i % 5); });
      const auto low = w.blank(n % 2 ? DType::f16 : DType::bf16, {n});
      const auto infinite = w.of(t, {n}, [](int64_t i) {
        return i % 3 ? 0.5 : i % 2 ? INFINITY : std::nan("");
      });
      const auto sums = w.of(DType::f64, {4}, [](int64_t i) { return 0.5 + static_cast<double>(i); });
      const auto state = w.of(DType::f64, {4}, [](int64_t i) { return 0.3 + static_cast<double>(i); });
      w.check(
          [&](Stream& s, const Twin::At& at) {
            OnebitArgs a;
            a.adam.lr = 0.01, a.adam.weight_decay = 0.1, a.adam.step = 9, a.freeze_step = 4;
            onebit_adam(s, at(master), at(m), at(v), at(mean), at(low), true, a);
            onebit_lamb_direction(s, at(master), at(m), at(v), at(fresh), at(g), true, a);
            onebit_ratio(s, at(sums).flat(0, {1}), at(v), at(fresh), a);
            for (bool frozen : {false, true}) onebit_coefficients(s, at(state), at(sums), frozen, {});
            BoxElements e;
            e.rank = 2;
            e.global[0] = 100, e.global[1] = 90, e.offset[0] = 3, e.offset[1] = 7, e.extent[0] = 90,
            e.extent[1] = 60, e.begin = 5;
            OptimizerStep sa;
            sa.lr = 0.01, sa.weight_decay = 0.1, sa.eps = 1e-3;
            add_signs(s, at(y), 0.25, 7, 8, e);
            hutchinson_estimate(s, at(h), at(mean), at(beside), 0.9, 0.5, 7, 8, e);
            sophia(s, at(master), at(m), at(h), at(mean), {}, true, sa, 0.01);
            gauss_newton_estimate(s, at(h), at(beside), 0.9, 3.5);
            gauss_newton_estimate(s, at(h), at(infinite), 0.9, 3.5);
            sophia(s, at(master), at(m), at(h), at(mean), at(low), true, sa, 0.01);
          },
          4);
    }
}

TEST_CASE("fake quantization has the same codes, in place and of 16 bits") {
  if (!have_cuda()) return;
  for (const auto& [type, wide] : {std::pair(DType::f32, DType::f32), std::pair(DType::f64, DType::f64),
                                   std::pair(DType::bf16, DType::f32), std::pair(DType::f16, DType::f32)})
    for (WeightCodes codes : {WeightCodes::int4, WeightCodes::int8, WeightCodes::fp8})
      for (int64_t group : {1, 32, 40, 128}) {
        CAPTURE(dtype_name(type), to_string(codes), group);
        Twin w(wide);
        const auto weights = w.random(wide, {group * 37}), in_place = w.random(wide, {group * 37});
        const auto out = w.blank(type, {group * 37});
        w.check(
            [&](Stream& s, const Twin::At& at) {
              fake_quantize(s, at(out), at(weights), codes, group, type);
              fake_quantize(s, at(in_place), at(in_place), codes, group, type);
            },
            0);
      }
}

TEST_CASE("codes of groups of channels, to the bit") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const auto& [sections, width] :
         {std::pair<int64_t, int64_t>{1, 128}, {2, 384}, {1, 37}, {2, 130}, {1, 4}})
      for (DType code : {DType::u8, DType::f8e4m3}) {
        CAPTURE(dtype_name(t), dtype_name(code), sections, width);
        const int64_t rows = 6, cols = sections * width;
        Twin w(t);
        const auto x = w.random(t, {rows, cols}), out = w.blank(t, {rows, cols});
        const auto codes = w.blank(DType::u8, {rows, cols});
        const auto scales = w.blank(wide(t), {rows, group_count(cols, sections)});
        const auto samples = w.of(DType::i64, {2}, [](int64_t i) { return 100 + 7 * i; });
        w.check(
            [&](Stream& s, const Twin::At& at) {
              RowRandom r;
              r.seed = 5, r.stream = 9;
              r.sample_index = at(samples);
              r.rows.seq = rows / 2;
              if (width % kGroupChannels == 0) r.part = 1, r.parts = 3;
              GroupCodes g{at(codes), at(scales), sections};
              g.codes.dtype = code;
              encode_groups(s, g, at(x), r);
              decode_groups(s, at(out), g);
            },
            0);
      }
}
