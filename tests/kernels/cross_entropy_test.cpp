#include "kernels/loss/cross_entropy.h"

#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// L: logits; G: gradient.
template <class L, class G>
void check_cross_entropy(int64_t rows, int64_t vocab, bool in_place, double soft_cap = 0,
                         double z_coeff = 0) {
  constexpr double kScale = 0.37;
  const auto logits = random_array<L>(rows * vocab, 1, 6);
  Guarded<int32_t> targets(rows);
  for (int64_t r = 0; r < rows; ++r) targets[r] = static_cast<int32_t>(philox(8, 9, r).v[0] % vocab);
  if (rows > 1) targets[1] = -1;
  if (rows > 3) targets[3] = -100;
  double want_loss = 0.25, want_z = 0.5;
  std::vector<double> want(rows * vocab);
  for (int64_t r = 0; r < rows; ++r) {
    if (targets[r] < 0) continue;
    double sum = 0, top = -INFINITY;
    const auto tangent = [&](int64_t v) { return std::tanh(as_double(logits[r * vocab + v]) / soft_cap); };
    const auto seen = [&](int64_t v) {
      return soft_cap > 0 ? soft_cap * tangent(v) : as_double(logits[r * vocab + v]);
    };
    for (int64_t v = 0; v < vocab; ++v) top = std::max(top, seen(v));
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(seen(v) - top);
    const double log_z = top + std::log(sum);
    want_loss += log_z - seen(targets[r]);
    if (z_coeff > 0) want_z += z_coeff * log_z * log_z;
    for (int64_t v = 0; v < vocab; ++v) {
      const double p = std::exp(seen(v) - top) / sum;
      want[r * vocab + v] = kScale * (p - (v == targets[r]) + 2 * z_coeff * log_z * p) *
                            (soft_cap > 0 ? 1 - tangent(v) * tangent(v) : 1);
    }
  }
  for (const auto& [isa, f] : BOTH_ISAS(cross_entropy_cpu)) {
    INFO(isa << " " << rows << "x" << vocab << (in_place ? " in place" : ""));
    std::string bits;
    double first_loss = 0;
    for (int threads : {1, 2})
      with_threads(threads, [&] {
        Guarded<L> x = logits;
        Guarded<G> grad(rows * vocab);
        double loss = 0.25, loss_only = 0.25, z = 0.5, z_only = 0.5;
        f(dtype_of<L>::value, dtype_of<L>::value, &loss_only, nullptr, x.data(), targets.data(), rows, vocab,
          kScale, soft_cap, z_coeff, &z_only);
        void* to = in_place ? static_cast<void*>(x.data()) : grad.data();
        f(dtype_of<L>::value, dtype_of<G>::value, &loss, to, x.data(), targets.data(), rows, vocab, kScale,
          soft_cap, z_coeff, &z);
        const double allowed = sizeof(L) == 8 ? 1e-12 : 1e-5;
        CHECK(std::abs(z - want_z) <= allowed * want_z);
        CHECK(std::abs(z_only - want_z) <= allowed * want_z);
        CHECK(std::abs(loss - want_loss) < allowed * std::abs(want_loss));
        CHECK(std::abs(loss_only - want_loss) < allowed * std::abs(want_loss));
        CHECK(x.intact());
        CHECK(grad.intact());
        if (in_place) {
          CHECK(worst_error(x, want) < tolerance<L>());
        } else {
          CHECK(worst_error(grad, want) < tolerance<G>());
        }
        const std::string now = in_place ? x.bits() : grad.bits();
        if (threads == 2) {
          CHECK(now == bits);
          CHECK(loss == first_loss);
        }
        bits = now;
        first_loss = loss;
      });
  }
}

}  // namespace

TEST_CASE("cross entropy equals its double reference") {
  for (const auto& [rows, vocab] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 13}, {5, 257}, {33, 31}, {3, 5003}}) {
    check_cross_entropy<float, float>(rows, vocab, false);
    check_cross_entropy<float, float>(rows, vocab, true);
    check_cross_entropy<float, bf16>(rows, vocab, false);
    check_cross_entropy<double, double>(rows, vocab, false);
    check_cross_entropy<double, double>(rows, vocab, true);
  }
}

TEST_CASE("cross entropy of soft-capped logits equals its double reference") {
  for (const auto& [rows, vocab] : std::vector<std::pair<int64_t, int64_t>>{{1, 13}, {5, 257}, {33, 31}})
    for (const double soft_cap : {1.5, 30.0}) {
      check_cross_entropy<float, float>(rows, vocab, false, soft_cap);
      check_cross_entropy<float, float>(rows, vocab, true, soft_cap);
      check_cross_entropy<float, bf16>(rows, vocab, false, soft_cap);
      check_cross_entropy<double, double>(rows, vocab, true, soft_cap);
    }
}

TEST_CASE("cross entropy with a z-loss equals its double reference") {
  for (const auto& [rows, vocab] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 257}, {33, 31}})
    for (const double soft_cap : {0.0, 1.5}) {
      check_cross_entropy<float, float>(rows, vocab, false, soft_cap, 0.02);
      check_cross_entropy<float, float>(rows, vocab, true, soft_cap, 0.02);
      check_cross_entropy<float, bf16>(rows, vocab, false, soft_cap, 0.02);
      check_cross_entropy<double, double>(rows, vocab, true, soft_cap, 0.02);
      check_cross_entropy<double, double>(rows, vocab, false, soft_cap, 1e-4);
    }
}

TEST_CASE("a z-loss over a vocabulary that ranks share is that of the whole vocabulary") {
  const int64_t rows = 7, vocab = 33, each = 17, columns = 18;  // padding behind each rank's columns
  const auto logits = random_array<double>(rows * vocab, 1, 6);
  Guarded<int32_t> targets(rows);
  for (int64_t r = 0; r < rows; ++r) targets[r] = r == 2 ? -1 : static_cast<int32_t>(5 * r % vocab);
  const auto s = make_inline_stream("compute");
  for (const double soft_cap : {0.0, 1.5}) {
    Guarded<double> whole = logits, loss(1), z(1), shared_loss(1), shared_z(1), stats(2 * rows * 3);
    loss[0] = z[0] = shared_loss[0] = shared_z[0] = 0;
    cross_entropy(*s, tensor_of(loss, {1}), tensor_of(whole, {rows, vocab}), tensor_of(whole, {rows, vocab}),
                  tensor_of(targets, {rows}), 0.37, soft_cap, {0.02, tensor_of(z, {1})});
    CHECK(z[0] > 0.1);
    std::vector<Guarded<double>> parts;
    const VocabColumns part[] = {{0, each}, {each, vocab - each}};
    for (int r = 0; r < 2; ++r) {
      parts.emplace_back(rows * columns);
      for (int64_t i = 0; i < rows * columns; ++i) {
        const int64_t column = i % columns;
        parts[r][i] = column < part[r].columns ? logits[i / columns * vocab + part[r].first + column] : 1e6;
      }
      cross_entropy_stats(*s, tensor_of(stats, {2 * rows, 3}).narrow(r * rows, rows),
                          tensor_of(parts[r], {rows, columns}), tensor_of(targets, {rows}), part[r],
                          soft_cap);
    }
    double worst = 0;
    for (int r = 0; r < 2; ++r) {
      shared_loss[0] = shared_z[0] = 0;
      cross_entropy_sharded(*s, tensor_of(shared_loss, {1}), tensor_of(parts[r], {rows, columns}),
                            tensor_of(parts[r], {rows, columns}), tensor_of(targets, {rows}),
                            tensor_of(stats, {2 * rows, 3}), part[r], 0.37, soft_cap,
                            {0.02, tensor_of(shared_z, {1})});
      CHECK(std::abs(shared_loss[0] - loss[0]) < 1e-12 * loss[0]);
      CHECK(std::abs(shared_z[0] - z[0]) < 1e-12 * z[0]);
      for (int64_t i = 0; i < rows * columns; ++i) {
        const int64_t column = i % columns;
        const double want =
            column < part[r].columns ? whole[i / columns * vocab + part[r].first + column] : 0.0;
        worst = std::max(worst, std::abs(parts[r][i] - want));
      }
    }
    CHECK(worst < 1e-14);
  }
}

TEST_CASE("a soft-cap in float: value and slope are right from tiny logits to ones far beyond it") {
  constexpr double kCap = 30;
  const int64_t n = 4001;
  Guarded<float> x(n), y(n), pair(2 * n), grad(2 * n);
  Guarded<int32_t> targets(n);
  for (int64_t i = 0; i < n; ++i) {
    x[i] = y[i] = pair[2 * i] = static_cast<float>((i % 2 ? 1 : -1) * std::pow(10.0, -4 + 6.5 * i / (n - 1)));
    pair[2 * i + 1] = 0;
    targets[i] = 1;
  }
  double loss = 0;
  for (const auto& [isa, f] : BOTH_ISAS(soft_cap_logits_cpu)) {
    INFO(isa);
    y = x;
    f(DType::f32, y.data(), n, kCap);
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double want = kCap * std::tanh(static_cast<double>(x[i]) / kCap);
      worst = std::max(worst, std::abs(y[i] - want) / std::abs(want));
    }
    CHECK(worst < 5e-7);
    CHECK(worst > 0);
  }
  // For two logits (x, 0), the gradient of the first is p times the slope.
  for (const auto& [isa, f] : BOTH_ISAS(cross_entropy_cpu)) {
    INFO(isa);
    f(DType::f32, DType::f32, &loss, grad.data(), pair.data(), targets.data(), n, 2, 1.0, kCap, 0, nullptr);
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double u = static_cast<double>(x[i]) / kCap, e = std::exp(kCap * std::tanh(u));
      const double want = e / (1 + e) / (std::cosh(u) * std::cosh(u));
      worst = std::max(worst, std::abs(grad[2 * i] - want) / want);
    }
    CHECK(worst < 5e-6);  // exp of a capped logit of 30 has 30 times the roundings of that logit
  }
}

TEST_CASE("exp in float: relative error below 3e-7 over a dense grid") {
  // Two logits (x, 0) with x < 0: the gradient of the first is e / (1 + e), e = exp(x).
  const int64_t rows = 20001;
  Guarded<float> logits(rows * 2), grad(rows * 2);
  Guarded<int32_t> targets(rows);
  for (int64_t r = 0; r < rows; ++r) {
    logits[2 * r] = static_cast<float>(-87.0 * r / (rows - 1));
    logits[2 * r + 1] = 0;
    targets[r] = 1;
  }
  for (const auto& [isa, f] : BOTH_ISAS(cross_entropy_cpu)) {
    double loss = 0, worst = 0;
    f(DType::f32, DType::f32, &loss, grad.data(), logits.data(), targets.data(), rows, 2, 1.0, 0, 0, nullptr);
    for (int64_t r = 0; r < rows; ++r) {
      const double e = std::exp(static_cast<double>(logits[2 * r])), want = e / (1 + e);
      worst = std::max(worst, std::abs(grad[2 * r] - want) / want);
    }
    INFO(isa);
    CHECK(worst < 5e-7);  // 3e-7 of exp, and the roundings of the sum, the quotient and the product
    CHECK(worst > 0);
  }
}
