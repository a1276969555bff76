// The router against a plain reference, its invariants, and its backward against central differences.
#include <algorithm>
#include <numeric>

#include "kernels/moe/jitter.h"
#include "kernels/moe/route.h"
#include "kernels/moe/shared_capacity.h"
#include "kernels/moe/sort_choices.h"
#include "kernels/moe/token_rows.h"
#include "tests/kernels/op_support.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// A router's tensors in guarded memory.
struct Routed {
  int64_t tokens, runs;
  RouteArgs args;
  Guarded<double> logits, norm, weights, statistics, bias;
  Guarded<int32_t> experts, slots, sources;
  Guarded<int64_t> counts;
  std::unique_ptr<Stream> stream = make_inline_stream("compute");
  Guarded<double> identity_weights;
  Guarded<int32_t> identity_rows;
  bool biased = false;
  std::vector<int64_t> samples{3, 900};  // two samples, each with half of the tokens

  Routed(int64_t t, const RouteArgs& a, int64_t run_count = 1)
      : tokens(t),
        runs(run_count),
        args(a),
        logits(random_array<double>(t * a.experts, 5, 2)),
        norm(2 * t),
        weights(t * a.top_k),
        statistics((2 * runs + 1) * a.experts),
        bias(random_array<double>(a.experts, 6, 0.3)),
        experts(t * a.top_k),
        slots(t * a.top_k),
        sources(a.selection == Selection::expert_choice ? a.experts * a.capacity : t * a.top_k),
        counts(a.real_experts() + 1),
        identity_weights(t),
        identity_rows(t) {}
  Routing routing() {
    const Shape chosen{tokens, args.top_k};
    return {tensor_of(logits, {tokens, args.experts}),
            tensor_of(norm, {tokens, 2}),
            tensor_of(experts, chosen),
            tensor_of(weights, chosen),
            tensor_of(slots, chosen),
            tensor_of(sources, {args.selection == Selection::expert_choice ? args.experts * args.capacity
                                                                           : tokens * args.top_k}),
            tensor_of(counts, {args.real_experts() + 1}),
            tensor_of(statistics, {2 * runs + 1, args.experts}),
            tokens / runs,
            args.zero_experts > 0 ? tensor_of(identity_weights, {tokens, 1}) : Tensor(),
            args.zero_experts > 0 ? tensor_of(identity_rows, {tokens, 1}) : Tensor()};
  }
  RowRandom random() {
    RowRandom r;
    r.seed = 9, r.stream = 10;
    r.sample_index.data = samples.data();
    r.sample_index.dtype = DType::i64;
    r.sample_index.shape = {2};
    r.rows.seq = std::max<int64_t>(1, tokens / 2);
    return r;
  }
  void run() {
    route_forward(*stream, routing(), biased ? tensor_of(bias, {args.experts}) : Tensor(), args, random());
  }
  int64_t kept() { return std::accumulate(&counts[0], &counts[0] + args.real_experts(), int64_t{0}); }
};

RouteArgs choices(int64_t experts, int64_t k) {
  RouteArgs a;
  a.experts = experts;
  a.top_k = k;
  return a;
}

}  // namespace

TEST_CASE("router: ties go to the lowest index, rows are sorted by expert and token, all are conserved") {
  Routed r(7, choices(5, 2));
  std::fill(&r.logits[0], &r.logits[0] + 35, 1.0);
  r.logits[3 * 5 + 4] = 2;  // token 3 prefers the last
  r.run();
  for (int64_t t = 0; t < 7; ++t) {
    CHECK(r.experts[2 * t] == (t == 3 ? 4 : 0));
    CHECK(r.experts[2 * t + 1] == (t == 3 ? 0 : 1));
  }
  CHECK(std::vector<int64_t>(&r.counts[0], &r.counts[0] + 6) == std::vector<int64_t>{7, 6, 0, 0, 1, -1});
  for (int64_t a = 0; a < 14; ++a) CHECK(r.sources[r.slots[a]] == a);
  for (int64_t row = 1; row < 7; ++row) CHECK(r.sources[row - 1] < r.sources[row]);
  CHECK((r.slots.intact() && r.sources.intact() && r.counts.intact()));
  r.logits[2 * 5 + 1] = std::nan("");
  r.run();
  CHECK(r.counts[5] == 2);
}

TEST_CASE(
    "router: capacity drops the least weights, the last tokens or second choices, and none at all tokens") {
  Routed all(40, choices(4, 2));
  all.run();
  Routed r(40, choices(4, 2));
  r.args.drop = GENERATE(Drop::least_weight, Drop::last_token, Drop::later_choice);
  r.args.capacity = 40;
  r.run();
  CHECK(r.slots.bits() == all.slots.bits());  // capacity of all tokens is dropless
  CHECK(r.kept() == 80);
  r.args.capacity = 9;
  r.run();
  for (int64_t e = 0; e < 4; ++e) {
    std::vector<std::pair<double, int64_t>> mine;  // weights from the largest, then by token
    for (int64_t a = 0; a < 80; ++a)
      if (r.experts[a] == e)
        mine.push_back({r.args.drop == Drop::least_weight   ? -r.weights[a]
                        : r.args.drop == Drop::later_choice ? static_cast<double>(a % 2)
                                                            : 0,
                        a});
    std::sort(mine.begin(), mine.end());
    CHECK(r.counts[e] == std::min<int64_t>(9, static_cast<int64_t>(mine.size())));
    for (size_t i = 0; i < mine.size(); ++i) CHECK((r.slots[mine[i].second] >= 0) == (i < 9));
  }
  const int64_t dropped = std::count(&r.slots[0], &r.slots[0] + 80, -1);
  CHECK(r.kept() + dropped == 80);
}

TEST_CASE(
    "choices sorted again: all of a router's are its own rows, those of some experts in the order of "
    "tokens") {
  Routed r(40, choices(6, 2));
  r.args.capacity = 9;
  r.run();
  Guarded<int32_t> slots(80), sources(80), kept(80);
  std::copy(&r.slots[0], &r.slots[0] + 80, &kept[0]);
  Guarded<int64_t> counts(7), few(3);
  const auto sorted = [&](Guarded<int64_t>& to, const ChosenExperts& which) {
    Routing again = r.routing();
    again.slots = tensor_of(slots, {40, 2}), again.sources = tensor_of(sources, {80});
    again.counts = tensor_of(to, {static_cast<int64_t>(to.size())});
    sort_choices(*r.stream, again, tensor_of(kept, {40, 2}), r.routing().counts, which);
  };
  sorted(counts, {});
  CHECK(slots.bits() == r.slots.bits());
  CHECK(counts.bits() == r.counts.bits());
  for (int64_t row = 0; row < r.kept(); ++row) CHECK(sources[row] == r.sources[row]);
  sorted(few, {2});
  int64_t row = 0;
  for (int64_t e = 2; e < 4; ++e) {
    const int64_t begin = row;
    for (int64_t a = 0; a < 80; ++a)
      if (r.experts[a] == e && kept[a] >= 0) {
        CHECK((slots[a] == row && sources[row] == a));
        ++row;
      }
    CHECK(few[e - 2] == row - begin);
  }
  CHECK(row < r.kept());
  for (int64_t a = 0; a < 80; ++a)
    if (r.experts[a] < 2 || r.experts[a] > 3) CHECK(slots[a] == -1);
  CHECK(few[2] == -1);
  ChosenExperts hot{0, {5, 1}, 2, true};  // in the order of the list
  sorted(few, hot);
  CHECK((few[0] == r.counts[5] && few[1] == r.counts[1]));
  for (int64_t a = 0; a < 80; ++a) {
    const bool listed = kept[a] >= 0 && (r.experts[a] == 5 || r.experts[a] == 1);
    CHECK((slots[a] >= 0) == listed);
    if (listed) CHECK(sources[slots[a]] == a);
    if (listed) CHECK((slots[a] < few[0]) == (r.experts[a] == 5));
  }
  hot.only = false;  // all the others
  sorted(counts, hot);
  CHECK((counts[5] == 0 && counts[1] == 0 && counts[0] == r.counts[0] && counts[4] == r.counts[4]));
  CHECK((slots.intact() && sources.intact() && few.intact()));
}

TEST_CASE("a capacity of several ranks' tokens keeps what the router keeps of all of them") {
  constexpr int64_t kSeq = 16, kSamples = 3, kTokens = kSeq * kSamples, kTopK = 2;
  RouteArgs a = choices(4, kTopK);
  a.drop = GENERATE(Drop::least_weight, Drop::last_token, Drop::later_choice);
  const bool ties = GENERATE(false, true);
  if (GENERATE(false, true)) a.selection = Selection::gshard_top2, a.threshold = 0.7;
  a.capacity = 9;
  Routed whole(kTokens, a);
  if (ties) std::fill(&whole.logits[0], &whole.logits[0] + kTokens * 4, 1.0);
  whole.run();
  REQUIRE(whole.kept() < kTokens * kTopK);
  for (const auto& [ranks, mirrored, parts] :
       {std::tuple<int64_t, bool, int64_t>{1, false, 2}, {2, false, 1}, {2, true, 1}, {4, true, 3}}) {
    INFO(ranks << " ranks" << (mirrored ? ", two runs each, " : ", ") << parts << " parts");
    const GatheredTokens order{kSamples, kSeq, ranks, mirrored};
    Guarded<int32_t> experts(kTokens * kTopK), kept(kTokens * kTopK / ranks / parts);
    Guarded<double> weights(kTokens * kTopK), counts(4);
    std::vector<int64_t> token_of(kTokens, -1);
    for (int64_t t = 0; t < kTokens; ++t) {
      REQUIRE(token_of[order.row(t)] == -1);  // each row has one token
      token_of[order.row(t)] = t;
      for (int64_t j = 0; j < kTopK; ++j) {
        experts[order.row(t) * kTopK + j] = whole.experts[t * kTopK + j];
        weights[order.row(t) * kTopK + j] = whole.weights[t * kTopK + j];
      }
    }
    const int64_t mine = kTokens / ranks / parts;
    std::vector<double> all(4);
    for (int64_t part = 0; part < ranks * parts; ++part) {
      keep_of_all(*whole.stream, tensor_of(kept, {mine, kTopK}), tensor_of(counts, {4}),
                  tensor_of(experts, {kTokens, kTopK}), tensor_of(weights, {kTokens, kTopK}), order,
                  part * mine, a.capacity, a);
      for (int64_t i = 0; i < mine * kTopK; ++i)
        CHECK((kept[i] >= 0) == (whole.slots[token_of[part * mine + i / kTopK] * kTopK + i % kTopK] >= 0));
      for (int64_t e = 0; e < 4; ++e) all[e] += counts[e];
    }
    for (int64_t e = 0; e < 4; ++e) CHECK(all[e] == static_cast<double>(whole.counts[e]));
    CHECK((kept.intact() && counts.intact()));
  }
}

TEST_CASE("router: groups are kept by their best one or two experts") {
  Routed r(1, choices(6, 2));
  r.args.groups = 3, r.args.kept_groups = 1;
  const double logits[] = {3, -9, 2, 2, 1, 0};
  std::copy(logits, logits + 6, &r.logits[0]);
  r.run();
  CHECK((r.experts[0] == 0 && r.experts[1] == 1));
  r.args.sigmoid = true;  // groups are ranked by the sum of two: 0.95 + 0.0001 against 0.88 + 0.88
  r.run();
  CHECK((r.experts[0] == 2 && r.experts[1] == 3));
  CHECK(r.weights[0] == Approx(0.5).epsilon(1e-12));
  // A bias chooses and does not weigh.
  r.args.groups = r.args.kept_groups = 1;
  r.biased = true;
  for (int64_t i = 0; i < 6; ++i) r.bias[i] = i == 5 ? 7 : 0;
  r.args.renormalize = false;
  r.run();
  CHECK(r.experts[0] == 5);
  CHECK(r.weights[0] == Approx(0.5).epsilon(1e-12));
}

TEST_CASE("router: given experts get their own scores, and a token without any chooses") {
  RouteArgs a = choices(8, 2);
  a.scale = 2.5;
  a.sigmoid = GENERATE(false, true);
  if (GENERATE(false, true)) a.groups = 4, a.kept_groups = 2;  // given experts may be of any group
  Routed own(40, a), given(40, a);
  given.args.given = true;
  given.biased = own.biased = true;
  own.run();
  for (int64_t t = 0; t < 40; ++t)
    for (int64_t j = 0; j < 2; ++j)
      given.experts[2 * t + j] = t % 5 == 4 ? -1 : static_cast<int32_t>((3 * t + 5 * j) % 8);
  given.run();
  double chosen[8] = {};
  for (int64_t t = 0; t < 40; ++t) {
    double sum = 0;
    const auto score = [&](int64_t e) {
      const double x = given.logits[t * 8 + e];
      return a.sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x);
    };
    for (int64_t j = 0; j < 2; ++j) {
      const int32_t e = given.experts[2 * t + j];
      CHECK(e == (t % 5 == 4 ? own.experts[2 * t + j] : (3 * t + 5 * j) % 8));
      sum += score(e);
      chosen[e] += 1;
    }
    for (int64_t j = 0; j < 2; ++j)
      CHECK(given.weights[2 * t + j] == Approx(2.5 * score(given.experts[2 * t + j]) / sum).epsilon(1e-13));
  }
  for (int64_t e = 0; e < 8; ++e) {
    CHECK(given.counts[e] == static_cast<int64_t>(chosen[e]));
    CHECK(given.statistics[e] == chosen[e]);
    CHECK(given.statistics[8 + e] == own.statistics[8 + e]);  // scores do not follow the choice
  }
}

TEST_CASE("router: the second expert is taken with the probability of its weight, and counted when it is") {
  RouteArgs a = choices(4, 2);
  a.selection = Selection::gshard_top2;
  constexpr int64_t kTokens = 4000;
  Routed r(kTokens, a);
  for (int64_t t = 0; t < kTokens; ++t)  // weights 0.8 and 0.2
    for (int64_t i = 0; i < 4; ++i)
      r.logits[t * 4 + i] = i == 1 ? std::log(8.0) : i == 2 ? std::log(2.0) : -9;
  const auto taken = [&](double threshold) {
    r.args.threshold = threshold;
    r.run();
    int64_t n = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      REQUIRE(r.experts[2 * t] == 1);
      CHECK((r.experts[2 * t + 1] == 2 || r.experts[2 * t + 1] == -3));  // -1 - 2
      CHECK((r.slots[2 * t + 1] >= 0) == (r.experts[2 * t + 1] == 2));
      CHECK(r.weights[2 * t] == Approx(0.8).margin(1e-4));  // not divided by what is left
      n += r.experts[2 * t + 1] == 2;
    }
    CHECK(r.kept() == kTokens + n);
    CHECK((r.statistics[1] == kTokens && r.statistics[2] == n));
    return static_cast<double>(n) / kTokens;
  };
  CHECK(taken(0.5) == Approx(0.4).margin(0.03));
  CHECK(taken(1.0) == Approx(0.2).margin(0.03));
  CHECK(taken(0.2001) == Approx(1.0).margin(0.01));
  CHECK(taken(0) == 1);  // evaluation
  // The same token has the same number wherever it lies: the rows the other way round.
  taken(0.5);
  const std::vector<int32_t> before(&r.experts[0], &r.experts[0] + 2 * kTokens);
  std::swap(r.samples[0], r.samples[1]);
  taken(0.5);
  int64_t other = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    other += r.experts[2 * t + 1] != before[2 * t + 1];
    REQUIRE(r.experts[2 * ((t + kTokens / 2) % kTokens) + 1] == before[2 * t + 1]);
  }
  CHECK(other > 0);  // negative control
}

TEST_CASE("router: top-p takes the fewest experts whose scores reach the sum, at most top_k") {
  RouteArgs a = choices(5, 3);
  a.selection = Selection::top_p, a.renormalize = GENERATE(false, true);
  Routed r(4, a);
  // Scores in percent: one expert is enough, two reach 60 together, the cap ends at 54, and ties go in order.
  const double scores[4][5] = {
      {5, 70, 10, 10, 5}, {31, 2, 35, 30, 2}, {20, 17, 16, 15, 32}, {20, 20, 20, 20, 20}};
  for (int64_t t = 0; t < 4; ++t)
    for (int64_t i = 0; i < 5; ++i) r.logits[t * 5 + i] = std::log(scores[t][i] / 100) + 3;
  const auto chosen = [&](double sum) {
    r.args.threshold = sum;
    r.run();
    std::vector<int32_t> all(&r.experts[0], &r.experts[0] + 12);
    for (int64_t i = 0; i < 12; ++i) CHECK((r.slots[i] >= 0) == (all[static_cast<size_t>(i)] >= 0));
    return all;
  };
  CHECK(chosen(0.55) == std::vector<int32_t>{1, -3, -4, 2, 0, -4, 4, 0, 1, 0, 1, 2});
  CHECK((r.kept() == 9 && r.counts[0] == 3 && r.statistics[0] == 3));
  for (int64_t t = 0; t < 4; ++t) {
    double sum = 0;
    for (int64_t j = 0; j < 3; ++j)
      if (r.experts[t * 3 + j] >= 0) sum += scores[t][r.experts[t * 3 + j]] / 100;
    for (int64_t j = 0; j < 3; ++j) {
      const int32_t e = r.experts[t * 3 + j];
      const double weight = e < 0 ? 0 : scores[t][e] / 100 / (a.renormalize ? sum : 1);
      CHECK(r.weights[t * 3 + j] == Approx(weight).epsilon(1e-12));
    }
  }
  CHECK(chosen(1e-6) == std::vector<int32_t>{1, -3, -4, 2, -1, -4, 4, -1, -2, 0, -2, -3});
  r.args.threshold = 1;
  r.run();
  CHECK(r.kept() == 12);  // no three of these make up the whole
}

TEST_CASE("router: expert choice take equally many tokens, those of the best scores") {
  RouteArgs a = choices(4, 4);
  a.selection = Selection::expert_choice;
  a.renormalize = false;
  a.capacity = 10;
  Routed r(40, a);
  r.run();
  CHECK(r.kept() == 40);
  for (int64_t e = 0; e < 4; ++e) {
    CHECK(r.counts[e] == 10);
    std::vector<std::pair<double, int64_t>> all;
    for (int64_t t = 0; t < 40; ++t) {
      double sum = 0;
      for (int64_t i = 0; i < 4; ++i) sum += std::exp(r.logits[t * 4 + i]);
      all.push_back({-std::exp(r.logits[t * 4 + e]) / sum, t});
    }
    std::sort(all.begin(), all.end());
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t at = all[i].second * 4 + e;
      CHECK((r.slots[at] >= 0) == (i < 10));
      if (i < 10) CHECK(r.weights[at] == Approx(-all[i].first).epsilon(1e-12));
    }
  }
  std::fill(&r.logits[0], &r.logits[0] + 160, 1.0);
  r.run();  // ties: the first tokens
  for (int64_t at = 0; at < 160; ++at) CHECK((r.slots[at] >= 0) == (at < 40));
}

TEST_CASE("jitter: factors within their bounds, of each element its own, of its sample and position alone") {
  constexpr int64_t kRows = 6, kCols = 7;  // two samples of three
  const auto stream = make_inline_stream("compute");
  std::vector<int64_t> samples{5, 2};
  RowRandom random;
  random.seed = 3, random.stream = 4;
  random.sample_index.data = samples.data();
  random.sample_index.dtype = DType::i64;
  random.sample_index.shape = {2};
  random.rows.seq = 3;
  each_float([&]<class T>() {
    Guarded<T> x(kRows * kCols), y(kRows * kCols);
    for (int64_t i = 0; i < kRows * kCols; ++i) x[i] = T(1.0f);
    jitter(*stream, tensor_of(y, {kRows, kCols}), tensor_of(x, {kRows, kCols}), random, 0.25);
    const std::vector<double> first = doubles(y);
    double least = 2, most = 0;
    for (double v : first) least = std::min(least, v), most = std::max(most, v);
    CHECK((least >= 0.75 && least < 0.85 && most <= 1.25 && most > 1.15));
    std::swap(samples[0], samples[1]);
    jitter(*stream, tensor_of(y, {kRows, kCols}), tensor_of(x, {kRows, kCols}), random, 0.25);
    const std::vector<double> swapped = doubles(y);
    std::swap(samples[0], samples[1]);
    for (size_t i = 0; i < first.size(); ++i)
      CHECK(first[i] == swapped[(i + first.size() / 2) % first.size()]);
    CHECK(first != swapped);
    // A run of the rows, as a rank has it.
    Guarded<T> part(2 * kCols);
    for (int64_t i = 0; i < 2 * kCols; ++i) part[i] = T(1.0f);
    random.rows.first_row = 2;
    jitter(*stream, tensor_of(part, {2, kCols}), tensor_of(part, {2, kCols}), random, 0.25);
    random.rows.first_row = 0;
    for (size_t i = 0; i < 2 * kCols; ++i) CHECK(doubles(part)[i] == first[2 * kCols + i]);
    CHECK((y.intact() && part.intact()));
  });
}

TEST_CASE("router: gradients of weights, of scores and of z equal central differences") {
  RouteArgs a = choices(6, 3);
  SECTION("softmax, renormalised") {}
  SECTION("softmax as it is, scaled") { a.renormalize = false, a.scale = 2.5; }
  SECTION("softmax over the chosen") { a.top_k_first = true, a.scale = 1.5; }
  SECTION("sigmoid, renormalised") { a.sigmoid = true, a.scale = 2.5; }
  SECTION("sigmoid") { a.sigmoid = true, a.renormalize = false; }
  SECTION("GShard's random second expert") {
    a.top_k = 2, a.scale = 1.5;
    a.selection = Selection::gshard_top2, a.threshold = 0.6;
  }
  SECTION("top-p") {
    a.selection = Selection::top_p, a.threshold = 0.6, a.renormalize = false, a.scale = 1.5;
  }
  SECTION("top-p, renormalised") { a.selection = Selection::top_p, a.threshold = 0.6; }
  SECTION("top-p, softmax over the chosen") {
    a.selection = Selection::top_p, a.threshold = 0.6, a.top_k_first = true;
  }
  SECTION("top-p of sigmoid scores") { a.selection = Selection::top_p, a.threshold = 0.4, a.sigmoid = true; }
  SECTION("given experts") { a.given = true, a.scale = 1.5; }
  SECTION("given experts, softmax over these") { a.given = a.top_k_first = true; }
  SECTION("zero experts") { a.zero_experts = 2, a.renormalize = false, a.scale = 1.5; }
  SECTION("zero experts, renormalised") { a.zero_experts = 3; }
  SECTION("zero experts, softmax over the chosen") { a.zero_experts = 3, a.top_k_first = true; }
  SECTION("zero experts of sigmoid scores and top-p") {
    a.zero_experts = 3, a.sigmoid = true, a.selection = Selection::top_p, a.threshold = 0.4;
  }
  SECTION("expert choice") {
    a.top_k = 6, a.renormalize = false;
    a.selection = Selection::expert_choice, a.capacity = 3;
  }
  constexpr int64_t kTokens = 8, kRuns = 2;
  const int64_t k = a.top_k;
  Routed r(kTokens, a, kRuns);
  Guarded<double> dlogits(kTokens * 6), dweights = random_array<double>(kTokens * k, 7),
                                        table = random_array<double>(kRuns * 6, 8);
  auto didentity = random_array<double>(kTokens, 9);
  Guarded<double> z(1);
  for (int64_t i = 0; a.given && i < kTokens * k; ++i)
    r.experts[i] = static_cast<int32_t>((i / k * 2 + i % k) % 6);
  r.run();
  for (int64_t i = 0; i < kTokens * k; ++i)
    if (r.slots[i] < 0) dweights[i] = 0;  // dropped tokens have no weight
  const auto value = [&] {
    r.run();
    z[0] = 0;
    add_z_loss(*r.stream, tensor_of(z, {1}), r.routing(), 0.7);
    add_router_entropy(*r.stream, tensor_of(z, {1}), r.routing(), a, 0.9);
    double sum = z[0];
    for (int64_t t = 0; a.zero_experts > 0 && t < kTokens; ++t) sum += didentity[t] * r.identity_weights[t];
    for (int64_t i = 0; i < kTokens * k; ++i) sum += dweights[i] * r.weights[i];
    for (int64_t g = 0; g < kRuns; ++g)
      for (int64_t i = 0; i < 6; ++i) sum += table[g * 6 + i] * r.statistics[(kRuns + g) * 6 + i];
    return sum;
  };
  value();
  route_backward(*r.stream, tensor_of(dlogits, {kTokens, 6}), tensor_of(dweights, {kTokens, k}), r.routing(),
                 tensor_of(table, {kRuns, 6}), 0.7, a, 0.9,
                 a.zero_experts > 0 ? tensor_of(didentity, {kTokens, 1}) : Tensor());
  for (int64_t i = 0; i < kTokens * 6; ++i) {
    const double before = r.logits[i], h = 1e-5;
    const auto at = [&](double v) {
      r.logits[i] = v;
      return value();
    };
    const double numeric = (at(before + h) - at(before - h)) / (2 * h);
    r.logits[i] = before;
    CHECK(dlogits[i] == Approx(numeric).margin(2e-8).epsilon(1e-6));
  }
}

TEST_CASE("router: zero experts are chosen as others, and have weights but no rows") {
  constexpr int64_t kTokens = 40;
  RouteArgs a = choices(6, 3);
  a.capacity = GENERATE(0, 9);
  Routed all(kTokens, a);
  all.run();
  a.zero_experts = 2;
  Routed r(kTokens, a);
  r.run();
  CHECK(r.experts.bits() == all.experts.bits());
  CHECK(r.weights.bits() == all.weights.bits());
  int64_t of_zero = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    double weight = 0;
    for (int64_t i = 3 * t; i < 3 * t + 3; ++i) {
      const bool zero = r.experts[i] >= 4;
      of_zero += zero;
      weight += zero ? r.weights[i] : 0;
      CHECK(r.slots[i] == (zero ? -1 : all.slots[i]));  // rows of the first experts come first
    }
    CHECK(r.identity_weights[t] == weight);
    CHECK(r.identity_rows[t] == t);
  }
  CHECK(of_zero > 20);
  for (int64_t e = 0; e < 4; ++e) CHECK(r.counts[e] == all.counts[e]);
  CHECK(r.counts[4] == -1);
  for (int64_t e = 0; e < 6; ++e) {
    CHECK(r.statistics[e] == all.statistics[e]);  // choices
    CHECK(r.statistics[12 + e] == (e < 4 ? all.statistics[12 + e] : 0));
  }
  CHECK((r.slots.intact() && r.counts.intact() && r.identity_weights.intact() && r.identity_rows.intact()));
  r.logits[2 * 6 + 5] = std::nan("");
  r.run();
  CHECK(r.counts[4] == 2);
}

TEST_CASE("the entropy of a router's scores: log E of equal ones, nearly none of sure ones") {
  RouteArgs a = choices(6, 2);
  a.sigmoid = GENERATE(false, true);
  Routed r(300, a);
  const auto entropy = [&] {
    r.run();
    Guarded<double> total(1);
    total[0] = 0;
    add_router_entropy(*r.stream, tensor_of(total, {1}), r.routing(), a, 1.0 / 300);
    return total[0];
  };
  std::fill(&r.logits[0], &r.logits[0] + 1800, -0.5);
  CHECK(entropy() == Approx(std::log(6.0)).epsilon(1e-14));
  for (int64_t t = 0; t < 300; ++t)
    for (int64_t i = 0; i < 6; ++i) r.logits[6 * t + i] = i == t % 6 ? 0 : -900;  // exp(-900) is 0
  CHECK(std::abs(entropy()) < 1e-14);
}

TEST_CASE("router: both instruction sets and any number of threads give the same bits of integers") {
  Routed one(1000, choices(16, 4), 4);
  one.run();
  Routed two(1000, choices(16, 4), 4);
  with_threads(2, [&] { two.run(); });
  CHECK(one.slots.bits() == two.slots.bits());
  CHECK(one.statistics.bits() == two.statistics.bits());
}

TEST_CASE("rows go to experts and come back: the identity, and its backward") {
  RouteArgs a = choices(4, 2);
  a.capacity = GENERATE(0, 3);
  Routed r(9, a);
  r.run();
  const int64_t rows = r.kept(), cols = 5;
  auto x = random_array<double>(9 * cols, 1), dy = random_array<double>(9 * cols, 2);
  Guarded<double> sorted(18 * cols), y(9 * cols), dz(18 * cols), dweights(18);
  permute_rows(*r.stream, tensor_of(sorted, {18, cols}), tensor_of(x, {9, cols}), r.routing(), rows);
  combine_rows(*r.stream, tensor_of(y, {9, cols}), tensor_of(sorted, {18, cols}), r.routing(), true);
  combine_rows_backward(*r.stream, tensor_of(dz, {18, cols}), tensor_of(dweights, {9, 2}),
                        tensor_of(dy, {9, cols}), tensor_of(sorted, {18, cols}), r.routing());
  for (int64_t t = 0; t < 9; ++t) {
    double kept = 0, dot = 0;
    for (int64_t c = 0; c < cols; ++c) dot += x[t * cols + c] * dy[t * cols + c];
    for (int64_t j = 0; j < 2; ++j) {
      const int64_t slot = r.slots[2 * t + j];
      CHECK(dweights[2 * t + j] == Approx(slot < 0 ? 0 : dot).margin(1e-12));
      if (slot < 0) continue;
      kept += r.weights[2 * t + j];
      for (int64_t c = 0; c < cols; ++c)
        CHECK(dz[slot * cols + c] == Approx(r.weights[2 * t + j] * dy[t * cols + c]).margin(1e-14));
    }
    if (a.capacity == 0) CHECK(kept == Approx(1));
    for (int64_t c = 0; c < cols; ++c) CHECK(y[t * cols + c] == Approx(kept * x[t * cols + c]).margin(1e-14));
  }
}
