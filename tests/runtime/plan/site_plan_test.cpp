// Plans of sites of DiLoCo with shares of the batch, and of clusters whose sites have other machines.
#include "runtime/plan/site_plan.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "base/error.h"
#include "runtime/check/check_job.h"
#include "runtime/machines/cluster.h"
#include "runtime/plan/plan_print.h"
#include "tests/runtime/plan/tiny_recipe.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using Catch::Contains;
using test::tiny_recipe;

namespace {

const std::string kCluster =
    "format: ltrain.cluster.v1\nname: ours\nsite_profiles: [h100, a100]\nnodes: 2\ngpus_per_node: 2\n"
    "network: wan-2x100g\n";

/// Two sites of two GPUs, 16 micro-batches for their data ranks.
Recipe of_sites(std::vector<std::string> more) {
  more.insert(more.end(),
              {"device=cuda", "precision=bf16", "diloco.sites=2", "diloco.inner_steps=10",
               "train.global_batch_size=32", "model.hidden_size=512", "model.intermediate_size=2048",
               "model.max_position_embeddings=1024", "data.seq_length=1024"});
  return tiny_recipe(4, more, 2);
}

std::string cluster_refusal(const std::string& text) {
  try {
    parse_cluster(text, "ours.yaml");
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("micro-batches of sites equalise their times", "[plan]") {
  using Counts = std::vector<int64_t>;
  CHECK(equalized_micros({1, 1}, 16) == Counts{8, 8});
  CHECK(equalized_micros({1, 3}, 16) == Counts{12, 4});
  CHECK(equalized_micros({1, 2, 4}, 14) == Counts{8, 4, 2});
  CHECK(equalized_micros({1, 1000}, 16) == Counts{15, 1});
  // No other division has a shorter slowest site.
  for (const double slow : {1.3, 2.7, 5.5}) {
    const auto slowest = [&](int64_t first) {
      return std::max(static_cast<double>(first), slow * static_cast<double>(24 - first));
    };
    const double found = slowest(equalized_micros({1, slow}, 24).at(0));
    for (int64_t first = 1; first < 24; ++first) CHECK(found <= slowest(first));
  }
}

TEST_CASE("a plan prices each site by its own card and share, and says better shares", "[plan]") {
  const MachineProfile p = parse_cluster(kCluster, "ours.yaml");
  REQUIRE(p.sites == 2);
  REQUIRE(p.site_profiles.size() == 2);
  CHECK(p.device_bytes == std::min(p.site_profiles[0].device_bytes, p.site_profiles[1].device_bytes));
  const Plan equal = make_plan(of_sites({}), p);
  REQUIRE(equal.sites.size() == 2);
  CHECK(equal.sites[0].micros == 8);
  CHECK(equal.sites[1].seconds > 1.5 * equal.sites[0].seconds);
  CHECK(equal.step_seconds() == equal.sites[1].seconds);  // the slowest is waited for
  // A site's step is that of a cluster of its card alone.
  for (const int site : {0, 1}) {
    const Plan alone = make_plan(of_sites({}), p.site_profiles[static_cast<size_t>(site)]);
    CHECK(alone.sites.empty());
    CHECK(alone.step_seconds() == Approx(equal.sites[static_cast<size_t>(site)].seconds).epsilon(1e-12));
  }
  const std::vector<int64_t>& better = equal.better.shares;
  REQUIRE(better.size() == 2);
  CHECK(better[0] > better[1]);
  CHECK(equal.better.step_seconds < 0.9 * equal.step_seconds());
  const std::string shares = fmt::format("diloco.shares=[{}]", fmt::join(better, ","));
  const Plan with = make_plan(of_sites({shares}), p);
  CHECK(with.step_seconds() == Approx(equal.better.step_seconds).epsilon(1e-12));
  CHECK(with.better.shares.empty());
  CHECK(with.tokens_per_step == equal.tokens_per_step);
  CHECK(with.model_flops() == Approx(equal.model_flops()).epsilon(1e-12));
  CHECK_THAT(plan_text(equal, of_sites({})),
             Contains(fmt::format("diloco.shares: [{}]", fmt::join(better, ", "))));
  // With a pipeline each site has a schedule of its own micro-batches.
  const Plan staged = make_plan(of_sites({"parallel.pipeline=2", "diloco.shares=[3,1]"}), p);
  REQUIRE(staged.sites.size() == 2);
  CHECK(staged.sites[0].micros == 24);
  CHECK(staged.sites[1].micros == 8);
  CHECK(staged.step_seconds() == std::max(staged.sites[0].seconds, staged.sites[1].seconds));
  // The order of the sites changes nothing, and unequal shares leave a priced layer its micro-batches.
  std::string turned = kCluster;
  turned.replace(turned.find("[h100, a100]"), 12, "[a100, h100]");
  const MachineProfile q = parse_cluster(turned, "ours.yaml");
  for (const char* shares : {"diloco.shares=[1,1]", "diloco.shares=[3,5]"}) {
    const std::string other = shares[15] == '1' ? "diloco.shares=[1,1]" : "diloco.shares=[5,3]";
    const Plan a = make_plan(of_sites({"parallel.pipeline=2", "train.micro_batch_size=2", other}), p);
    const Plan b = make_plan(of_sites({"parallel.pipeline=2", "train.micro_batch_size=2", shares}), q);
    REQUIRE((a.sites.size() == 2 && b.sites.size() == 2));
    CHECK(a.sites[0].seconds == Approx(b.sites[1].seconds).epsilon(1e-9));
    CHECK(a.sites[1].seconds == Approx(b.sites[0].seconds).epsilon(1e-9));
  }
}

TEST_CASE("profiles of sites in a cluster file are one for each site", "[plan]") {
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = kCluster;
    text.replace(text.find(from), from.size(), to);
    return cluster_refusal(text);
  };
  CHECK(cluster_refusal(kCluster) == "accepted");
  CHECK_THAT(with("[h100, a100]", "[h100]"), Contains("must have one for each of sites = 2, has 1"));
  CHECK_THAT(with("[h100, a100]", "[h100, a1000]"), Contains("site_profiles = ") && Contains("a1000"));
  CHECK_THAT(with("nodes: 2", "profile: h100\nnodes: 2"), Contains("set one of profile and site_profiles"));
}

TEST_CASE("a site of DiLoCo on several sites of the cluster is refused", "[plan]") {
  test::TemporaryFolder folder;
  const std::string file = folder.path() + "/ours.yaml";
  std::string text = kCluster;
  text.replace(text.find("nodes: 2"), 8, "nodes: 6");
  std::ofstream(file) << text;
  const auto check = [&](int sites) {
    const Recipe r = parse_recipe("device: cuda\nparallel: {data: 12}\ntrain: {global_batch_size: 12}\n",
                                  "r.yaml", {fmt::format("diloco.sites={}", sites)});
    JobChecks checks;
    checks.part = JobChecks::Part::recipe, checks.data = false, checks.prices.profile = file;
    check_job(r, {12, 2, {}}, checks);
  };
  CHECK_NOTHROW(check(2));
  CHECK_NOTHROW(check(6));
  CHECK_THROWS_WITH(check(3), Contains("diloco.sites = 3: ours, 6 nodes of 2 h100, a100, has sites: 2") &&
                                  Contains("nearest valid value: 2"));
}
