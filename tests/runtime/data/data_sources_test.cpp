// Patterns in data.train and data.eval, and what is said of mixes.
#include "runtime/check/data_sources.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/data/sample_order.h"
#include "runtime/eval/held_out.h"
#include "tests/runtime/data/support.h"

using namespace ltrain;
using namespace ltrain::data::test;
using Catch::Matchers::Contains;

namespace {

/// A source of `samples` samples of 4 tokens.
void write_source(const std::string& prefix, int64_t samples) {
  write_file(prefix, "");  // makes the folder
  data::test::write_dataset(prefix, {std::vector<int32_t>(static_cast<size_t>(4 * samples + 1), 7)});
}

Recipe recipe_of_data(const std::string& data) {
  return parse_recipe(
      "data: {" + data +
          ", seq_length: 4}\n"
          "train: {global_batch_size: 8, micro_batch_size: 1, train_steps: 10" +
          std::string(data.find("eval: [") == data.npos ? "}\n" : ", eval_interval: 5, eval_steps: 100}\n"),
      "r.yaml", {});
}

std::vector<std::string> paths(const std::vector<DataSource>& sources) {
  std::vector<std::string> all;
  for (const DataSource& s : sources) all.push_back(s.path);
  return all;
}

}  // namespace

TEST_CASE("a pattern names token files, which share its weight by their samples", "[data]") {
  TempFolder f;
  write_source(f / "shard-10", 30);
  write_source(f / "shard-2", 10);
  write_source(f / "other", 60);
  write_source(f / "odd[1]", 5);
  Recipe r =
      recipe_of_data("train: [{path: " + (f / "shard-*") + ", weight: 2}, {path: " + (f / "other") + "}, \"" +
                     (f / "odd[1]") + "\"], eval: [{path: \"" + (f / "shard-?") + "\", name: a}]");
  resolve_sources(r, true);
  CHECK(paths(r.data.train) ==
        std::vector<std::string>{f / "shard-10", f / "shard-2", f / "other", f / "odd[1]"});
  CHECK(r.data.train[0].weight == 1.5);
  CHECK(r.data.train[1].weight == 0.5);
  CHECK(r.data.train[2].weight == 1);
  CHECK(paths(r.data.eval) == std::vector<std::string>{f / "shard-2"});
  CHECK(r.data.eval[0].name == "a");
  // All shards of a pattern end together: 40 draws are each sample of both, once.
  Recipe only = recipe_of_data("train: [" + (f / "shard-*") + "]");
  resolve_sources(only, true);
  const data::SampleOrder order({30, 10}, {only.data.train[0].weight, only.data.train[1].weight}, 1);
  CHECK(order.before_first_repeat() == 40);

  Recipe none = recipe_of_data("train: [" + (f / "nothing-*") + "]");
  CHECK_THAT(error_of([&] { resolve_sources(none, true); }),
             Contains("65: data.train: path " + (f / "nothing-*")) && Contains("nothing matches"));
  resolve_sources(none, false);  // the files may be on another machine
  CHECK(paths(none.data.train) == std::vector<std::string>{f / "nothing-*"});
  Recipe twice = recipe_of_data("train: [" + (f / "shard-2") + ", " + (f / "shard-*") + "]");
  CHECK_THAT(error_of([&] { resolve_sources(twice, true); }), Contains("64: ") && Contains("source already"));
}

TEST_CASE("more sources than a mix can have are refused by the recipe, and by a pattern", "[data]") {
  const auto list = [](size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += (i ? ", s" : "s") + std::to_string(i);
    return "train: [" + text + "]";
  };
  CHECK(recipe_of_data(list(data::kMaxSources)).data.train.size() == data::kMaxSources);
  for (const char* key : {"train", "eval"}) {
    std::string text = list(data::kMaxSources + 1);
    text.replace(0, 5, key);
    CHECK_THAT(error_of([&] { recipe_of_data(text); }),
               Contains("64: ") && Contains("1025 sources; at most 1024 are possible"));
  }
  TempFolder f;
  for (size_t i = 0; i <= data::kMaxSources; ++i) write_source(f / ("s" + std::to_string(i)), 1);
  Recipe r = recipe_of_data("train: [" + (f / "s*") + "]");
  CHECK_THAT(error_of([&] { resolve_sources(r, true); }), Contains("64: ") && Contains("at most 1024"));
}

TEST_CASE("a source that is read many times is named, with the number of passes", "[data]") {
  TempFolder f;
  write_source(f / "small", 5);
  write_source(f / "large", 1000);
  // 80 samples are drawn, 40 of each.
  const auto notes = data_notes(recipe_of_data("train: [" + (f / "small") + ", " + (f / "large") + "]"));
  CHECK(notes == std::vector<std::string>{"data.train: by step 10 " + (f / "small") +
                                          " is read 8.0 times (5 samples)"});
  CHECK(data_notes(recipe_of_data("train: [{path: " + (f / "small") +
                                  ", weight: 1}, {path: " + (f / "large") + ", weight: 3}]"))
            .empty());  // 20 draws of 5 samples: four passes
}

TEST_CASE("a held-out set that ends with its smallest source is named, with what would help", "[data]") {
  TempFolder f;
  write_source(f / "small", 10);
  write_source(f / "large", 1000);
  write_source(f / "train", 1000);
  const std::string train = "train: [" + (f / "train") + "], eval: ";
  const auto eval = [&](const std::string& list) { return data_notes(recipe_of_data(train + list)); };
  const auto notes = eval("[" + (f / "small") + ", " + (f / "large") + "]");
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0],
             Contains("data.eval: " + (f / "small") + " ends after 10 samples, and the set with it: ") &&
                 Contains(" of 1010 samples are evaluated") && Contains("samples: 10, 1000"));
  // Half of the draws are of each source until the small one is used up.
  const data::SampleOrder order({10, 1000}, {1, 1}, 0, false);
  CHECK_THAT(notes[0], Contains(std::to_string(order.before_first_repeat()) + " of 1010"));
  CHECK(eval("[{path: " + (f / "small") + ", weight: 10}, {path: " + (f / "large") + ", weight: 1000}]")
            .empty());
  CHECK(eval("[{path: " + (f / "small") + ", name: a}, {path: " + (f / "large") + ", name: b}]").empty());
}

TEST_CASE("data.temperature: weights follow the tokens of each source, over its files", "[data]") {
  TempFolder f;
  write_source(f / "large-0", 48);
  write_source(f / "large-1", 16);
  write_source(f / "small", 4);
  // Tokens: 193 + 65 = 258 and 17. Samples of 4 tokens: 48, 16 and 4.
  const std::string train = "train: [{path: " + (f / "large-*") + "}, {path: " + (f / "small") + "}]";
  for (const double temperature : {1.0, 2.0, 100.0}) {
    Recipe r = recipe_of_data(train + ", temperature: " + std::to_string(temperature));
    resolve_sources(r, true);
    REQUIRE(r.data.train.size() == 3);
    CHECK(r.data.train[0].weight == Approx(0.75));
    CHECK(r.data.train[1].weight == Approx(0.25));
    CHECK(r.data.train[2].weight == Approx(std::pow(17.0 / 258.0, 1 / temperature)));
    CHECK(!r.data.temperature);
  }
  Recipe away = recipe_of_data(train + ", temperature: 2");
  resolve_sources(away, false);
  CHECK(away.data.temperature == 2.0);
}
