#include "kernels/attention/attention_sinks.h"
#include "kernels/attention/latent_heads.h"
#include "kernels/matmul/grouped/grouped_bias.h"
#include "kernels/moe/balance.h"
#include "kernels/moe/jitter.h"
#include "kernels/moe/route.h"
#include "kernels/moe/router_bias.h"
#include "kernels/moe/shared_capacity.h"
#include "kernels/moe/sort_choices.h"
#include "kernels/moe/token_rows.h"
#include "kernels/norm/clip_qkv.h"
#include "kernels/norm/head_norm.h"
#include "tests/cuda/twin.h"

using namespace ltrain;
using namespace ltrain::test;

TEST_CASE("router, rows of experts and losses for balance") {
  if (!have_cuda()) return;
  constexpr int64_t kTokens = 600, kExperts = 8, kRuns = 2, kCols = 24;
  for (DType t : {DType::f32, DType::f64})
    for (const int kind : {0, 1, 2, 3, 4, 5}) {
      CAPTURE(dtype_name(t), kind);
      RouteArgs a;
      a.experts = kExperts, a.top_k = 2;
      if (kind == 5) a.zero_experts = 3;
      if (kind == 4) a.selection = Selection::top_p, a.threshold = 0.5;
      a.sigmoid = kind == 1, a.top_k_first = kind == 2, a.renormalize = kind != 3;
      if (kind == 1) a.groups = 4, a.kept_groups = 2, a.scale = 2.5;
      if (kind >= 2) a.capacity = 130, a.drop = kind == 3 ? Drop::last_token : Drop::least_weight;
      Twin w(t);
      const auto logits = w.random(t, {kTokens, kExperts}, 2), bias = w.random(t, {kExperts}, 0.1);
      const auto norm = w.blank(t, {kTokens, 2}), weights = w.blank(t, {kTokens, 2});
      const auto experts = w.blank(DType::i32, {kTokens, 2}), slots = w.blank(DType::i32, {kTokens, 2});
      const auto sources = w.blank(DType::i32, {kTokens * 2}),
                 counts = w.blank(DType::i64, {a.real_experts() + 1});
      const auto statistics = w.blank(DType::f64, {2 * kRuns + 1, kExperts});
      const auto table = w.blank(DType::f64, {kRuns, kExperts}),
                 total = w.of(DType::f64, {1}, [](int64_t) { return 1; });
      const auto dweights = w.random(t, {kTokens, 2}), dlogits = w.blank(t, {kTokens, kExperts});
      const auto identity = w.blank(t, {kTokens, 1}), tokens = w.blank(DType::i32, {kTokens, 1}),
                 didentity = w.random(t, {kTokens, 1});
      const auto x = w.random(t, {kTokens, kCols}),
                 rows = w.of(t, {kTokens * 2, kCols}, [](int64_t i) { return i % 7; });
      const auto y = w.blank(t, {kTokens, kCols}), dz = w.blank(t, {kTokens * 2, kCols}),
                 dw = w.blank(t, {kTokens, 2});
      const auto some_slots = w.blank(DType::i32, {kTokens, 2}), some_counts = w.blank(DType::i64, {4}),
                 some_sources = w.of(DType::i32, {kTokens * 2}, [](int64_t) { return 0; });
      BalanceArgs balance;
      balance.kind = kind % 2 ? Balance::uniform : Balance::load;
      balance.experts = kExperts, balance.tokens = kTokens / kRuns, balance.coeff = 0.3;
      w.check([&](Stream& s, const Twin::At& at) {
        const Routing r{at(logits), at(norm),       at(experts),     at(weights),  at(slots), at(sources),
                        at(counts), at(statistics), kTokens / kRuns, at(identity), at(tokens)};
        route_forward(s, r, kind == 1 ? at(bias) : Tensor(), a);
        const Tensor sums = at(statistics).narrow(0, 2 * kRuns);
        balance_loss(s, at(table), at(total), sums, sums, balance);
        add_z_loss(s, at(total), r, 0.01);
        add_router_entropy(s, at(total), r, a, 0.03);
        route_backward(s, at(dlogits), at(dweights), r, at(table), 0.02, a, kind % 2 * 0.3,
                       kind == 5 ? at(didentity) : Tensor());
        permute_rows(s, at(rows), at(x), r, a.capacity || kind == 5 ? 500 : 2 * kTokens);
        combine_rows(s, at(y), at(rows), r, true);
        combine_rows_backward(s, at(dz), at(dw), at(y), at(rows), r);
        Routing some = r;
        some.slots = at(some_slots), some.sources = at(some_sources), some.counts = at(some_counts);
        ChosenExperts which{2, {3, 6}, kind % 2 ? 2 : 0, kind == 3};
        sort_choices(s, some, r.slots, r.counts, which);
      });
    }
}

TEST_CASE("a router whose experts are given") {
  if (!have_cuda()) return;
  constexpr int64_t kTokens = 600, kExperts = 8;
  for (DType t : {DType::f32, DType::f64}) {
    CAPTURE(dtype_name(t));
    RouteArgs a;
    a.experts = kExperts, a.top_k = 2, a.given = true;
    Twin w(t);
    const auto logits = w.random(t, {kTokens, kExperts}, 2);
    const auto norm = w.blank(t, {kTokens, 2}), weights = w.blank(t, {kTokens, 2});
    const auto experts = w.of(DType::i32, {kTokens, 2}, [](int64_t i) {
      return i / 2 % 7 == 3 ? -1 : (i / 2 * 3 + i % 2 * 5) % kExperts;  // some tokens choose
    });
    const auto slots = w.blank(DType::i32, {kTokens, 2}), sources = w.blank(DType::i32, {kTokens * 2});
    const auto counts = w.blank(DType::i64, {kExperts + 1});
    const auto statistics = w.blank(DType::f64, {3, kExperts});
    const auto dweights = w.random(t, {kTokens, 2}), dlogits = w.blank(t, {kTokens, kExperts});
    w.check([&](Stream& s, const Twin::At& at) {
      const Routing r{.logits = at(logits),
                      .norm = at(norm),
                      .experts = at(experts),
                      .weights = at(weights),
                      .slots = at(slots),
                      .sources = at(sources),
                      .counts = at(counts),
                      .statistics = at(statistics),
                      .run = kTokens,
                      .identity_weights = {},
                      .identity_rows = {}};
      route_forward(s, r, {}, a);
      route_backward(s, at(dlogits), at(dweights), r, {}, 0.02, a);
    });
  }
}

TEST_CASE("a capacity of several ranks' tokens") {
  if (!have_cuda()) return;
  constexpr int64_t kTokens = 600, kExperts = 8, kTopK = 2;
  const GatheredTokens order{3, 200, 4, true};
  for (DType t : {DType::f32, DType::f64})
    for (const Drop drop : {Drop::least_weight, Drop::last_token, Drop::later_choice})
      for (const int64_t capacity : {20, 600}) {
        CAPTURE(dtype_name(t), to_string(drop), capacity);
        RouteArgs a;
        a.experts = kExperts, a.top_k = kTopK, a.drop = drop;
        Twin w(t);
        const auto experts = w.of(DType::i32, {kTokens, kTopK}, [](int64_t i) {
          const int64_t e = (i / kTopK * 5 + i % kTopK * 3 + i / 96) % kExperts;
          return i % 11 == 3 ? -1 - e : e;  // some were not chosen
        });
        const auto weights =
            w.of(t, {kTokens, kTopK}, [](int64_t i) { return static_cast<double>(i * 37 % 64) / 64; });
        const auto kept = w.blank(DType::i32, {kTokens / 4, kTopK}), counts = w.blank(DType::f64, {kExperts});
        w.check([&](Stream& s, const Twin::At& at) {
          keep_of_all(s, at(kept), at(counts), at(experts), at(weights), order, kTokens / 4, capacity, a);
        });
      }
}

TEST_CASE("GShard's random second expert, and expert choice") {
  if (!have_cuda()) return;
  constexpr int64_t kTokens = 600, kExperts = 8, kCols = 24, kEach = 90;
  for (DType t : {DType::f32, DType::f64})
    for (const bool choose : {false, true}) {
      CAPTURE(dtype_name(t), choose);
      RouteArgs a;
      a.experts = kExperts, a.top_k = choose ? kExperts : 2;
      a.selection = choose ? Selection::expert_choice : Selection::gshard_top2;
      a.renormalize = !choose;
      a.capacity = choose ? kEach : 100;
      a.drop = choose ? Drop::least_weight : Drop::later_choice;
      a.threshold = 0.5;
      Twin w(t);
      const int64_t k = a.top_k, rows = choose ? kExperts * kEach : 400;  // some of the first
      const auto logits = w.random(t, {kTokens, kExperts}, 2);
      const auto norm = w.blank(t, {kTokens, 2}), weights = w.blank(t, {kTokens, k});
      const auto experts = w.blank(DType::i32, {kTokens, k}), slots = w.blank(DType::i32, {kTokens, k});
      const auto sources = w.blank(DType::i32, {choose ? kExperts * kEach : kTokens * 2});
      const auto counts = w.blank(DType::i64, {kExperts + 1});
      const auto statistics = w.blank(DType::f64, {3, kExperts});
      const auto dweights = w.random(t, {kTokens, k}), dlogits = w.blank(t, {kTokens, kExperts});
      const auto x = w.random(t, {kTokens, kCols}),
                 sorted = w.of(t, {kTokens * k, kCols}, [](int64_t i) { return i % 7; });
      const auto y = w.blank(t, {kTokens, kCols});
      const auto sample_index = w.of(DType::i64, {2}, [](int64_t i) { return 40 + 7 * i; });
      w.check([&](Stream& s, const Twin::At& at) {
        const Routing r{at(logits), at(norm),       at(experts), at(weights), at(slots), at(sources),
                        at(counts), at(statistics), kTokens,     {},          {}};
        RowRandom random;
        random.seed = 3, random.stream = 4;
        random.sample_index = at(sample_index);
        random.rows.seq = kTokens / 2;
        route_forward(s, r, {}, a, random);
        route_backward(s, at(dlogits), at(dweights), r, {}, 0, a);
        permute_rows(s, at(sorted), at(x), r, rows);
        combine_rows(s, at(y), at(sorted), r, true);
      });
    }
}

TEST_CASE("noise on what a router reads, and its bias") {
  if (!have_cuda()) return;
  for (DType t : kFloats) {
    Twin w(t);
    const auto x = w.random(t, {37, 21}), y = w.blank(t, {37, 21});
    const auto sample_index = w.of(DType::i64, {8}, [](int64_t i) { return 40 + 7 * i; });
    w.check([&](Stream& s, const Twin::At& at) {
      RowRandom random;
      random.seed = 3, random.stream = 4;
      random.sample_index = at(sample_index);
      random.rows.seq = 5;
      random.rows.first_row = 2;
      jitter(s, at(y), at(x), random, 0.1);
    });
  }
  for (DType t : {DType::f32, DType::f64}) {
    Twin w(t);
    const auto bias = w.random(t, {5, 300}),
               chosen = w.of(DType::f64, {5, 602}, [](int64_t i) { return i / 602 == 2 ? 0 : i % 7; });
    w.check([&](Stream& s, const Twin::At& at) { move_router_bias(s, at(bias), at(chosen), 0.125); });
  }
}

TEST_CASE("norms of heads") {
  if (!have_cuda()) return;
  for (DType t : kFloats) {
    Twin w(t);
    const int64_t kRows = GENERATE(37, 0);
    constexpr int64_t kHeads = 3, kWidth = 20;
    const auto y = w.random(t, {kRows, 100}), dy = w.random(t, {kRows, 100}), weight = w.random(t, {kWidth});
    const DType stat = t == DType::f64 ? DType::f64 : DType::f32;
    const auto x = w.blank(t, {kRows, kHeads * kWidth}), rstd = w.blank(stat, {kRows, kHeads});
    const auto dweight = w.blank(stat, {kWidth});
    for (const double offset : {0.0, 1.0}) {
      const HeadNorm part{8, kHeads, kWidth, 1e-5, offset};
      w.check([&](Stream& s, const Twin::At& at) {
        head_norm_forward(s, at(y), at(x), at(rstd), at(weight), part);
        head_norm_backward(s, at(dy), at(dweight), at(x), at(rstd), at(weight), part, false);
        clip_heads_backward(s, at(dy), at(x), at(rstd), at(weight), part, 0.7);
        head_norm_forward(s, at(y), {}, {}, at(weight), part);
        clip_qkv_forward(s, at(y), 0.7);
        clip_values_backward(s, at(dy), at(y), 1, 0.7);
      });
    }
  }
}

TEST_CASE("heads of latent attention, put together and taken apart") {
  if (!have_cuda()) return;
  for (DType t : kFloats)
    for (const LatentHeads& p :
         {LatentHeads{3, 6, 4, 5}, LatentHeads{2, 16, 8, 16}, LatentHeads{2, 3, 2, 9}}) {
      CAPTURE(dtype_name(t), p.heads);
      Twin w(t);
      const int64_t rows = GENERATE(37, 0), all = p.heads * p.width(), parts = p.heads * (p.nope + p.value);
      const auto q = w.random(t, {rows, all}), kv = w.random(t, {rows, parts}),
                 shared = w.random(t, {rows, p.rope}), qkv = w.random(t, {rows, p.qkv_width()});
      const auto dq = w.random(t, {rows, all}), dkv = w.random(t, {rows, parts}),
                 dshared = w.random(t, {rows, p.rope}), dqkv = w.random(t, {rows, p.qkv_width()});
      w.check([&](Stream& s, const Twin::At& at) {
        latent_heads_forward(s, at(qkv), at(q), at(kv), at(shared), p);
        latent_heads_backward(s, at(dq), at(dkv), at(dshared), at(dqkv), p);
      });
    }
}

TEST_CASE("sinks of attention, of all heads and of some") {
  if (!have_cuda()) return;
  for (DType t : kFloats) {
    Twin w(t);
    constexpr int64_t kBatch = 2, kHeads = 3, kRows = 45, kDim = 20;
    const DType stat = t == DType::f64 ? DType::f64 : DType::f32;
    const auto out = w.random(t, {kBatch * kRows, kHeads * kDim}),
               dout = w.random(t, {kBatch * kRows, kHeads * kDim});
    const auto lse = w.random(stat, {kBatch, kHeads, kRows}, 3), sinks = w.random(t, {5}, 3);
    const auto dsinks = w.random(stat, {5}), some = w.random(t, {kHeads}, 3),
               dsome = w.random(stat, {kHeads});
    w.check([&](Stream& s, const Twin::At& at) {
      attention_sinks_forward(s, at(out), at(lse), at(sinks), 1);
      attention_sinks_backward(s, at(dsinks), at(dout), at(out), at(lse), at(sinks), 2, false);
      attention_sinks_backward(s, at(dsome), at(dout), at(out), at(lse), at(some), 0, true);
    });
  }
}

TEST_CASE("biases of experts") {
  if (!have_cuda()) return;
  for (DType t : kFloats) {
    Twin w(t);
    const DType stat = t == DType::f64 ? DType::f64 : DType::f32;
    const auto y = w.random(t, {50, 24}), bias = w.random(t, {4, 2, 12}), dbias = w.random(stat, {4, 2, 12});
    const GroupRows rows = GENERATE(GroupRows{7, 0, 30, 2}, GroupRows{0, 0, 0, 0});
    w.check([&](Stream& s, const Twin::At& at) {
      grouped_add_bias(s, at(y), at(bias), rows);
      grouped_sum_rows(s, at(dbias), at(y), rows, false);
      grouped_sum_rows(s, at(dbias), at(y), rows, true);
    });
    const auto x = w.random(t, {50, 24}), factors = w.random(stat, {4, 24, 2});
    w.check([&](Stream& s, const Twin::At& at) {
      grouped_scale_columns(s, at(y), at(x), at(factors), rows);
      grouped_magnitude_gradient(s, at(dbias), at(y), at(x), at(factors), rows, false);
      grouped_magnitude_gradient(s, at(dbias), at(y), at(x), at(factors), rows, true);
    });
  }
}
