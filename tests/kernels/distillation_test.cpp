// The distillation loss: both terms against plain sums in double, the gradient against differences of them,
// one rank and shards of the vocabulary.
#include "kernels/loss/distillation.h"

#include <algorithm>

#include "kernels/loss/top_logits.h"
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

struct DistillationCase {
  int64_t rows = 1, vocab = 1;
  DistillationLoss loss;
  double soft_cap = 0;
};

/// Terms over all rows, and the gradient by differences of the rows' losses.
template <class L>
Terms expected_terms(const DistillationCase& c, const Guarded<L>& student, const Guarded<L>& teacher,
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
void check_distillation(const DistillationCase& c, bool in_place) {
  INFO(c.rows << "x" << c.vocab << " kd_ratio " << c.loss.kd_ratio << " temperature " << c.loss.temperature
              << " soft-cap " << c.soft_cap);
  const int64_t n = c.rows * c.vocab;
  const auto student = random_array<L>(n, 1, 6), teacher = random_array<L>(n, 2, 6);
  const Guarded<int32_t> targets = some_targets(c.rows, c.vocab);
  std::vector<double> want;
  const Terms terms = expected_terms(c, student, teacher, targets, want);
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
      const DistillationCase c{.rows = 5, .vocab = 37, .loss = loss, .soft_cap = soft_cap};
      check_distillation<float, float>(c, false);
      check_distillation<float, float>(c, true);
      check_distillation<float, bf16>(c, false);
      check_distillation<double, double>(c, false);
      check_distillation<double, double>(c, true);
    }
  check_distillation<float, float>({.rows = 1, .vocab = 1, .loss = {0.5, 2}}, false);
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

TEST_CASE("top logits: the divergence has one bucket for all others, and ranks may share the vocabulary") {
  const int64_t rows = 6, vocab = 33, each = 17, k = 4;
  const auto student = random_array<double>(rows * vocab, 1, 6),
             teacher = random_array<double>(rows * vocab, 2, 6);
  Guarded<int32_t> targets = some_targets(rows, vocab), ids(rows * k);
  Guarded<double> values(rows * k), rest(rows);
  const DistillationLoss loss{1.0, 1.7};
  for (const double soft_cap : {0.0, 1.5}) {
    // KL over the buckets of a row of the student's logits.
    const auto divergence = [&](std::vector<double> s, int64_t r) {
      double of_s = 0, of_t = 0, known_s = 0, known_t = 0, kl = 0;
      const auto p = [&](double x) { return std::exp(x / loss.temperature); };
      if (soft_cap > 0)
        for (double& x : s) x = soft_cap * std::tanh(x / soft_cap);
      for (int64_t v = 0; v < vocab; ++v) of_s += p(s[v]), of_t += p(teacher[r * vocab + v]);
      for (int64_t i = 0; i < k; ++i) {
        const double a = p(teacher[r * vocab + ids[r * k + i]]) / of_t, b = p(s[ids[r * k + i]]) / of_s;
        known_t += a, known_s += b, kl += a * std::log(a / b);
      }
      return kl + (1 - known_t) * std::log((1 - known_t) / (1 - known_s));
    };
    double kl = 0;
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<int32_t> order(vocab);
      for (int32_t v = 0; v < vocab; ++v) order[v] = v;
      std::sort(order.begin(), order.end(),
                [&](int a, int b) { return teacher[r * vocab + a] > teacher[r * vocab + b]; });
      double sum = 0;
      for (int64_t i = 0; i < vocab; ++i) {
        const double t = teacher[r * vocab + order[i]];
        if (i < k) ids[r * k + i] = order[i], values[r * k + i] = t;
        if (i >= k) sum += std::exp(t / loss.temperature);
      }
      rest[r] = std::log(sum);
      if (targets[r] >= 0) kl += divergence(row_of(student, r, vocab), r);
    }
    const auto s = make_inline_stream("compute");
    Guarded<double> sums(2), gradient(rows * vocab);
    sums[0] = sums[1] = 0;
    const Tensor labels = tensor_of(targets, {rows}), known = tensor_of(ids, {rows, k}),
                 logits = tensor_of(values, {rows, k}), others = tensor_of(rest, {rows});
    for (const bool cut : {false, true}) {
      const int ranks = cut ? 2 : 1;
      Guarded<double> rest_stats(ranks * rows * kRestStats), stats(ranks * rows * kDistillationStats);
      std::vector<Guarded<double>> x, taught;
      std::vector<VocabColumns> parts = {{0, cut ? each : vocab}};
      if (cut) parts.push_back({each, vocab - each});
      for (int r = 0; r < ranks; ++r) {
        x.emplace_back(rows * parts[0].columns), taught.emplace_back(rows * parts[0].columns);
        for (int64_t i = 0; i < x[r].size(); ++i) {
          const int64_t row = i / parts[0].columns, column = i % parts[0].columns;
          x[r][i] = column < parts[r].columns ? student[row * vocab + parts[r].first + column] : 1e6;
        }
        spread_top_logits(*s, tensor_of(taught[r], {rows, parts[0].columns}),
                          tensor_of(rest_stats, {ranks * rows, kRestStats}).narrow(r * rows, rows),
                          tensor_of(x[r], {rows, parts[0].columns}), known, logits, labels, parts[r],
                          loss.temperature, soft_cap);
      }
      for (int r = 0; r < ranks; ++r) {
        const Tensor own = tensor_of(x[r], {rows, parts[0].columns}),
                     t = tensor_of(taught[r], {rows, parts[0].columns});
        fill_rest_logits(*s, t, own, others, labels, tensor_of(rest_stats, {ranks * rows, kRestStats}),
                         parts[r], loss.temperature, soft_cap);
        distillation_stats(*s, tensor_of(stats, {ranks * rows, kDistillationStats}).narrow(r * rows, rows),
                           own, t, labels, parts[r], loss.temperature, soft_cap);
      }
      double worst = 0;
      for (int r = 0; r < ranks; ++r) {
        sums[0] = sums[1] = 0;
        const Tensor own = tensor_of(x[r], {rows, parts[0].columns});
        distillation(*s, tensor_of(sums, {2}).flat(0, {1}), tensor_of(sums, {2}).flat(1, {1}), own, own,
                     tensor_of(taught[r], {rows, parts[0].columns}), labels,
                     tensor_of(stats, {ranks * rows, kDistillationStats}), parts[r], loss, kScale, soft_cap);
        CHECK(std::abs(sums[1] - kl) < 1e-12 * kl);
        for (int64_t i = 0; i < x[r].size(); ++i) {
          const int64_t row = i / parts[0].columns, column = i % parts[0].columns,
                        at = parts[r].first + column;
          if (column >= parts[r].columns) continue;
          double& of = gradient[row * vocab + at];
          if (cut) worst = std::max(worst, std::abs(x[r][i] - of));
          of = x[r][i];
        }
      }
      CHECK(worst < 1e-14);
    }
    double worst = 0;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t v = 0; v < vocab; ++v) {
        std::vector<double> row = row_of(student, r, vocab);
        const auto at = [&](double moved) {
          row[v] = student[r * vocab + v] + moved;
          return divergence(row, r);
        };
        const double e = 1e-3, slope = (8 * (at(e) - at(-e)) - (at(2 * e) - at(-2 * e))) / (12 * e);
        const double want = targets[r] < 0 ? 0 : kScale * loss.temperature * loss.temperature * slope;
        worst = std::max(worst, std::abs(gradient[r * vocab + v] - want));
      }
    CHECK(worst < 1e-9);
  }
}
