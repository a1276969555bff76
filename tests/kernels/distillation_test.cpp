// The distillation loss: both terms against plain sums in double, the gradient against differences of them,
// one rank and shards of the vocabulary.
#include "kernels/loss/distillation.h"

#include "kernels/tensor/stream.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr double kScale = 0.37;

struct Terms {
  double ce = 0, kl = 0;
};

/// Terms of one row, of logits in double.
Terms row_terms(std::vector<double> s, std::vector<double> t, int64_t target, double temperature,
                double soft_cap) {
  const auto log_softmax = [](std::vector<double> x) {
    double top = -INFINITY, sum = 0;
    for (const double v : x) top = std::max(top, v);
    for (const double v : x) sum += std::exp(v - top);
    for (double& v : x) v -= top + std::log(sum);
    return x;
  };
  if (soft_cap > 0)
    for (double& v : s) v = soft_cap * std::tanh(v / soft_cap);
  Terms terms{.ce = -log_softmax(s)[static_cast<size_t>(target)]};
  for (double& v : s) v /= temperature;
  for (double& v : t) v /= temperature;
  s = log_softmax(s), t = log_softmax(t);
  for (size_t v = 0; v < s.size(); ++v) terms.kl += std::exp(t[v]) * (t[v] - s[v]);
  return terms;
}

template <class T>
std::vector<double> row_of(const Guarded<T>& x, int64_t row, int64_t vocab) {
  std::vector<double> out;
  for (int64_t v = 0; v < vocab; ++v) out.push_back(as_double(x[row * vocab + v]));
  return out;
}

struct Case {
  int64_t rows = 1, vocab = 1;
  DistillationLoss loss;
  double soft_cap = 0;
};

/// Terms over all rows, and the gradient by differences of the rows' losses.
template <class L>
Terms expected(const Case& c, const Guarded<L>& student, const Guarded<L>& teacher,
               const Guarded<int32_t>& targets, std::vector<double>& gradient) {
  Terms all;
  gradient.assign(static_cast<size_t>(c.rows * c.vocab), 0);
  for (int64_t r = 0; r < c.rows; ++r) {
    if (targets[r] < 0) continue;
    std::vector<double> s = row_of(student, r, c.vocab);
    const std::vector<double> t = row_of(teacher, r, c.vocab);
    const auto terms = [&] { return row_terms(s, t, targets[r], c.loss.temperature, c.soft_cap); };
    const Terms here = terms();
    all.ce += here.ce, all.kl += here.kl;
    for (int64_t v = 0; v < c.vocab; ++v) {
      const double e = 1e-3, x = s[static_cast<size_t>(v)];
      const auto at = [&](double moved) {
        s[static_cast<size_t>(v)] = x + moved;
        const Terms m = terms();
        return c.loss.of(m.ce, m.kl);
      };
      // Fourth order.
      gradient[static_cast<size_t>(r * c.vocab + v)] =
          kScale * (8 * (at(e) - at(-e)) - (at(2 * e) - at(-2 * e))) / (12 * e);
      s[static_cast<size_t>(v)] = x;
    }
  }
  return all;
}

Guarded<int32_t> some_targets(int64_t rows, int64_t vocab) {
  Guarded<int32_t> targets(rows);
  for (int64_t r = 0; r < rows; ++r) targets[r] = r == 1 ? -1 : static_cast<int32_t>((5 * r + 3) % vocab);
  return targets;
}

template <class L, class G>
void check_case(const Case& c, bool in_place) {
  INFO(c.rows << "x" << c.vocab << " kd_ratio " << c.loss.kd_ratio << " temperature " << c.loss.temperature
              << " soft-cap " << c.soft_cap);
  const int64_t n = c.rows * c.vocab;
  const auto student = random_array<L>(n, 1, 6), teacher = random_array<L>(n, 2, 6);
  const Guarded<int32_t> targets = some_targets(c.rows, c.vocab);
  std::vector<double> want;
  const Terms terms = expected(c, student, teacher, targets, want);
  const VocabColumns all{0, c.vocab};
  std::string bits;
  for (const auto& [isa, stats_of] : BOTH_ISAS(distillation_stats_cpu))
    for (const auto& [isa_too, f] : BOTH_ISAS(distillation_cpu)) {
      if (std::string(isa) != isa_too) continue;
      for (const int threads : {1, 2})
        with_threads(threads, [&, stats_of = stats_of, f = f] {
          Guarded<L> x = student, stats(c.rows * kDistillationStats);
          Guarded<G> grad(n);
          double ce = 0.25, kl = 0.5;
          stats_of(dtype_of<L>::value, stats.data(), x.data(), teacher.data(), targets.data(), c.rows,
                   c.vocab, all, c.loss.temperature, c.soft_cap);
          void* to = in_place ? static_cast<void*>(x.data()) : grad.data();
          f(dtype_of<L>::value, dtype_of<G>::value, &ce, &kl, to, x.data(), teacher.data(), targets.data(),
            stats.data(), 1, c.rows, c.vocab, all, c.loss, kScale, c.soft_cap);
          const double allowed = sizeof(L) == 8 ? 1e-13 : 2e-6;
          CHECK(std::abs(ce - 0.25 - terms.ce) < allowed * std::max(1.0, terms.ce));
          CHECK(std::abs(kl - 0.5 - terms.kl) < allowed * std::max(1.0, terms.kl));
          CHECK((x.intact() && grad.intact() && stats.intact()));
          const double worst = in_place ? worst_error(x, want) : worst_error(grad, want);
          CHECK(worst < std::max(1e-9, in_place ? tolerance<L>() : tolerance<G>()));
          const std::string now = in_place ? x.bits() : grad.bits();
          if (threads == 2) CHECK(now == bits);
          bits = now;
        });
    }
}

}  // namespace

TEST_CASE("distillation: both terms equal plain sums in double, and the gradient their differences") {
  for (const DistillationLoss loss :
       {DistillationLoss{0.5, 1}, DistillationLoss{0.7, 2.5}, DistillationLoss{1, 0.5}})
    for (const double soft_cap : {0.0, 3.0}) {
      const Case c{.rows = 5, .vocab = 37, .loss = loss, .soft_cap = soft_cap};
      check_case<float, float>(c, false);
      check_case<float, float>(c, true);
      check_case<float, bf16>(c, false);
      check_case<double, double>(c, false);
      check_case<double, double>(c, true);
    }
  check_case<float, float>({.rows = 1, .vocab = 1, .loss = {0.5, 2}}, false);
}

TEST_CASE(
    "distillation: a student that equals its teacher has no divergence, and the labels' gradient alone") {
  const int64_t rows = 4, vocab = 501;
  const auto logits = random_array<float>(rows * vocab, 3, 9);
  const Guarded<int32_t> targets = some_targets(rows, vocab);
  const auto s = make_inline_stream("compute");
  Guarded<float> x = logits, y = logits, grad(rows * vocab), want(rows * vocab),
                 stats(rows * kDistillationStats);
  Guarded<double> sums(3);
  for (int i = 0; i < 3; ++i) sums[i] = 0;
  const auto sum = [&](int i) { return tensor_of(sums, {3}).flat(i, {1}); };
  const Tensor a = tensor_of(x, {rows, vocab}), b = tensor_of(y, {rows, vocab});
  Guarded<int32_t> labels = targets;
  const Tensor t = tensor_of(labels, {rows}), of_rows = tensor_of(stats, {rows, kDistillationStats});
  distillation_stats(*s, of_rows, a, b, t, {0, vocab}, 2.0);
  distillation(*s, sum(0), sum(1), tensor_of(grad, {rows, vocab}), a, b, t, of_rows, {0, vocab}, {0.25, 2.0},
               1.0);
  cross_entropy(*s, sum(2), tensor_of(want, {rows, vocab}), a, t, 0.75);
  CHECK(std::abs(sums[1]) < 1e-6);
  CHECK(std::abs(sums[0] - sums[2]) < 1e-5);
  double worst = 0;
  for (int64_t i = 0; i < rows * vocab; ++i) worst = std::max<double>(worst, std::abs(grad[i] - want[i]));
  CHECK(worst < 1e-6);
}

TEST_CASE("distillation: a vocabulary that ranks share gives the loss and the gradient of the whole one") {
  const int64_t rows = 7, vocab = 33, each = 17, columns = 18;  // padding behind each rank's columns
  const auto student = random_array<double>(rows * vocab, 1, 6),
             teacher = random_array<double>(rows * vocab, 2, 6);
  Guarded<int32_t> targets = some_targets(rows, vocab);
  const Tensor labels = tensor_of(targets, {rows});
  const auto s = make_inline_stream("compute");
  const DistillationLoss loss{0.6, 1.7};
  for (const double soft_cap : {0.0, 1.5}) {
    Guarded<double> x = student, y = teacher, one(rows * kDistillationStats), sums(4),
                    stats(2 * rows * kDistillationStats);
    for (int i = 0; i < 4; ++i) sums[i] = 0;
    const auto sum = [&](int i) { return tensor_of(sums, {4}).flat(i, {1}); };
    const Tensor whole = tensor_of(x, {rows, vocab}), taught = tensor_of(y, {rows, vocab}),
                 of_rows = tensor_of(one, {rows, kDistillationStats});
    distillation_stats(*s, of_rows, whole, taught, labels, {0, vocab}, loss.temperature, soft_cap);
    distillation(*s, sum(0), sum(1), whole, whole, taught, labels, of_rows, {0, vocab}, loss, 0.37, soft_cap);
    CHECK(sums[1] > 0.1);
    const VocabColumns part[] = {{0, each}, {each, vocab - each}};
    std::vector<Guarded<double>> parts, of_teacher;
    for (int r = 0; r < 2; ++r) {
      for (auto [to, from] : {std::pair{&parts, &student}, {&of_teacher, &teacher}}) {
        to->emplace_back(rows * columns);
        for (int64_t i = 0; i < rows * columns; ++i) {
          const int64_t column = i % columns;
          to->back()[i] =
              column < part[r].columns ? (*from)[i / columns * vocab + part[r].first + column] : 1e6;
        }
      }
      distillation_stats(*s, tensor_of(stats, {2 * rows, kDistillationStats}).narrow(r * rows, rows),
                         tensor_of(parts[r], {rows, columns}), tensor_of(of_teacher[r], {rows, columns}),
                         labels, part[r], loss.temperature, soft_cap);
    }
    double worst = 0;
    for (int r = 0; r < 2; ++r) {
      sums[2] = sums[3] = 0;
      const Tensor own = tensor_of(parts[r], {rows, columns});
      distillation(*s, sum(2), sum(3), own, own, tensor_of(of_teacher[r], {rows, columns}), labels,
                   tensor_of(stats, {2 * rows, kDistillationStats}), part[r], loss, 0.37, soft_cap);
      CHECK(std::abs(sums[2] - sums[0]) < 1e-12 * sums[0]);
      CHECK(std::abs(sums[3] - sums[1]) < 1e-12 * sums[1]);
      for (int64_t i = 0; i < rows * columns; ++i) {
        const int64_t column = i % columns;
        const double want = column < part[r].columns ? x[i / columns * vocab + part[r].first + column] : 0.0;
        worst = std::max(worst, std::abs(parts[r][i] - want));
      }
    }
    CHECK(worst < 1e-14);
  }
}
