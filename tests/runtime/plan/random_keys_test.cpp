// Recipes of this repository with random values of random keys: each is planned, or refused as a wrong
// recipe. LTRAIN_FUZZ_EXECUTIONS asks for a longer run (docs/testing.md).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include <filesystem>

#include "base/error.h"
#include "runtime/plan/make_plan.h"
#include "runtime/recipe/schema/schema.h"
#include "tests/support/mutations.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

/// Keys whose values change a plan, and are not names of files.
std::vector<const recipe::Key*> planned_keys() {
  std::vector<const recipe::Key*> keys;
  for (const recipe::Key& k : recipe::schema()) {
    const std::string top = k.path.substr(0, k.path.find('.'));
    const bool reads = top == "data" || top == "checkpoint" || top == "launch" || top == "distillation";
    const bool free_text =
        k.type.starts_with("text") || k.type.starts_with("list") || k.type.starts_with("map");
    if ((!reads || !free_text) && k.path.find("path") == std::string::npos &&
        k.path.find("file") == std::string::npos && k.path != "model.from" && k.path != "cluster")
      keys.push_back(&k);
  }
  return keys;
}

template <class T>
const T& any_of(const std::vector<T>& all, Random& random) {
  return all[random() % all.size()];
}

std::string value_of(const recipe::Key& key, Random& random) {
  static const std::vector<std::string> kNumbers{"0",  "1",   "2",   "3",   "4",    "5",
                                                 "6",  "8",   "12",  "16",  "24",   "32",
                                                 "48", "100", "0.5", "0.9", "1e-5", "1e300"};
  static const std::vector<std::string> kOther{"true", "false", "none", "auto",    "node",        "[]",
                                               "{}",   "[1]",   "~",    "[\"*\"]", "[\"*mlp*\"]", "[0-1]"};
  if (!key.choices.empty() && random() % 8 != 0) return any_of(key.choices, random);
  if (key.type.starts_with("true")) return random() % 2 ? "true" : "false";
  return any_of(key.type.starts_with("integer") || key.type.starts_with("number") || random() % 4 == 0
                    ? kNumbers
                    : kOther,
                random);
}

std::vector<std::string> small_recipes() {
  std::vector<std::string> all;
  for (const auto& file : std::filesystem::directory_iterator(LTRAIN_SOURCE_DIR "/recipes"))
    if (file.path().extension() == ".yaml") all.push_back(file.path().string());
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

TEST_CASE("recipes with random values of keys are planned, or refused as recipes", "[plan]") {
  const std::vector<const recipe::Key*> keys = planned_keys();
  const std::vector<std::string> recipes = small_recipes();
  REQUIRE(keys.size() > 150);
  REQUIRE(recipes.size() > 10);
  const MachineProfile cpu = builtin_profile(2), card = card_profile("h100");
  Random random = fuzz_random(3);
  int64_t planned = 0;
  const int64_t all = fuzz_executions(3000);
  for (int64_t i = 0; i < all; ++i) {
    std::vector<std::string> overrides;
    for (const char* axis : {"tensor", "pipeline", "context", "expert", "data"})
      if (random() % 4 == 0) overrides.push_back(fmt::format("parallel.{}={}", axis, 1 + random() % 4));
    for (size_t n = 1 + random() % 4; n > 0; --n) {
      const recipe::Key& key = *any_of(keys, random);
      overrides.push_back(key.path + "=" + value_of(key, random));
    }
    const std::string file = any_of(recipes, random);
    INFO(file << " " << fmt::format("{}", fmt::join(overrides, " ")));
    try {
      const Recipe given = load_recipe(file, overrides);
      Recipe sized = given;
      if (sized.parallel.data < 1) sized.parallel.data = 2;
      const int64_t world = ranks(sized);
      if (world > 64) continue;
      const Recipe r = resolve(given, static_cast<int>(world));
      make_plan(r, r.device == DeviceChoice::cuda ? card : cpu);
      ++planned;
    } catch (const Error& e) {
      if (e.code() != ExitCode::usage && e.code() != ExitCode::does_not_fit && e.code() != ExitCode::data &&
          e.code() != ExitCode::storage)
        FAIL_CHECK(e.what());
    } catch (const std::exception& e) {
      FAIL_CHECK("not an error of ltrain: " << e.what());
    }
  }
  CHECK(planned > all / 20);
}
