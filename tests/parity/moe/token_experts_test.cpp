// Experts of token ids, hash routing and frozen routers: every layout trains as one process does.
#include <map>
#include <set>

#include "tests/parity/moe/moe_jobs.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions by_token(bool hash) {
  TinyOptions o = tiny_moe();
  o.steps = 4;
  o.layers = 4;
  o.moe.norm_topk_prob = false;
  if (hash) {
    o.moe.kind = RouterKind::hash;
  } else {
    o.moe.freeze_step = 3;
    o.moe.balance = BalanceLoss::switch_loss;
  }
  return o;
}

struct Case {
  const char* name;
  void (*change)(TinyOptions&);
};

}  // namespace

TEST_CASE("experts of token ids, under every layout", "[expert]") {
  const bool hash = GENERATE(true, false);
  TinyOptions one = by_token(hash);
  one.micro_batch = 4;
  const TinyResult base = train_tiny(one);
  CHECK(base.plan_bytes == base.used_bytes);
  for (const Case& c :
       {Case{"expert 2, ZeRO-1",
             [](TinyOptions& o) { o.ranks = o.expert = 2, o.zero_stage = 1, o.micro_batch = 2; }},
        {"ZeRO-3, expert 4",
         [](TinyOptions& o) { o.ranks = o.expert = 4, o.zero_stage = 3, o.micro_batch = 1; }},
        {"tensor 2 with sequence", [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true; }},
        {"experts over tensor 2 and data 2",
         [](TinyOptions& o) {
           o.ranks = o.tensor = 2, o.expert = 4, o.zero_stage = 1, o.micro_batch = 2;
           o.sequence_parallel = true, o.expert_tensor = false;
         }},
        {"context 2", [](TinyOptions& o) { o.context = 2; }},
        {"recomputed layers", [](TinyOptions& o) { o.recompute.run = 1; }},
        {"micro-batches by turns", [](TinyOptions& o) { o.interleaved = true, o.expert = 1; }},
        {"pipeline 2, 1f1b", [](TinyOptions& o) { o.pipeline = 2; }},
        {"pipeline 2, zb-h1", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zb-h1"; }}}) {
    TinyOptions many = one;
    c.change(many);
    INFO((hash ? "hash, " : "frozen, ") << c.name);
    const TinyResult result = train_tiny(many);
    require_parity(base, result, 1e-12);
    CHECK(result.plan_bytes == result.used_bytes);
  }
}

TEST_CASE("a token id has the same experts wherever it is", "[expert]") {
  for (const bool hash : {true, false}) {
    TinyOptions o = by_token(hash);
    std::map<std::pair<int64_t, int32_t>, std::set<std::vector<int32_t>>> chosen;  // keys: layer and token
    TinyHooks hooks;
    o.choices = ProgramOptions::Choices::record;
    hooks.after_step = [&](const TinyRank& rank, int64_t step, const std::vector<HostBatch>& batches) {
      if (step < o.steps) return;
      for (size_t micro = 0; micro < batches.size(); ++micro)
        for (size_t layer = 0; layer < rank.program.router_layers().size(); ++layer) {
          const std::vector<int32_t> all = rank.program.read_choices(static_cast<int64_t>(micro), layer);
          for (size_t row = 0; row < batches[micro].tokens.size(); ++row)
            chosen[{static_cast<int64_t>(layer), batches[micro].tokens[row]}].insert(
                {all.begin() + static_cast<int64_t>(2 * row),
                 all.begin() + static_cast<int64_t>(2 * row) + 2});
        }
    };
    train_tiny(o, {}, hooks);
    std::set<std::vector<int32_t>> different;
    for (const auto& [token, experts] : chosen) {
      REQUIRE(experts.size() == 1);
      REQUIRE(experts.begin()->at(0) != experts.begin()->at(1));
      different.insert(*experts.begin());
    }
    CHECK(chosen.size() > 100);
    CHECK(different.size() > 20);
    chosen.clear();
    o.moe.kind = RouterKind::learned;  // negative control: a token's experts depend on those before it
    o.moe.freeze_step = 0;
    train_tiny(o, {}, hooks);
    CHECK(std::any_of(chosen.begin(), chosen.end(), [](const auto& of) { return of.second.size() > 1; }));
  }
}
