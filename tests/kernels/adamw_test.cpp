#include "kernels/optimizer/adamw.h"

#include <array>

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// PyTorch's torch.optim.AdamW, step by step, in double.
struct AdamwReference {
  std::vector<double> w, m, v;
  void step(const std::vector<double>& grad, bool decay, const OptimizerStep& a) {
    const double c1 = 1 - std::pow(a.beta1, static_cast<double>(a.step)),
                 c2 = 1 - std::pow(a.beta2, static_cast<double>(a.step));
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = grad[i] * a.grad_scale;
      if (decay) w[i] *= 1 - a.lr * a.weight_decay;
      m[i] = a.beta1 * m[i] + (1 - a.beta1) * g;
      v[i] = a.beta2 * v[i] + (1 - a.beta2) * g * g;
      w[i] -= a.lr / c1 * m[i] / (std::sqrt(v[i]) / std::sqrt(c2) + a.eps);
    }
  }
};

template <class A, class L>
void check_adamw(int64_t n, bool decay, bool low) {
  for (const auto& [isa, f] : BOTH_ISAS(adamw_cpu)) {
    INFO(isa << " n " << n << (decay ? " decay" : "") << (low ? " low" : ""));
    std::array<std::string, 4> bits;
    for (int threads : {1, 2})
      with_threads(threads, [&] {
        Guarded<A> w = random_array<A>(n, 1), m = random_array<A>(n, 2, 0), v = random_array<A>(n, 3, 0);
        Guarded<L> copy(n);
        AdamwReference want{doubles(w), doubles(m), doubles(v)};
        for (int step = 1; step <= 4; ++step) {
          OptimizerStep args;
          args.lr = 1e-2 / step, args.weight_decay = 0.1, args.grad_scale = 0.7, args.step = step;
          const auto grad = random_array<A>(n, 10 + step, std::pow(10.0, step - 2));
          f({dtype_of<A>::value, dtype_of<L>::value, dtype_of<A>::value, dtype_of<A>::value},
            {{w.data(), m.data(), v.data(), grad.data(), low ? copy.data() : nullptr, {{n, decay, args}}}});
          want.step(doubles(grad), decay, args);
        }
        for (bool whole : {w.intact(), m.intact(), v.intact(), copy.intact()}) CHECK(whole);
        const double allowed = sizeof(A) == 8 ? 1e-13 : 2e-6;
        CHECK(worst_error(w, want.w) < allowed);
        CHECK(worst_error(m, want.m) < allowed);
        CHECK(worst_error(v, want.v) < allowed);
        if (low)
          for (int64_t i = 0; i < n; ++i) REQUIRE(copy[i].bits == L(static_cast<float>(w[i])).bits);
        const std::array<std::string, 4> now{w.bits(), m.bits(), v.bits(), copy.bits()};
        CHECK((threads == 1 || now == bits));
        bits = now;
      });
  }
}

}  // namespace

TEST_CASE("AdamW equals PyTorch's formula in double over four steps") {
  for (int64_t n : {1, 17, 16385, 40001})
    for (bool decay : {false, true})
      for (bool low : {false, true}) {
        check_adamw<float, bf16>(n, decay, low);
        check_adamw<float, f16>(n, decay, low);
        check_adamw<double, bf16>(n, decay, low);
      }
}

TEST_CASE("a zero gradient on fresh moments moves nothing but the decay") {
  for (const auto& [isa, f] : BOTH_ISAS(adamw_cpu)) {
    Guarded<float> w(8), m(8), v(8), g(8);
    for (int i = 0; i < 8; ++i) w[i] = 2, m[i] = v[i] = g[i] = 0;
    OptimizerStep args;
    args.lr = 0.5, args.weight_decay = 0.1;
    f({DType::f32, DType::f32, DType::f32, DType::f32},
      {{w.data(), m.data(), v.data(), g.data(), nullptr, {{8, false, args}}}});
    CHECK(w[7] == 2);
    f({DType::f32, DType::f32, DType::f32, DType::f32},
      {{w.data(), m.data(), v.data(), g.data(), nullptr, {{8, true, args}}}});
    CHECK(w[7] == Approx(1.9));
  }
}

TEST_CASE("moments and gradients of bf16 give the bits of widening, updating and rounding them") {
  const int64_t n = 20001;
  OptimizerStep args;
  args.lr = 1e-3, args.weight_decay = 0.1, args.grad_scale = 0.7, args.step = 3;
  for (const auto& [isa, f] : BOTH_ISAS(adamw_cpu))
    for (const auto& [moment, grad] :
         {std::pair{DType::bf16, DType::f32}, {DType::f32, DType::bf16}, {DType::bf16, DType::bf16}}) {
      INFO(isa << " " << dtype_name(moment) << " " << dtype_name(grad));
      Guarded<float> w = random_array<float>(n, 1), wide_w = w, m(n), v(n), g(n);
      Guarded<bf16> half_m(n), half_v(n), half_g(n), low(n), wide_low(n);
      for (int64_t i = 0; i < n; ++i) {
        half_m[i] = bf16(static_cast<float>(random_value(2, i, 1)));
        half_v[i] = bf16(static_cast<float>(std::abs(random_value(3, i, 1))));
        half_g[i] = bf16(static_cast<float>(random_value(4, i, 1)));
        m[i] = static_cast<float>(half_m[i]), v[i] = static_cast<float>(half_v[i]),
        g[i] = static_cast<float>(half_g[i]);
      }
      f({DType::f32, DType::bf16, DType::f32, DType::f32},
        {{wide_w.data(), m.data(), v.data(), g.data(), wide_low.data(), {{n, true, args}}}});
      const bool low_moments = moment == DType::bf16;
      Guarded<float> own_m(n), own_v(n);
      for (int64_t i = 0; i < n; ++i)
        own_m[i] = static_cast<float>(half_m[i]), own_v[i] = static_cast<float>(half_v[i]);
      void* const at_m = low_moments ? static_cast<void*>(half_m.data()) : own_m.data();
      void* const at_v = low_moments ? static_cast<void*>(half_v.data()) : own_v.data();
      const void* at_g = grad == DType::bf16 ? static_cast<const void*>(half_g.data()) : g.data();
      f({DType::f32, DType::bf16, moment, grad},
        {{w.data(), at_m, at_v, at_g, low.data(), {{n, true, args}}}});
      CHECK(w.bits() == wide_w.bits());
      CHECK(low.bits() == wide_low.bits());
      if (!low_moments) continue;
      for (int64_t i = 0; i < n; ++i) {
        REQUIRE(half_m[i].bits == bf16(m[i]).bits);
        REQUIRE(half_v[i].bits == bf16(v[i]).bits);
      }
    }
}

TEST_CASE("runs of an update have arguments of their own: the bits of updates one after another") {
  const std::vector<int64_t> ends{1, 40, 41, 16500, 20000};
  for (const auto& [isa, f] : BOTH_ISAS(adamw_cpu)) {
    INFO(isa);
    std::vector<AdamwRun> runs;
    for (int64_t end : ends) {
      AdamwRun r{end, end % 2 == 0, {}};
      r.args.lr = 1e-3 * static_cast<double>(end % 7), r.args.weight_decay = 0.1;
      runs.push_back(r);
    }
    const auto at_once = [&](bool apart) {
      const int64_t n = ends.back();
      Guarded<float> w = random_array<float>(n, 1), m = random_array<float>(n, 2),
                     v = random_array<float>(n, 3, 0);
      const auto g = random_array<float>(n, 4);
      Guarded<bf16> low(n);
      if (!apart)
        f({DType::f32, DType::bf16, DType::f32, DType::f32},
          {{w.data(), m.data(), v.data(), g.data(), low.data(), runs}});
      int64_t begin = 0;
      for (const AdamwRun& r : runs) {
        if (apart)
          f({DType::f32, DType::bf16, DType::f32, DType::f32}, {{w.data() + begin,
                                                                 m.data() + begin,
                                                                 v.data() + begin,
                                                                 g.data() + begin,
                                                                 low.data() + begin,
                                                                 {{r.end - begin, r.decay, r.args}}}});
        begin = r.end;
      }
      return w.bits() + m.bits() + v.bits() + low.bits();
    };
    const std::string together = at_once(false);
    CHECK(together == at_once(true));
    runs[1].decay = !runs[1].decay;
    CHECK(together != at_once(false));
  }
}
