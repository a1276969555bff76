// Rules over the pipeline's settings. The recipes are changed after parsing, since this build's parser takes
// one pipeline rank only.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "runtime/recipe/recipe.h"
#include "runtime/recipe/rules/rules.h"

using namespace ltrain;
using Catch::Contains;

namespace {

Recipe base(const std::vector<std::string>& overrides = {}) {
  Recipe r = parse_recipe(
      "model: {num_hidden_layers: 12}\ntrain: {micro_batch_size: 2, global_batch_size: 32}\nparallel: {data: "
      "2}\n",
      "r.yaml", overrides);
  r.parallel.pipeline = 4;
  return r;
}

/// The rules' text, "" when all hold. `given`: keys that count as written.
std::string broken(const Recipe& r, const std::vector<std::string>& given = {}) {
  RecipeOrigins origins = *r.origins;
  for (const std::string& key : given) origins.given[key] = {"r.yaml", 9, 1};
  recipe::Diagnostics diagnostics;
  std::vector<std::string> notes;
  recipe::check_rules(r, origins, diagnostics, notes);
  try {
    diagnostics.raise_if_any("r.yaml");
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::usage);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("pipeline settings that work are accepted", "[recipe]") {
  Recipe r = base();
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-h2", "auto"}) {
    r.parallel.schedule = schedule;
    CHECK(broken(r) == "");
  }
  r.parallel.virtual_pipeline = 2;
  for (const char* schedule : {"interleaved", "zbv", "dualpipev"}) {
    r.parallel.schedule = schedule;
    CHECK(broken(r) == "");
  }
  r = base();
  r.parallel.pipeline_layers = {2, 3, 4, 3};
  CHECK(broken(r) == "");
  r.parallel.schedule_file = "s.csv";
  CHECK(broken(r, {"parallel.schedule_file"}) == "");
}

TEST_CASE("the schedule's micro-batches are asked for in sequences", "[recipe]") {
  Recipe r = base();  // 32 / (2 * 2) = 8 micro-batches
  r.parallel.schedule = "dualpipev";
  r.parallel.virtual_pipeline = 2;
  CHECK(broken(r) == "");
  r.train.global_batch_size = 28;
  CHECK(broken(r) ==
        "r.yaml:2:30: train.global_batch_size = 28: parallel.schedule: dualpipev needs at least two "
        "micro-batches for each of its 4 ranks, and there are 7 (each of 4 sequences); nearest valid value: "
        "32");
  r.parallel.schedule = "interleaved";
  CHECK(broken(r) ==
        "r.yaml:2:30: train.global_batch_size = 28: parallel.schedule: interleaved needs a multiple of its 4 "
        "ranks as micro-batches, and there are 7 (each of 4 sequences); nearest valid value: 16 or 32");
  r.parallel.schedule = "1f1b";
  r.parallel.virtual_pipeline = 1;
  CHECK(broken(r) == "");
}

TEST_CASE("chunks, layers and stages must agree", "[recipe]") {
  Recipe r = base();
  r.parallel.schedule = "interleaved";
  CHECK_THAT(broken(r, {"parallel.virtual_pipeline"}),
             Contains("parallel.virtual_pipeline = 1: parallel.schedule: interleaved needs at least 2 chunks "
                      "a rank, and there is 1; nearest valid number: 2"));
  r.parallel.schedule = "zb-h1";
  r.parallel.virtual_pipeline = 3;
  CHECK_THAT(broken(r), Contains("zb-h1 needs exactly 1 chunk a rank, and there are 3"));
  r.parallel.schedule = "interleaved";
  r.parallel.virtual_pipeline = 4;
  CHECK_THAT(
      broken(r),
      Contains("parallel.pipeline = 4 (default): with parallel.virtual_pipeline = 4, they make 16 stages, "
               "each with at least one of 12 layers (model.num_hidden_layers); nearest valid value: 3"));
  r = base();
  r.parallel.pipeline = 13;
  CHECK_THAT(broken(r), Contains("they make 13 stages, each with at least one of 12 layers") &&
                            Contains("nearest valid value: 12"));
  r = base();
  r.parallel.pipeline_layers = {3, 3, 3};
  CHECK_THAT(
      broken(r, {"parallel.pipeline_layers"}),
      Contains("r.yaml:9:1: parallel.pipeline_layers = [3, 3, 3]: has 3 numbers, and there are 4 stages"));
  r.parallel.pipeline_layers = {3, 3, 3, 4};
  CHECK_THAT(broken(r), Contains("makes 13 layers in all, and the model has 12; take away 1"));
  r = base();
  r.parallel.schedule = "auto";
  CHECK_THAT(broken(r, {"parallel.virtual_pipeline"}),
             Contains("is chosen by parallel.schedule: auto; remove the key"));
  r = base();
  r.parallel.schedule_file = "s.csv";
  CHECK_THAT(
      broken(r, {"parallel.schedule", "parallel.schedule_file"}),
      Contains("parallel.schedule_file = s.csv: and parallel.schedule are two orders of the same stages"));
  r = base();
  r.parallel.pipeline = 1;
  r.parallel.virtual_pipeline = 2;
  CHECK_THAT(broken(r), Contains("one pipeline rank has nothing to interleave; nearest valid value: 1"));
  r.parallel.virtual_pipeline = 1;
  r.parallel.pipeline_layers = {12};
  CHECK_THAT(broken(r), Contains("one pipeline rank has all layers; remove the key"));
}

TEST_CASE("the keys are read, derived and noted", "[recipe]") {
  const Recipe r = parse_recipe("parallel: {schedule: zbv}\n", "r.yaml");
  CHECK(r.parallel.schedule == "zbv");
  CHECK(r.parallel.virtual_pipeline == 1);
  REQUIRE(r.notes.size() == 1);
  CHECK(r.notes[0] == "r.yaml:1:12: parallel.schedule has no effect without parallel.pipeline above 1");
  CHECK_THROWS_WITH(parse_recipe("parallel: {pipeline_layers: [4, 0]}\n", "r.yaml"),
                    Contains("parallel.pipeline_layers = [4, 0]: number 2 must be at least 1"));
  CHECK_THROWS_WITH(parse_recipe("parallel: {pipeline_layers: 4}\n", "r.yaml"),
                    Contains("needs a list of integers"));
  CHECK_THROWS_WITH(parse_recipe("parallel: {pipeline_layers: [4, x]}\n", "r.yaml"),
                    Contains("number 2 needs an integer"));
  CHECK_THROWS_WITH(parse_recipe("parallel: {schedule: zb-v}\n", "r.yaml"), Contains("did you mean zbv?"));
}
