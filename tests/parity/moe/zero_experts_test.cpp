// Zero experts: the controller of experts a token, and records of their choices.
#include <numeric>

#include "tests/parity/moe/moe_jobs.h"
#include "tests/parity/moe/routing_jobs.h"
#include "tests/parity/parity.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions with_zero_experts() {
  TinyOptions o = tiny_moe();
  o.moe.zero_experts = 8;
  o.moe.top_k = 4;
  o.moe.norm_topk_prob = false;
  return o;
}

/// Mean number of real experts a token in the steps from `first` to before `end`.
double experts_per_token(const TinyOptions& o, const TinyResult& r, size_t first, size_t end) {
  double chosen = 0;
  for (size_t step = first; step < end; ++step)
    for (const std::vector<double>& layer : r.experts[step].chosen)
      chosen += std::accumulate(layer.begin(), layer.end(), 0.0);
  const auto tokens = static_cast<double>(o.global_batch * o.seq);
  return chosen / (tokens * o.layers * static_cast<double>(end - first));
}

}  // namespace

TEST_CASE("biases lead the mean number of real experts to experts_per_token", "[expert]") {
  TinyOptions o = with_zero_experts();
  o.steps = 80;
  o.moe.bias_update_rate = 0.5;
  for (const double mean : {1.25, 3.0}) {
    o.moe.experts_per_token = mean;
    const TinyResult r = train_tiny(o);
    CHECK(std::abs(experts_per_token(o, r, 0, 1) - mean) > 0.4);
    CHECK(experts_per_token(o, r, 60, 80) == Approx(mean).margin(0.1));
  }
  // Negative control: without a target half of the choices are of real experts, as half of the experts are.
  o.moe.experts_per_token.reset();
  o.moe.bias_update_rate = 0.01;
  CHECK(experts_per_token(o, train_tiny(o), 60, 80) == Approx(2).margin(0.2));
}

TEST_CASE("a record with zero experts replays with its bits, and under another layout", "[expert]") {
  TinyOptions o = with_zero_experts();
  o.micro_batch = 2;
  const TemporaryFolder at;
  const TinyResult recorded = record_routing(o, at.path()), replayed = replay_routing(o, at.path());
  check_same_bits(recorded, replayed);
  CHECK(experts_per_token(o, recorded, 0, 2) < 3);
  TinyOptions many = o;
  many.ranks = many.expert = 2, many.zero_stage = 1;
  require_parity(replayed, replay_routing(many, at.path()), 1e-12);
}
