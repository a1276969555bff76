// Labels that a model draws: the first token whose cumulative probability exceeds the row's number, however
// the vocabulary and the rows are cut.
#include "kernels/loss/sample_labels.h"

#include <numeric>

#include "kernels/tensor/stream.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kLabelSeq = 5;

RowRandom numbers(Guarded<int64_t>& samples, uint64_t seed = 7) {
  RowRandom r;
  r.seed = seed;
  r.stream = 11;
  r.sample_index = tensor_of(samples, {samples.size()});
  r.rows.seq = kLabelSeq;
  return r;
}

/// On `ranks` that share the vocabulary: of each row the label of the one that has it; -2 when none or
/// several have.
template <class T>
std::vector<int32_t> draw(const Guarded<T>& logits, Guarded<int32_t>& targets, int64_t vocab, int ranks,
                          const RowRandom& random, double soft_cap = 0) {
  const auto s = make_inline_stream("compute");
  const int64_t rows = targets.size(), each = (vocab + ranks - 1) / ranks;
  const int64_t columns = each + 1;  // one of padding
  std::vector<Guarded<T>> parts;
  std::vector<VocabColumns> part;
  Guarded<T> stats(ranks * rows * 3);
  const Tensor all = tensor_of(stats, {ranks * rows, 3});
  for (int r = 0; r < ranks; ++r) {
    const int64_t first = std::min(vocab, r * each);
    part.push_back({first, std::min(each, vocab - first)});
    parts.emplace_back(rows * columns);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t v = 0; v < columns; ++v)
        parts.back()[i * columns + v] = v < part[r].columns ? logits[i * vocab + first + v] : T(1e6);
    cross_entropy_stats(*s, all.narrow(r * rows, rows), tensor_of(parts[r], {rows, columns}),
                        tensor_of(targets, {rows}), part[r], soft_cap);
  }
  std::vector<int32_t> found(static_cast<size_t>(rows), kLabelElsewhere);
  for (int r = 0; r < ranks; ++r) {
    Guarded<int32_t> labels(rows);
    sample_labels(*s, tensor_of(labels, {rows}), tensor_of(parts[r], {rows, columns}),
                  tensor_of(targets, {rows}), all, r, part[r], random, soft_cap);
    REQUIRE(labels.intact());
    for (size_t i = 0; i < found.size(); ++i) {
      const int32_t label = labels[static_cast<int64_t>(i)];
      if (label == kLabelElsewhere) continue;
      REQUIRE((label < 0 || (label >= part[r].first && label < part[r].first + part[r].columns)));
      found[i] = found[i] == kLabelElsewhere || label < 0 ? label : -2;
    }
  }
  return found;
}

/// The row's number lies among the label's own share of the probabilities, from `before` on.
template <class T>
void check_sample_labels(int64_t rows, int64_t vocab, int ranks, double soft_cap) {
  INFO(rows << "x" << vocab << " over " << ranks << ", cap " << soft_cap);
  const auto logits = random_array<T>(rows * vocab, 1, 6);
  Guarded<int32_t> targets(rows);
  for (int64_t i = 0; i < rows; ++i) targets[i] = i % 4 == 1 ? -100 : 0;
  Guarded<int64_t> samples((rows + kLabelSeq - 1) / kLabelSeq);
  for (int64_t i = 0; i < samples.size(); ++i) samples[i] = 1000 + 3 * i;
  const RowRandom random = numbers(samples);
  std::vector<int32_t> labels;
  for (int threads : {1, 2})
    with_threads(threads, [&] {
      const auto got = draw(logits, targets, vocab, ranks, random, soft_cap);
      if (threads == 2) CHECK(got == labels);
      labels = got;
    });
  const double allowed = sizeof(T) == 8 ? 1e-13 : 1e-5;
  for (int64_t i = 0; i < rows; ++i) {
    const int32_t label = labels[static_cast<size_t>(i)];
    if (targets[i] < 0) {
      CHECK(label == targets[i]);
      continue;
    }
    REQUIRE((label >= 0 && label < vocab));
    const Philox4 r =
        philox(7, 11, static_cast<uint64_t>(samples[i / kLabelSeq] * kLabelSeq + i % kLabelSeq));
    const double u = std::ldexp(r.v[0], -32) + std::ldexp(r.v[1] >> 11, -53);
    double total = 0, before = 0, own = 0;
    for (int64_t v = 0; v < vocab; ++v) {
      double x = as_double(logits[i * vocab + v]);
      if (soft_cap > 0) x = soft_cap * std::tanh(x / soft_cap);
      const double e = std::exp(x);
      total += e;
      if (v < label) before += e;
      if (v == label) own = e;
    }
    CHECK(u >= before / total - allowed);
    CHECK(u < (before + own) / total + allowed);
  }
}

}  // namespace

TEST_CASE("labels are drawn by inversion of the probabilities, however the vocabulary is cut") {
  for (const auto& [rows, vocab] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {7, 13}, {12, 257}, {23, 31}, {6, 5003}})
    for (const int ranks : {1, 2, 5})
      for (const double soft_cap : {0.0, 2.5}) {
        check_sample_labels<float>(rows, vocab, ranks, soft_cap);
        check_sample_labels<double>(rows, vocab, ranks, soft_cap);
      }
}

TEST_CASE("labels come as often as the model says, and others with another seed") {
  const int64_t rows = 60000, vocab = 6;
  const double logits[] = {0, 1.5, -1000, -1, 2.2, 0.3};  // the third never
  Guarded<double> x(rows * vocab);
  for (int64_t i = 0; i < rows * vocab; ++i) x[i] = logits[i % vocab];
  Guarded<int32_t> targets(rows);
  for (int64_t i = 0; i < rows; ++i) targets[i] = 2;
  Guarded<int64_t> samples(rows / kLabelSeq);
  std::iota(samples.data(), samples.data() + samples.size(), 5);
  const auto labels = draw(x, targets, vocab, 2, numbers(samples));
  double total = 0, chi = 0;
  for (double l : logits) total += std::exp(l);
  for (int v = 0; v < vocab; ++v) {
    const double want = static_cast<double>(rows) * std::exp(logits[v]) / total;
    const double got = static_cast<double>(std::count(labels.begin(), labels.end(), v));
    if (want > 0)
      chi += (got - want) * (got - want) / want;
    else
      CHECK(got == 0);
  }
  CHECK(chi < 18.5);  // chi-squared with four degrees of freedom, exceeded once in a thousand
  int64_t same = 0;
  const auto others = draw(x, targets, vocab, 2, numbers(samples, 8));
  for (size_t i = 0; i < labels.size(); ++i) same += labels[i] == others[i];
  CHECK(same < rows / 2);
}

TEST_CASE("the label of a token is that of its sample and position, wherever its row lies") {
  const int64_t samples_of = 4, rows = samples_of * kLabelSeq, vocab = 300;
  const auto x = random_array<double>(rows * vocab, 3, 2);
  Guarded<int32_t> targets(rows);
  for (int64_t i = 0; i < rows; ++i) targets[i] = 1;
  Guarded<int64_t> samples(samples_of);
  for (int64_t i = 0; i < samples_of; ++i) samples[i] = 17 - 2 * i;
  const auto whole = draw(x, targets, vocab, 1, numbers(samples));
  // A part of the positions of each sample, in another order, as a context rank has them; then without the
  // first rows, as a chunk of logits has them.
  Guarded<int32_t> positions(2);
  positions[0] = 4, positions[1] = 1;
  RowRandom random = numbers(samples);
  random.rows.seq = 2, random.rows.total = kLabelSeq, random.rows.positions = tensor_of(positions, {2});
  const int64_t first = 3, some = samples_of * 2 - first;
  random.rows.first_row = first;
  Guarded<double> part(some * vocab);
  Guarded<int32_t> few(some);
  const auto row_of = [&](int64_t i) { return (i + first) / 2 * kLabelSeq + positions[(i + first) % 2]; };
  for (int64_t i = 0; i < some; ++i) {
    few[i] = 0;
    for (int64_t v = 0; v < vocab; ++v) part[i * vocab + v] = x[row_of(i) * vocab + v];
  }
  const auto cut = draw(part, few, vocab, 3, random);
  for (int64_t i = 0; i < some; ++i)
    CHECK(cut[static_cast<size_t>(i)] == whole[static_cast<size_t>(row_of(i))]);
  random.rows.positions = Tensor();  // negative control: 0 and 1, where they are 4 and 1
  CHECK(draw(part, few, vocab, 3, random) != cut);
}
