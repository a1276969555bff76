// ltrain recipe new: recipes of published models for other ranks.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;

TEST_CASE("recipe new writes a recipe of a known model that fits the card, and refuses others by name") {
  const TempRun t;
  const Outcome made = t.sh("recipe new --model llama-3.1-8b --gpus 16 --output new.yaml");
  INFO(made.text);
  REQUIRE(made.code == 0);
  const Outcome plan = t.sh("plan new.yaml --profile h100");
  INFO(plan.text);
  CHECK(plan.code == 0);
  CHECK_THAT(plan.text, Catch::Contains("8.03B llama parameters, bf16, on 16 ranks"));
  const Outcome there = t.sh("recipe new --model llama-3.1-8b --gpus 16 --output new.yaml");
  CHECK(there.code == 64);
  CHECK_THAT(there.text, Catch::Contains("new.yaml: is there already"));
  const Outcome other = t.sh("recipe new --model llama-9 --gpus 16");
  CHECK(other.code == 64);
  CHECK_THAT(other.text, Catch::Contains("is not known; expected one of deepseek-v2-lite, "));
  const Outcome few = t.sh("recipe new --model llama-3.1-8b --gpus 1 --output one.yaml");
  CHECK(few.code == 78);
}
