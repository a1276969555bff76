// DiLoCo with sites of unequal shares of the batch: against data parallelism, layouts inside a site,
// checkpoints.
#include "tests/parity/parity.h"
#include "tests/parity/recipe_job.h"
#include "tests/parity/site_layouts.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Two sites with shares of a batch of 16, which four data ranks of a site divide.
TinyOptions sites_with(std::vector<int64_t> shares, int64_t inner_steps) {
  TinyOptions o;
  o.optimizer.diloco = {.sites = 2, .inner_steps = inner_steps, .shares = std::move(shares)};
  o.global_batch = 16;
  o.steps = 2 * inner_steps;
  return o;
}

void check_planned(const TinyResult& r) {
  CHECK(r.used_wire == r.plan_wire);
  CHECK(r.used_bytes == r.plan_bytes);
}

}  // namespace

TEST_CASE("sites of unequal shares that synchronize after every step are data parallel") {
  TinyOptions parallel;
  parallel.ranks = 2, parallel.clip = 0, parallel.global_batch = 16;
  parallel.optimizer.rule = UpdateRule::sgd, parallel.optimizer.sgd_momentum = 0;
  TinyOptions sites = parallel;
  sites.ranks = 1;
  DilocoSettings& d = sites.optimizer.diloco;
  d = {.sites = 2, .inner_steps = 1, .outer_lr = 1, .outer_momentum = 0, .nesterov = true, .shares = {}};
  const TinyResult want = train_tiny(parallel);
  for (const std::vector<int64_t>& shares : {std::vector<int64_t>{3, 1}, {2, 6}, {5, 11}}) {
    d.shares = shares;
    const TinyResult got = train_tiny(sites);
    CHECK(worst_relative(want.parameters, got.parameters) < 1e-13);
    CHECK(got.eval_loss == Approx(want.eval_loss).epsilon(1e-12));
    check_planned(got);
  }
  // Negative control: tokens that do not count in proportion to the shares.
  parallel.padded_targets = sites.padded_targets = true;
  CHECK(worst_relative(train_tiny(parallel).parameters, train_tiny(sites).parameters) > 1e-6);
}

TEST_CASE("a site of any layout trains its share of the batch as a site of one rank") {
  const TinyResult one = train_tiny(sites_with({3, 1}, 2));
  CHECK(one.sites.at(0) == one.sites.at(1));
  CHECK(worst_relative(one.parameters, train_tiny(sites_with({1, 3}, 2)).parameters) > 1e-6);
  for (const NamedLayout& l : site_layouts()) {
    INFO(l.name);
    TinyOptions o = sites_with({3, 1}, 2);
    l.set(o);
    const TinyResult many = train_tiny(o);
    require_parity(one, many, 1e-11);
    CHECK(many.sites.at(0) == many.sites.at(1));
    check_planned(many);
  }
}

TEST_CASE("equal shares train as none do, bit for bit") {
  const TinyResult none = train_tiny(sites_with({}, 2)), equal = train_tiny(sites_with({3, 3}, 2));
  CHECK(none.parameters == equal.parameters);
  CHECK(none.losses == equal.losses);
  CHECK(none.plan_bytes == equal.plan_bytes);
}

TEST_CASE("fragments of sites with unequal shares train in every layout as planned") {
  TinyOptions o = sites_with({1, 3}, 4);
  o.layers = 3;
  DilocoSettings& d = o.optimizer.diloco;
  d.fragments = 2, d.delay = 1, d.merge = 0.5;
  const TinyResult one = train_tiny(o);
  for (const NamedLayout& l : site_layouts()) {
    INFO(l.name);
    TinyOptions more = o;
    l.set(more);
    if (more.pipeline > 1) more.layers = o.layers;
    const TinyResult many = train_tiny(more);
    CHECK(worst_relative(one.parameters, many.parameters) < 1e-11);
    check_planned(many);
  }
  d.sum = SiteSum::int8;
  check_planned(train_tiny(o));
}

TEST_CASE("sites with shares go on from their checkpoint bit for bit, and with other shares") {
  TinyOptions whole = sites_with({3, 1}, 2);
  whole.steps = 6;
  const TinyResult unbroken = train_tiny(whole);
  TinyOptions first = whole;
  first.steps = 4;
  TemporaryFolder folder;
  train_tiny(first, {}, saves(first, folder.path(), 4));
  const TinyResult rest = train_tiny(whole, {}, resumes(whole, folder.path()));
  CHECK(unbroken.parameters == rest.parameters);
  CHECK(unbroken.eval_loss == rest.eval_loss);
  // The samples of the later steps stay, and go to other sites.
  for (const std::vector<int64_t>& shares : {std::vector<int64_t>{}, {1, 3}}) {
    TinyOptions o = whole;
    o.optimizer.diloco.shares = shares;
    const TinyResult other = train_tiny(o, {}, resumes(o, folder.path()));
    CHECK(other.sites.at(0) == other.sites.at(1));
    CHECK(worst_relative(unbroken.parameters, other.parameters) < 0.1);
    CHECK(worst_relative(unbroken.parameters, other.parameters) > 1e-6);
  }
}
