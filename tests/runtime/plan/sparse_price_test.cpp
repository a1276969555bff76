// Prices of matmuls that skip zeros: which ops of a plan they are, by which density, in which steps.
#include <catch2/catch.hpp>
#include <map>

#include "base/json/json.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/plan_print.h"
#include "tests/runtime/plan/tiny_recipe.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Matmuls of `rows` rows; feed-forward matrices are 2:4 sparse from the second of 100 steps on.
Recipe sparse_recipe(std::vector<std::string> more = {}, int64_t rows = 256, int ranks = 1) {
  std::vector<std::string> all{"train.micro_batch_size=" + std::to_string(rows / 32), "precision=fp32",
                               "sparsity.match=[\"*.mlp.*\"]", "model.hidden_size=128",
                               "model.intermediate_size=256"};
  all.insert(all.end(), more.begin(), more.end());
  return tiny_recipe(ranks, all);
}

/// Made-up profile with this speed of 2:4 sparse matmuls over dense ones; 0: none.
MachineProfile profile_with(double speedup) {
  MachineProfile p = builtin_profile(2);
  p.sparse_matmul_speedup = speedup;
  return p;
}

std::map<std::string, double> seconds_by_op(const Recipe& r, double speedup) {
  std::map<std::string, double> seconds;
  const Plan plan = make_plan(r, profile_with(speedup));
  for (const OpPlan& o : plan.ranks[0].ops) seconds[o.name] = o.seconds;
  return seconds;
}

/// Checks that ops whose names are keys of `faster` take less time by that factor with a speedup of 2, and
/// that no other op changes.
void check_factors(const Recipe& r, const std::map<std::string, double>& faster) {
  const std::map<std::string, double> dense = seconds_by_op(r, 0), sparse = seconds_by_op(r, 2);
  REQUIRE(dense.size() == sparse.size());
  for (const auto& [name, seconds] : dense) {
    INFO(name);
    const auto it = faster.find(name);
    CHECK(name.ends_with("_sparse") == (it != faster.end()));
    if (it == faster.end())
      CHECK(sparse.at(name) == seconds);
    else
      CHECK(seconds / sparse.at(name) == Approx(it->second));
  }
  for (const auto& [name, factor] : faster) CHECK(dense.count(name) == 1);
}

double step_seconds(const Recipe& r, double speedup) {
  return make_plan(r, profile_with(speedup)).step_seconds();
}

}  // namespace

TEST_CASE("a plan prices matmuls that skip zeros by the profile's speedup, and no other op", "[plan]") {
  const std::map<std::string, double> halves{{"matmul_nt_sparse", 2}, {"matmul_nn_sparse", 2}};
  check_factors(sparse_recipe(), halves);
  check_factors(sparse_recipe({}, 128), halves);
  check_factors(sparse_recipe({"sparsity.transposable=true", "sparsity.mask_interval=5"}), halves);
  std::map<std::string, double> all = halves;
  all["matmul_tn_sparse"] = all["matmul_tn_add_sparse"] = 2;
  check_factors(sparse_recipe({"sparsity.gradient_estimator=mvue"}), all);
  // Nothing skips zeros in matmuls of few rows, in other precisions, and without sparsity.
  check_factors(sparse_recipe({}, 64), {});
  check_factors(sparse_recipe({"precision=bf16"}), {});
  check_factors(sparse_recipe({"sparsity.pattern=3:4"}), {});
  check_factors(sparse_recipe({"sparsity.pattern=7:8"}), {});
  check_factors(sparse_recipe({"sparsity.match=[]"}), {});
  // The step gains what its matmuls do.
  const Recipe r = sparse_recipe();
  double gain = 0;
  for (const auto& [name, seconds] : seconds_by_op(r, 0))
    if (halves.contains(name)) gain += seconds / 2;
  CHECK(step_seconds(r, 0) - step_seconds(r, 2) == Approx(gain));
  CHECK(step_seconds(sparse_recipe({}, 64), 0) == step_seconds(sparse_recipe({}, 64), 2));
}

TEST_CASE("a plan prices sparse matmuls of another density by its share plus an eighth", "[plan]") {
  const auto factors = [](double kept) {
    return std::map<std::string, double>{{"matmul_nt_sparse", 2 * 0.625 / (kept + 0.125)},
                                         {"matmul_nn_sparse", 2 * 0.625 / (kept + 0.125)}};
  };
  check_factors(sparse_recipe({"sparsity.pattern=4:8"}), factors(0.5));
  check_factors(sparse_recipe({"sparsity.pattern=1:4"}), factors(0.25));
  check_factors(sparse_recipe({"sparsity.pattern=2:16"}), factors(0.125));
  // Output gradients are 2:4 sparse, whatever the weights are.
  std::map<std::string, double> both = factors(0.25);
  both["matmul_tn_sparse"] = both["matmul_tn_add_sparse"] = 2;
  check_factors(sparse_recipe({"sparsity.pattern=1:4", "sparsity.gradient_estimator=mvue"}), both);
  // Measured as 1.40 with half: 2.3 and 2.2 with a quarter, 3.6 and 3.3 with an eighth, 1.00 and 0.97 with 3
  // of 4.
  CHECK(sparse_speedup(1.4, 0.25) == Approx(2.25).epsilon(0.05));
  CHECK(sparse_speedup(1.4, 0.125) == Approx(3.5).epsilon(0.05));
  CHECK(sparse_speedup(1.4, 0.75) == Approx(1).epsilon(0.05));
}

TEST_CASE("a plan's step is of the kind that most steps are, with or without zeros", "[plan]") {
  const double sparse = step_seconds(sparse_recipe(), 2), dense = step_seconds(sparse_recipe(), 0);
  REQUIRE(sparse < dense);
  struct Case {
    std::vector<std::string> settings;
    int64_t sparse_steps;
  };
  for (const auto& [settings, steps] :
       std::vector<Case>{{{"sparsity.at_step=1"}, 99},
                         {{"sparsity.at_step=50"}, 50},
                         {{"sparsity.at_step=51"}, 49},
                         {{"sparsity.at_step=100"}, 0},
                         {{"sparsity.mask_interval=5"}, 100},
                         {{"sparsity.mask_interval=5", "sparsity.dense_tail=0.2"}, 80},
                         {{"sparsity.mask_interval=5", "sparsity.dense_tail=0.2", "sparsity.at_step=21"}, 60},
                         {{"sparsity.mask_interval=5", "sparsity.dense_tail=0.6"}, 40}}) {
    INFO(fmt::format("{}", fmt::join(settings, " ")));
    const Recipe r = sparse_recipe(settings);
    const Plan p = make_plan(r, profile_with(2)), without = make_plan(r, profile_with(0));
    const double dense_step = without.step_seconds();
    const double sparse_step =
        dense_step - (dense - sparse);  // masks that move add ops to both kinds of step
    const bool usual = steps >= 50;
    CHECK(p.sparse.steps == steps);
    const SparsitySettings sparsity = optimizer_settings(r).sparsity;
    int64_t counted = 0;
    for (int64_t step = 1; step <= 100; ++step) counted += sparsity.sparse_in(step);
    CHECK(counted == steps);
    CHECK(p.step_seconds() == Approx(usual ? sparse_step : dense_step));
    CHECK(p.sparse.other_step_seconds == Approx(steps == 0 || steps == 100 ? 0
                                                : usual                    ? dense_step
                                                                           : sparse_step));
    const double evaluations = p.ranks[0].eval_seconds * static_cast<double>(p.evaluations);
    CHECK(p.total_seconds() - evaluations ==
          Approx(static_cast<double>(steps) * sparse_step + static_cast<double>(100 - steps) * dense_step));
    CHECK(without.sparse.other_step_seconds == 0);
  }
}

TEST_CASE("a plan of two stages has the sparse steps of each", "[plan]") {
  const std::vector<std::string> stages{"parallel.pipeline=2", "model.num_hidden_layers=4",
                                        "sparsity.at_step=60"};
  const Recipe r = sparse_recipe(stages, 256, 2);
  const Plan p = make_plan(r, profile_with(2)), without = make_plan(r, profile_with(0));
  CHECK(p.step_seconds() == without.step_seconds());
  CHECK(p.sparse.other_step_seconds < 0.95 * p.step_seconds());
  const Recipe early = sparse_recipe({"parallel.pipeline=2", "model.num_hidden_layers=4"}, 256, 2);
  CHECK(make_plan(early, profile_with(2)).step_seconds() == Approx(p.sparse.other_step_seconds));
}

TEST_CASE("a plan says at which speed it prices sparse matmuls, and how many steps have them", "[plan]") {
  const auto text = [](const std::vector<std::string>& settings, double speedup, int64_t rows = 256) {
    const Recipe r = sparse_recipe(settings, rows);
    return plan_text(make_plan(r, profile_with(speedup)), r);
  };
  CHECK_THAT(text({"sparsity.at_step=30"}, 1.4),
             Contains("2:4 sparse: 294.9k parameters, half of them zero from update 30 on; bytes stay, and "
                      "matmuls that skip these zeros are priced at 1.40 times the dense speed\n") &&
                 Contains("step without zeros") && Contains(" ms in 30 of 100 steps\n"));
  CHECK_THAT(text({"sparsity.at_step=70"}, 1.4),
             Contains("step with zeros ") && Contains(" ms in 30 of 100 steps\n"));
  CHECK_THAT(text({"sparsity.pattern=1:4"}, 1.4), Contains("at 2.33 times the dense speed"));
  CHECK_THAT(text({}, 0), Contains("matmuls skip zeros and are priced as dense ones (the profile has no "
                                   "sparse_matmul_speedup, which `ltrain bench` measures)") &&
                              !Contains("step without zeros"));
  CHECK_THAT(text({}, 1.4, 64), Contains("bytes stay, and matmuls are dense ones\n"));

  const auto as_json = [](const Recipe& r, double speedup) {
    return nlohmann::json::parse(plan_json(make_plan(r, profile_with(speedup))));
  };
  const nlohmann::json j = as_json(sparse_recipe({"sparsity.at_step=30"}), 2);
  CHECK((j["sparse_steps"] == 70 && j["skips_zeros"] == true && j["sparse_matmul_speedup"] == 2));
  CHECK((j["sparse_step_seconds"] == j["step_seconds"] && j["dense_step_seconds"] > j["step_seconds"]));
  const nlohmann::json later = as_json(sparse_recipe({"sparsity.at_step=70"}), 2);
  CHECK((later["dense_step_seconds"] == later["step_seconds"] &&
         later["sparse_step_seconds"] == j["sparse_step_seconds"]));
  const nlohmann::json unknown = as_json(sparse_recipe({"sparsity.at_step=30"}), 0);
  CHECK(!unknown.contains("sparse_matmul_speedup"));
  CHECK(!unknown.contains("dense_step_seconds"));
  const nlohmann::json few = as_json(sparse_recipe({}, 64), 2);
  CHECK((few["skips_zeros"] == false && !few.contains("sparse_matmul_speedup")));
}
