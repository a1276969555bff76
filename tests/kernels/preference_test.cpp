// Losses of preference pairs: published formulas in double, gradients against differences, sums of texts, and
// the weighted gradient of the cross-entropy.
#include "kernels/loss/preference.h"

#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/row_scores.h"
#include "kernels/tensor/stream.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr PreferenceKind kKinds[] = {
    PreferenceKind::sigmoid,  PreferenceKind::ipo,          PreferenceKind::hinge,
    PreferenceKind::robust,   PreferenceKind::sigmoid_norm, PreferenceKind::simpo,
    PreferenceKind::apo_zero, PreferenceKind::orpo,         PreferenceKind::reward};

PreferenceLoss settings(PreferenceKind kind, double beta = 0.1, double smoothing = 0, double gamma = 0) {
  return {kind, beta, smoothing, gamma};
}

/// log p = -12 over 6 tokens and -15 over 10, the reference's -12.5 and -14.
double golden_loss(const PreferenceLoss& s) {
  return preference_loss(s, {-12, -12.5, 6}, {-15, -14, 10}).loss;
}

}  // namespace

TEST_CASE("preference: losses are those of the published formulas") {
  using enum PreferenceKind;
  const auto is = [](double got, double want) { return std::abs(got - want) < 5e-11; };
  CHECK(is(golden_loss(settings(sigmoid)), 0.6209570478));
  CHECK(is(golden_loss(settings(sigmoid, 0.1, 0.1)), 0.6359570478));  // conservative DPO
  CHECK(is(golden_loss(settings(robust, 0.1, 0.1)), 0.6022070478));
  CHECK(is(golden_loss(settings(hinge)), 0.85));
  CHECK(is(golden_loss(settings(ipo)), 23.2002777778));
  CHECK(is(golden_loss(settings(sigmoid_norm)), 0.6840225272));
  CHECK(is(golden_loss(settings(apo_zero)), 0.9625234160));
  CHECK(is(golden_loss(settings(simpo, 2, 0, 1)), 2.1269280110));
  CHECK(is(golden_loss(settings(orpo, 0.1)), 0.10420578079));
  PreferenceLoss scores = settings(reward);
  CHECK(is(preference_loss(scores, {1.25, 0, 1}, {-0.25, 0, 1}).loss, 0.2014132780));
  CHECK(is(preference_loss(scores, {1.75, 0.5, 1}, {-0.25, 0, 1}).loss, 0.2014132780));  // a margin of 0.5
  scores.center_coefficient = 0.5;
  CHECK(is(preference_loss(scores, {1.25, 0, 1}, {-0.25, 0, 1}).loss, 0.7014132780));
  // torchtune's vector of three pairs.
  const double p[3][4] = {{-0.5, -0.1, -0.5, -0.1}, {-10, -30, -10.1, -20.1}, {-1, -21, -0.1, -0.1}};
  const double want[3] = {0.6931471806, 0.3132616875, 0.1269280110};
  for (int i = 0; i < 3; ++i)
    CHECK(is(preference_loss(settings(sigmoid), {p[i][0], p[i][2], 1}, {p[i][1], p[i][3], 1}).loss, want[i]));
}

TEST_CASE("preference: a policy that equals its reference has no rewards, and DPO's loss is log 2") {
  for (const PreferenceKind kind : kKinds) {
    const PairLoss p = preference_loss(settings(kind), {-30, -30, 7}, {-41, -41, 9});
    if (settings(kind).has_reference()) CHECK((p.chosen_reward == 0 && p.rejected_reward == 0));
    if (kind == PreferenceKind::sigmoid) CHECK(p.loss == std::log(2.0));
  }
}

TEST_CASE("preference: gradients equal differences of the losses") {
  for (const PreferenceKind kind : kKinds)
    for (const double smoothing : {0.0, 0.2}) {
      PreferenceLoss s = settings(kind, 0.7, smoothing, 0.3);
      s.center_coefficient = 0.01;
      const auto loss = [&](double dw, double dl) {
        return preference_loss(s, {-6.1 + dw, -6.4, 5}, {-4.2 + dl, -4.9, 4});
      };
      INFO(static_cast<int>(kind));
      const double e = 1e-5;
      CHECK(std::abs((loss(e, 0).loss - loss(-e, 0).loss) / (2 * e) - loss(0, 0).d_chosen) < 1e-8);
      CHECK(std::abs((loss(0, e).loss - loss(0, -e).loss) / (2 * e) - loss(0, 0).d_rejected) < 1e-8);
      CHECK(loss(0, 0).d_chosen < 0);  // a likelier chosen text lowers every loss
    }
}

TEST_CASE(
    "preference: kto's losses are those of the published formula, and its gradients their differences") {
  PreferenceLoss s = settings(PreferenceKind::kto);
  s.divergence = 0.2;
  CHECK(std::abs(kto_loss(s, {-12, -12.5, 6}, true).loss - 0.4925005624) < 5e-11);
  CHECK(std::abs(kto_loss(s, {-15, -14, 10}, false).loss - 0.4700359482) < 5e-11);
  s = settings(PreferenceKind::kto, 0.7);
  s.divergence = 0.6;
  s.desirable_weight = 1.25;
  s.undesirable_weight = 0.75;
  for (const bool desirable : {false, true}) {
    const auto at = [&](double by) { return kto_loss(s, {-6.1 + by, -6.4, 5}, desirable); };
    const double e = 1e-5;
    CHECK(std::abs((at(e).loss - at(-e).loss) / (2 * e) - at(0).d_text) < 1e-9);
    CHECK((at(0).d_text < 0) == desirable);
    CHECK(std::abs(at(0).reward - 0.7 * 0.3) < 1e-12);
    CHECK(at(1e4).loss == (desirable ? 0 : 0.75));
  }
  // With no divergence, the sum of both labels is apo_zero.
  s = settings(PreferenceKind::apo_zero_unpaired);
  const double both = kto_loss(s, {-12, -12.5, 6}, true).loss + kto_loss(s, {-15, -14, 10}, false).loss;
  CHECK(std::abs(both - golden_loss(settings(PreferenceKind::apo_zero))) < 1e-12);
}

TEST_CASE("preference: totals of labelled texts, and no weight for mismatched ones") {
  const int64_t texts = 6;
  const auto s = make_inline_stream("compute");
  Guarded<double> sums(texts * 2), reference(texts), totals(PreferenceTotals::count), weights(texts),
      values(1);
  Guarded<int32_t> labels(texts / 2);
  const double of[] = {-12, 6, -9, 3, 0, 0, 0, 0, -15, 10, -7, 4}, before[] = {-12.5, -9.5, 0, 0, -14, -8};
  for (int64_t i = 0; i < sums.size(); ++i) sums[i] = of[i];
  for (int64_t i = 0; i < texts; ++i) reference[i] = before[i];
  for (int i = 0; i < PreferenceTotals::count; ++i) totals[i] = 0;
  labels[0] = 1, labels[1] = 1, labels[2] = 0;
  PreferenceLoss loss = settings(PreferenceKind::kto);
  loss.divergence = 0.2;
  preference_pairs(*s, tensor_of(totals, {PreferenceTotals::count}), tensor_of(weights, {texts}),
                   tensor_of(sums, {texts, 2}), tensor_of(reference, {texts}), tensor_of(labels, {3}),
                   tensor_of(values, {1}), loss, 0, true);
  CHECK(std::abs(totals[PreferenceTotals::loss] - 0.4925005624 - 0.4700359482) < 1e-10);
  CHECK(totals[PreferenceTotals::divergence] == 1.5);
  CHECK(totals[PreferenceTotals::desirable] == 1);
  CHECK((totals[PreferenceTotals::chosen] == -12 && totals[PreferenceTotals::rejected] == -15));
  CHECK(weights[0] == -kto_loss(loss, {-12, -12.5, 6}, true).d_text);
  CHECK(weights[4] == -kto_loss(loss, {-15, -14, 10}, false).d_text);
  CHECK((weights[1] == 0 && weights[2] == 0 && weights[3] == 0 && weights[5] == 0));
}

TEST_CASE("preference: a pair with its labels swapped has the margins of the other sign") {
  for (const PreferenceKind kind : kKinds) {
    const TextSum a{-12, -12.5, 6}, b{-15, -14, 10};
    const PairLoss x = preference_loss(settings(kind), a, b), y = preference_loss(settings(kind), b, a);
    CHECK(x.chosen_reward == y.rejected_reward);
    CHECK(x.rejected_reward == y.chosen_reward);
    CHECK(x.loss != y.loss);
  }
}

TEST_CASE("preference: sums of texts and weighted gradients of the cross-entropy are those of single rows") {
  const int64_t rows = 12, vocab = 7, texts = 6;
  const auto s = make_inline_stream("compute");
  const auto logits = random_array<double>(rows * vocab, 3, 2);
  Guarded<int32_t> targets(rows), of(rows);
  const int32_t t[rows] = {-1, 2, 6, -1, 0, 5, 3, -1, 1, 1, -1, 4},
                text[rows] = {0, 0, 0, 1, 1, 1, 1, 4, 4, 5, -1, -1};
  for (int64_t i = 0; i < rows; ++i) targets[i] = i == 11 ? -1 : t[i], of[i] = text[i];
  Guarded<double> copy(logits), stats(rows * 3), values(rows), sums(texts * 2), reference(texts),
      totals(PreferenceTotals::count), weights(texts);
  for (int64_t i = 0; i < sums.size(); ++i) sums[i] = 0;
  for (int64_t i = 0; i < texts; ++i) reference[i] = -0.3 * static_cast<double>(i);
  for (int i = 0; i < PreferenceTotals::count; ++i) totals[i] = 0;
  const Tensor x = tensor_of(copy, {rows, vocab}), y = tensor_of(targets, {rows}), z = tensor_of(of, {rows});
  cross_entropy_stats(*s, tensor_of(stats, {rows, 3}), x, y, {0, vocab});
  row_log_probabilities(*s, tensor_of(values, {rows}), tensor_of(stats, {rows, 3}), y);
  sum_texts(*s, tensor_of(sums, {texts, 2}), tensor_of(values, {rows}), z, y);
  const PreferenceLoss loss = settings(PreferenceKind::sigmoid, 0.5);
  preference_pairs(*s, tensor_of(totals, {PreferenceTotals::count}), tensor_of(weights, {texts}),
                   tensor_of(sums, {texts, 2}), tensor_of(reference, {texts}), {}, tensor_of(values, {rows}),
                   loss, 0.25, true);
  std::vector<double> want(texts, 0);
  std::vector<std::vector<double>> soft(rows, std::vector<double>(vocab));
  for (int64_t r = 0; r < rows; ++r) {
    double all = 0;
    for (int64_t v = 0; v < vocab; ++v) all += std::exp(logits[r * vocab + v]);
    for (int64_t v = 0; v < vocab; ++v) soft[r][v] = std::exp(logits[r * vocab + v]) / all;
    if (targets[r] >= 0) want[of[r]] += std::log(soft[r][targets[r]]);
  }
  for (int64_t i = 0; i < texts; ++i) CHECK(std::abs(sums[2 * i] - want[i]) < 1e-12);
  CHECK(std::vector<double>{sums[1], sums[3], sums[5], sums[9], sums[11]} ==
        std::vector<double>{2, 3, 0, 1, 1});
  const PairLoss p = preference_loss(loss, {want[0], reference[0], 2}, {want[1], reference[1], 3}),
                 q = preference_loss(loss, {want[4], reference[4], 1}, {want[5], reference[5], 1});
  CHECK(std::abs(totals[PreferenceTotals::loss] - p.loss - q.loss) < 1e-12);
  CHECK(std::abs(totals[PreferenceTotals::chosen_tokens_loss] + want[0] + want[4]) < 1e-12);
  CHECK((weights[2] == 0 && weights[3] == 0));  // a pair without tokens
  const std::vector<double> weight{0.25 - p.d_chosen, -p.d_rejected, 0, 0, 0.25 - q.d_chosen, -q.d_rejected};
  Guarded<double> ce(1);
  ce[0] = 0;
  GradientScale scale(0.125);
  scale.weights = weights.data();
  scale.texts = of.data();
  const auto check = [&](const Guarded<double>& got) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t v = 0; v < vocab; ++v) {
        const double w = targets[r] < 0 ? 0 : 0.125 * weight[of[r]];
        CHECK(std::abs(got[r * vocab + v] - w * (soft[r][v] - (v == targets[r] ? 1 : 0))) < 1e-12);
      }
  };
  Guarded<double> gradient(rows * vocab);
  cross_entropy_sharded(*s, tensor_of(ce, {1}), tensor_of(gradient, {rows, vocab}), x, y,
                        tensor_of(stats, {rows, 3}), {0, vocab}, scale);
  check(gradient);
  cross_entropy(*s, tensor_of(ce, {1}), x, x, y, scale);  // in place
  check(copy);
  CHECK((values.intact() && sums.intact() && weights.intact() && totals.intact() && gradient.intact()));
}

TEST_CASE("preference: scores of rows with a target, and their gradients, are those of single rows") {
  const int64_t rows = 7, cols = 37, texts = 4;
  const auto s = make_inline_stream("compute");
  auto x = random_array<double>(rows * cols, 3), weight = random_array<double>(cols, 4);
  Guarded<double> values(rows), dx(rows * cols), dweight(cols), weights(texts);
  Guarded<int32_t> targets(rows), of(rows);
  const int32_t t[rows] = {-1, 5, -1, 0, 7, -1, -1}, text[rows] = {0, 0, 1, 1, 3, -1, -1};
  for (int64_t i = 0; i < rows; ++i) targets[i] = t[i], of[i] = text[i];
  for (int64_t i = 0; i < texts; ++i) weights[i] = 0.5 - static_cast<double>(i);
  for (int64_t c = 0; c < cols; ++c) dweight[c] = 2;
  const ScoreGradient gradient{.targets = tensor_of(targets, {rows}),
                               .texts = tensor_of(of, {rows}),
                               .weights = tensor_of(weights, {texts}),
                               .scale = 0.25};
  row_scores(*s, tensor_of(values, {rows}), tensor_of(x, {rows, cols}), tensor_of(weight, {1, cols}),
             gradient.targets);
  row_scores_backward(*s, tensor_of(dx, {rows, cols}), tensor_of(weight, {1, cols}), gradient);
  row_scores_weight(*s, tensor_of(dweight, {1, cols}), tensor_of(x, {rows, cols}), gradient, true);
  std::vector<double> want(cols, 2);
  for (int64_t r = 0; r < rows; ++r) {
    double dot = 0;
    const double g = targets[r] < 0 ? 0 : -0.25 * weights[of[r]];
    for (int64_t c = 0; c < cols; ++c) {
      if (targets[r] >= 0) dot += x[r * cols + c] * weight[c];
      want[static_cast<size_t>(c)] += g * x[r * cols + c];
      CHECK(dx[r * cols + c] == g * weight[c]);
    }
    CHECK(std::abs(values[r] - dot) < 1e-13);
  }
  for (int64_t c = 0; c < cols; ++c) CHECK(std::abs(dweight[c] - want[static_cast<size_t>(c)]) < 1e-14);
  row_scores_weight(*s, tensor_of(dweight, {1, cols}), tensor_of(x, {rows, cols}), gradient, false);
  for (int64_t c = 0; c < cols; ++c) CHECK(std::abs(dweight[c] + 2 - want[static_cast<size_t>(c)]) < 1e-14);
  CHECK((values.intact() && dx.intact() && dweight.intact()));
}
