// Streaming DiLoCo: fragments, delay and merge. Layouts inside a site, bytes by step, and checkpoints.
#include "runtime/checkpoint/training_state.h"
#include "tests/parity/parity.h"
#include "tests/parity/recipe_job.h"
#include "tests/parity/site_layouts.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions streaming(int64_t fragments, int64_t delay, double merge, int64_t steps) {
  TinyOptions o;
  o.optimizer.diloco = {
      .sites = 2, .inner_steps = 4, .fragments = fragments, .delay = delay, .merge = merge, .shares = {}};
  o.steps = steps;
  return o;
}

}  // namespace

TEST_CASE("a site of any layout trains fragments, with a delay and a merge, as a site of one rank") {
  // Ends while a difference is on its way.
  const TinyOptions job = streaming(2, 1, 0.5, 9);
  const TinyResult one = train_tiny(job);
  CHECK(one.sites.at(0) != one.sites.at(1));
  CHECK(one.used_wire == one.plan_wire);
  CHECK(one.used_bytes == one.plan_bytes);
  for (const NamedLayout& l : site_layouts()) {
    INFO(l.name);
    TinyOptions o = job;
    l.set(o);
    const TinyResult many = train_tiny(o);
    require_parity(one, many, 1e-11);
    CHECK(worst_relative(one.sites.at(1), many.sites.at(1)) < 1e-9);
    CHECK(many.used_wire == many.plan_wire);
    CHECK(many.used_bytes == many.plan_bytes);
  }
}

TEST_CASE("fragments of tied embeddings agree on both stages, and experts and bf16 train as planned") {
  TinyOptions o = streaming(2, 1, 0.25, 8);
  SECTION("tied over a pipeline") {
    o.tied = true;
    const TinyResult one = train_tiny(o);
    o.pipeline = 2;
    require_parity(one, train_tiny(o), 1e-11);
    return;
  }
  o.ranks = 2, o.zero_stage = 1;
  SECTION("bf16") { o.precision = "bf16"; }
  SECTION("experts") {
    o.architecture = "mixtral";
    o.moe.num_experts = 4, o.moe.top_k = 2;
  }
  const TinyResult r = train_tiny(o);
  CHECK(r.used_wire == r.plan_wire);
  CHECK(r.used_bytes == r.plan_bytes);
}

TEST_CASE("fragments divide the bytes of a round, and a delay moves them to the steps of differences") {
  const auto by_step = [](int64_t fragments, int64_t delay) {
    std::vector<int64_t> bytes;
    int64_t before = 0;
    for (int64_t steps = 1; steps <= 4; ++steps) {
      const int64_t all = sent_to_sites(train_tiny(streaming(fragments, delay, 0.5, steps)));
      bytes.push_back(all - before);
      before = all;
    }
    return bytes;
  };
  const std::vector<int64_t> whole = by_step(1, 0), halves = by_step(2, 0), later = by_step(2, 1);
  const int64_t requests = 16;  // two numbers of which a rank sends half, twice
  CHECK(whole == std::vector<int64_t>{0, 0, 0, whole[3]});
  CHECK(halves == std::vector<int64_t>{0, halves[1], 0, halves[3]});
  CHECK(halves[1] + halves[3] == whole[3]);
  CHECK(halves[1] > whole[3] / 4);
  CHECK(halves[3] > whole[3] / 4);
  CHECK(later == std::vector<int64_t>{halves[1], 0, halves[3] - requests, requests});
}

TEST_CASE("a delay and a merge change the weights, and a merge of none without them is DiLoCo") {
  const TinyResult plain = train_tiny(streaming(1, 0, 0, 8));
  CHECK(plain.sites.at(0) == plain.sites.at(1));
  for (const TinyOptions& o : {streaming(2, 0, 0, 8), streaming(1, 1, 0, 8), streaming(1, 0, 0.5, 8)}) {
    const TinyResult other = train_tiny(o);
    CHECK(worst_relative(plain.parameters, other.parameters) > 1e-5);
  }
}

TEST_CASE("a run of fragments goes on from any step bit for bit, while a difference is on its way too") {
  TinyOptions whole = streaming(2, 1, 0.5, 9);
  whole.precision = GENERATE("fp64", "bf16");
  const bool sharded = GENERATE(false, true);
  if (sharded) whole.ranks = 2, whole.zero_stage = 1;
  const TinyResult unbroken = train_tiny(whole);
  for (const int64_t step : {3, 4, 5, 6}) {  // differences leave after steps 1, 3, 5 and 7
    INFO("saved after step " << step);
    TinyOptions first = whole;
    first.steps = step;
    TemporaryFolder folder;
    train_tiny(first, {}, saves(first, folder.path(), step));
    const TinyResult rest = train_tiny(whole, {}, resumes(whole, folder.path()));
    CHECK(unbroken.sites == rest.sites);
    CHECK(unbroken.eval_loss == rest.eval_loss);
  }
}

TEST_CASE("other sites, fragments and delays go on from a step between differences") {
  TinyOptions whole = streaming(2, 1, 0.5, 8);
  const auto resume_at = [&](int64_t step, const DilocoSettings& d) {
    TinyOptions first = whole, rest = whole;
    first.steps = step;
    rest.optimizer.diloco = d;
    TemporaryFolder folder;
    train_tiny(first, {}, saves(first, folder.path(), step));
    return train_tiny(rest, {}, resumes(rest, folder.path()));
  };
  DilocoSettings sites = whole.optimizer.diloco, plain = sites, delay = sites;
  sites.sites = 4;
  plain.fragments = 1, plain.delay = 0, plain.merge = 0;
  delay.fragments = 1, delay.delay = 3;
  CHECK(resume_at(4, sites).sites.size() == 4);
  const TinyResult joined = resume_at(4, plain);
  CHECK(joined.sites.at(0) == joined.sites.at(1));  // after step 8
  resume_at(4, delay);
  resume_at(4, {});
  // A delay that begins between a difference and its update takes both at once.
  whole = streaming(1, 0, 0.5, 8);
  resume_at(6, delay);
}

TEST_CASE("sums of 8 bits over sites have the same bits on every site and in every data layout, as planned") {
  TinyOptions plain = streaming(1, 0, 0, 8);
  plain.precision = "fp32";
  TinyOptions o = plain;
  o.optimizer.diloco.sum = SiteSum::int8;
  const TinyResult exact = train_tiny(plain), one = train_tiny(o);
  CHECK(one.sites.at(0) == one.sites.at(1));
  CHECK(one.used_wire == one.plan_wire);
  CHECK(one.used_bytes == one.plan_bytes);
  CHECK(worst_relative(exact.parameters, one.parameters) > 1e-6);
  CHECK(worst_relative(exact.parameters, one.parameters) < 0.05);
  // A byte for each element and four for each 256, in blocks of 512 for two sites: a quarter, and padding.
  const double ratio = static_cast<double>(sent_to_sites(train_tiny(o))) /
                       static_cast<double>(sent_to_sites(train_tiny(plain)));
  CHECK(ratio > 260.0 / 1024);
  CHECK(ratio < 0.3);
  o = streaming(2, 1, 0.5, 9);
  o.optimizer.diloco.sum = SiteSum::int8;
  const TinyResult streamed = train_tiny(o);
  const std::vector<NamedLayout> layouts{
      {"data 2", [](TinyOptions& l) { l.ranks = 2; }},
      {"ZeRO-1", [](TinyOptions& l) { l.ranks = 2, l.zero_stage = 1; }},
      {"ZeRO-3", [](TinyOptions& l) { l.ranks = 2, l.zero_stage = 3; }},
      {"pipeline 2", [](TinyOptions& l) { l.pipeline = 2; }},
      {"context 2, ZeRO-1", [](TinyOptions& l) { l.context = 2, l.zero_stage = 1; }}};
  for (const NamedLayout& l : layouts) {
    INFO(l.name);
    TinyOptions many = o;
    l.set(many);
    const TinyResult r = train_tiny(many);
    require_parity(streamed, r, 1e-11);
    CHECK(r.used_wire == r.plan_wire);
    CHECK(r.used_bytes == r.plan_bytes);
  }
  TinyOptions first = o;
  first.steps = 5;  // a difference is on its way
  TemporaryFolder folder;
  train_tiny(first, {}, saves(first, folder.path(), 5));
  CHECK(train_tiny(o, {}, resumes(o, folder.path())).sites == streamed.sites);
}
