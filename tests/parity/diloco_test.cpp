// DiLoCo: sites that train apart. Layouts inside a site, bytes between sites, and checkpoints.
#include <map>
#include <mutex>

#include "runtime/checkpoint/training_state.h"
#include "tests/parity/parity.h"
#include "tests/parity/recipe_job.h"
#include "tests/parity/site_layouts.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions sites_of(int sites, int64_t inner_steps) {
  TinyOptions o;
  o.optimizer.diloco = {.sites = sites, .inner_steps = inner_steps, .shares = {}};
  o.steps = 2 * inner_steps;
  return o;
}

}  // namespace

TEST_CASE("sites that synchronize after every step with a plain outer step are data parallel") {
  TinyOptions parallel;
  parallel.ranks = 2, parallel.clip = 0, parallel.optimizer.rule = UpdateRule::sgd;
  parallel.optimizer.sgd_momentum = 0;
  TinyOptions sites = parallel;
  sites.ranks = 1;
  DilocoSettings& d = sites.optimizer.diloco;
  d = {.sites = 2, .inner_steps = 1, .outer_lr = 1, .outer_momentum = 0, .nesterov = true, .shares = {}};
  const TinyResult want = train_tiny(parallel), got = train_tiny(sites);
  CHECK(worst_relative(want.parameters, got.parameters) < 1e-13);
  CHECK(got.eval_loss == Approx(want.eval_loss).epsilon(1e-12));  // over the batches of both sites
  // Negative controls: another outer step, and tokens that sites count unequally.
  d.outer_lr = 0.7;
  CHECK(worst_relative(want.parameters, train_tiny(sites).parameters) > 1e-4);
  d.outer_lr = 1;
  parallel.padded_targets = sites.padded_targets = true;
  CHECK(worst_relative(train_tiny(parallel).parameters, train_tiny(sites).parameters) > 1e-6);
}

TEST_CASE("a site of any layout trains as a site of one rank, and sites agree when they synchronize") {
  const TinyResult one = train_tiny(sites_of(2, 2));
  CHECK(one.sites.at(0) == one.sites.at(1));
  // Between synchronizations sites are apart.
  TinyOptions between = sites_of(2, 2);
  between.steps = 3;
  const TinyResult mid = train_tiny(between);
  CHECK(mid.sites.at(0) != mid.sites.at(1));

  for (const NamedLayout& l : site_layouts()) {
    INFO(l.name);
    TinyOptions o = sites_of(2, 2);
    l.set(o);
    const TinyResult many = train_tiny(o);
    require_parity(one, many, 1e-11);
    CHECK(many.sites.at(0) == many.sites.at(1));
    CHECK(many.used_wire == many.plan_wire);
    CHECK(many.used_bytes == many.plan_bytes);
  }
}

TEST_CASE("sites of 16-bit weights and of experts train in every layout as planned") {
  TinyOptions o = sites_of(2, 2);
  o.ranks = 2, o.zero_stage = 1;
  SECTION("bf16") { o.precision = "bf16"; }
  SECTION("Muon") { o.optimizer.rule = UpdateRule::muon; }
  SECTION("Adafactor") { o.optimizer.rule = UpdateRule::adafactor; }
  SECTION("experts with a correction bias") {
    o.architecture = "deepseek_v3";
    o.moe.num_experts = 4, o.moe.top_k = 2, o.moe.bias_update_rate = 0.01;
    o.expert = 2;
  }
  std::mutex mutex;
  std::map<std::string, std::vector<double>> biases;  // biases of routers, by name
  bool biases_differ = false;
  TinyHooks hooks;
  hooks.end = [&](const TinyRank& at) {
    std::lock_guard lock(mutex);
    for (const RegisteredBuffer& k : at.program.parameters().kept(false)) {
      const double* values = k.tensor.ptr<double>();
      const std::vector<double> bias(values, values + k.tensor.elements());
      if (biases.emplace(k.name, bias).first->second != bias) biases_differ = true;
    }
  };
  const TinyResult r = train_tiny(o, {}, hooks);
  CHECK(biases.empty() == (o.moe.num_experts == 0));
  CHECK_FALSE(biases_differ);
  CHECK(r.sites.at(0) == r.sites.at(1));
  if (o.expert == 1) CHECK(r.used_wire == r.plan_wire);  // else it depends on where tokens go
  CHECK(r.used_bytes == r.plan_bytes);
}

TEST_CASE("sites send their weights once in a round, and nothing between") {
  const auto sent_with = [](int64_t inner, int64_t steps) {
    TinyOptions o = sites_of(2, inner);
    o.steps = steps;
    return sent_to_sites(train_tiny(o));
  };
  const TinyResult once = train_tiny(sites_of(2, 6));
  int64_t parameters = 0;
  for (const auto& [name, x] : once.parameters) parameters += static_cast<int64_t>(x.size());
  // Each of two ranks sends half of a sum and half of the result: all elements, and two requests.
  const int64_t round = sent_with(12, 12), elements = round / 8 - 2;
  CHECK(round % 8 == 0);
  CHECK(elements >= parameters);
  CHECK(elements < parameters + 100);  // padding of buckets
  for (const int64_t inner : {1, 2, 3, 6}) CHECK(sent_with(inner, 12) == 12 / inner * round);
  CHECK(sent_with(4, 3) == 0);
}

TEST_CASE("a run of sites goes on from its checkpoint as if never broken, and with other numbers of sites") {
  TinyOptions whole = sites_of(2, 2);
  whole.steps = 6;
  whole.precision = GENERATE("fp64", "bf16");
  const TinyResult unbroken = train_tiny(whole);
  TinyOptions first = whole;
  first.steps = 4;
  TemporaryFolder folder;
  train_tiny(first, {}, saves(first, folder.path(), 4));
  SECTION("the same number, bit for bit") {
    const TinyResult rest = train_tiny(whole, {}, resumes(whole, folder.path()));
    CHECK(unbroken.parameters == rest.parameters);
    CHECK(unbroken.eval_loss == rest.eval_loss);
  }
  if (whole.precision != "fp64") return;
  SECTION("the same number, another layout") {
    TinyOptions o = whole;
    o.ranks = 2, o.zero_stage = 1;
    const TinyResult rest = train_tiny(o, {}, resumes(o, folder.path()));
    CHECK(worst_relative(unbroken.parameters, rest.parameters) < 1e-11);
  }
  SECTION("other numbers keep the outer momentum, and moments of site s modulo their number") {
    for (const int sites : {1, 4}) {
      TinyOptions o = whole;
      o.optimizer.diloco.sites = sites;
      TinyHooks hooks = resumes(o, folder.path());
      const auto load = hooks.begin;
      std::mutex mutex;
      std::map<int, double> momentum, moments;
      hooks.begin = [&](const TinyRank& at) {
        const int64_t step = load(at);
        double outer = 0, inner = 0;
        for (const OwnedPiece& p : at.program.parameters().owned_pieces())
          for (const NamedState& s : p.moments) {
            double& sum = s.name == kOuterMomentum ? outer : inner;
            for (int64_t i = 0; i < s.tensor.elements(); ++i) sum += std::abs(s.tensor.ptr<double>()[i]);
          }
        std::lock_guard lock(mutex);
        momentum[at.rank] = outer, moments[at.rank] = inner;
        return step;
      };
      train_tiny(o, {}, hooks);
      REQUIRE(momentum.size() == static_cast<size_t>(sites));
      CHECK(momentum.at(0) > 0);
      for (const auto& [rank, sum] : momentum) CHECK(sum == momentum.at(0));
      if (sites == 1) continue;
      CHECK(moments.at(2) == moments.at(0));
      CHECK(moments.at(3) == moments.at(1));
      CHECK(moments.at(1) != moments.at(0));
    }
  }
  SECTION("without DiLoCo the first site's moments go on") {
    TinyOptions o = whole;
    o.optimizer.diloco = {};
    train_tiny(o, {}, resumes(o, folder.path()));
  }
}
