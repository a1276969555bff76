// Whatever a refusal says would work is accepted by the same check: for the table of bad recipes, and for
// valid recipes of which every key is changed.
#include <catch2/catch.hpp>

#include <random>
#include <regex>

#include "base/error.h"
#include "runtime/recipe/schema/schema.h"
#include "runtime/recipe/suggestions.h"
#include "tests/runtime/recipe/bad_recipe_table.h"

using namespace ltrain;
using namespace ltrain::recipe;
using namespace ltrain::test;

namespace {

struct Counts {
  int refused = 0, suggestions = 0, removals = 0;
};

/// Tries what the refusal of a recipe says. With one problem the whole recipe must be accepted; of several
/// the one that is fixed must be gone.
void try_advice(const BadRecipe& bad, Counts& counts) {
  std::string text = refusal(bad);
  if (text == "(accepted)") return;
  ++counts.refused;
  if (bad.ranks > 0) {  // errors for any number of ranks are found without looking at the ranks
    BadRecipe alone = bad;
    alone.ranks = 0;
    if (refusal(alone) != "(accepted)") return try_advice(alone, counts);
  }
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  if (lines.size() > 1) lines.erase(lines.begin());  // "r.yaml: 3 problems"
  static const std::regex problem("^ *[^ ]*(?:command line)?: ([a-z0-9_.]+) = .*");
  for (const std::string& line : lines) {
    std::smatch found;
    if (!std::regex_match(line, found, problem)) continue;
    const std::string path = found[1];
    const auto check = [&](const std::vector<std::string>& changes, const std::string& what) {
      BadRecipe changed = bad;
      changed.overrides.insert(changed.overrides.end(), changes.begin(), changes.end());
      const std::string left = refusal(changed);
      INFO(bad.text << fmt::format("{}", fmt::join(bad.overrides, " ")) << "\n"
                    << line << "\ntried: " << what << "\n"
                    << left);
      if (lines.size() == 1)
        CHECK(left == "(accepted)");
      else
        CHECK(left.find(": " + path + " = ") == std::string::npos);
    };
    for (const Suggestion& s : read_advice(path, line).suggestions) {
      std::vector<std::string> changes;
      for (const auto& [key, value] : s.changes) changes.push_back(key + "=" + value);
      check(changes, s.text);
      ++counts.suggestions;
    }
    if (line.ends_with("remove the key") && lines.size() == 1) {
      check({"~" + path}, "~" + path);
      ++counts.removals;
    }
  }
}

const std::vector<std::string> kValid = {
    "{}\n",
    "model: {architecture: gpt2, hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 4}\n"
    "precision: fp16\ntrain: {micro_batch_size: 2, global_batch_size: 8}\n",
    "model: {hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, num_hidden_layers: 8, "
    "intermediate_size: 128}\nparallel: {data: 2, tensor: 2, sequence_parallel: true, pipeline: 2, schedule: "
    "interleaved}\ntrain: {micro_batch_size: 2, global_batch_size: 16}\n",
    "model: {architecture: mixtral, hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2, "
    "intermediate_size: 128, moe: {num_experts: 8, top_k: 2, balance: {kind: switch}, capacity_factor: "
    "2.0}}\n"
    "parallel: {data: 4, expert: 4, zero_stage: 1}\ntrain: {global_batch_size: 16}\n",
    "model: {hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 4}\nparallel: {data: 2, context: 2, "
    "zero_stage: 2, shard_group: 2}\nprecision: bf16\noptimizer: {kind: muon}\nrecompute: {granularity: "
    "selective, modules: [core_attn]}\n",
    "optimizer: {kind: sophia}\nschedule: {lr_decay_style: WSD, lr_warmup_steps: 10}\ntrain: {train_steps: "
    "100}\nparallel: {data: 4, zero_stage: 3}\n",
    "precision: fp8\nfp8: {output_layer: true}\nmodel: {num_hidden_layers: 4}\nparallel: {tensor: 2}\n",
    "model: {num_hidden_layers: 4}\nparallel: {tensor: 4, tensor_mode: 2d}\ntrain: {micro_batch_size: 4}\n"};

/// Values of a key that are right, wrong, and on the edge.
std::vector<std::string> values_of(const Key& key) {
  std::vector<std::string> v;
  for (const std::string& c : key.choices) v.push_back(c);
  if (key.type == "integer")
    for (const char* n :
         {"-1", "0", "1", "2", "3", "5", "7", "12", "100", "1000", "3000000000", "1,000", "2.0"})
      v.emplace_back(n);
  else if (key.type == "number")
    for (const char* n : {"-1", "0", "1e-9", "1,5e-3", "0.5", "1", "1.5", "1e9", "\"2\""}) v.emplace_back(n);
  else if (key.type == "true or false")
    for (const char* n : {"true", "false", "yes", "0"}) v.emplace_back(n);
  else
    for (const char* n : {"x", "2", "[]", "[1]", "[4, 4]", "none", "node"}) v.emplace_back(n);
  return v;
}

}  // namespace

TEST_CASE("advice is read back as it is written", "[recipe]") {
  const Advice a = read_advice("parallel.tensor",
                               "must divide x (12); nearest valid value: 6 or 8, or parallel.data: 2, with "
                               "optimizer.groups: [a, {b: c}], or none; or something else");
  REQUIRE(a.suggestions.size() == 4);
  using Changes = std::vector<std::pair<std::string, std::string>>;
  CHECK(a.suggestions[0].changes == Changes{{"parallel.tensor", "6"}});
  CHECK(a.suggestions[1].changes == Changes{{"parallel.tensor", "8"}});
  CHECK(a.suggestions[2].changes == Changes{{"parallel.data", "2"}, {"optimizer.groups", "[a, {b: c}]"}});
  CHECK(a.suggestions[3].changes == Changes{{"parallel.tensor", "none"}});
  CHECK(a.rule == "must divide x (12)");
  CHECK(a.more == "; or something else");
  const Advice b = read_advice("seed", "needs an integer; write 1000");
  REQUIRE(b.suggestions.size() == 1);
  CHECK(b.suggestions[0].changes == Changes{{"seed", "1000"}});
  CHECK(read_advice("seed", "must be whole").suggestions.empty());
  for (const char* text :
       {"a; nearest valid value: 6 or 8", "a; nearest valid value: x, or train.train_steps: 5; b",
        "needs an integer; write 5", "plain"})
    CHECK(read_advice("seed", text).text() == text);
}

TEST_CASE("what the refusals of the bad recipes suggest is accepted", "[recipe]") {
  Counts counts;
  for (const BadRecipe& bad : all_bad_recipes()) try_advice(bad, counts);
  CHECK(counts.refused >= 250);
  CHECK(counts.suggestions >= 150);
  CHECK(counts.removals >= 10);
}

TEST_CASE("what is suggested where any key of a valid recipe is changed is accepted", "[recipe]") {
  Counts counts;
  for (const std::string& text : kValid) {
    BadRecipe recipe;
    recipe.text = text;
    INFO(text);
    REQUIRE(refusal(recipe) == "(accepted)");
    const Recipe valid = parse_recipe(text, "r.yaml");
    const int world = valid.parallel.data > 0 ? static_cast<int>(ranks(valid)) : 0;
    for (const Key& key : schema())
      for (const std::string& value : values_of(key)) {
        BadRecipe changed = recipe;
        changed.overrides = {key.path + "=" + value};
        changed.ranks = key.path == "parallel.data" ? world : 0;
        try_advice(changed, counts);
      }
  }
  CHECK(counts.refused >= 3000);
  CHECK(counts.suggestions >= 2000);
  CHECK(counts.removals >= 100);
}

TEST_CASE("what is suggested where two keys of a valid recipe are changed is accepted", "[recipe]") {
  std::mt19937 random(5);
  const auto pick = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  std::vector<const Key*> layout;  // keys of which several break rules together
  for (const Key& key : schema())
    for (const char* section :
         {"parallel.", "model.", "train.", "data.seq_length", "optimizer.kind", "precision"})
      if (key.path.starts_with(section)) layout.push_back(&key);
  Counts counts;
  for (int i = 0; i < 4000; ++i) {
    BadRecipe changed;
    changed.text = kValid[pick(kValid.size())];
    for (int k = 0; k < 2; ++k) {
      const Key& key = *layout[pick(layout.size())];
      const auto values = values_of(key);
      changed.overrides.push_back(key.path + "=" + values[pick(values.size())]);
    }
    try_advice(changed, counts);
  }
  CHECK(counts.refused >= 1500);
  CHECK(counts.suggestions >= 1000);
}

TEST_CASE("a suggested number is what was meant, or there is none", "[recipe]") {
  const auto said = [](const std::string& key, const std::string& value) {
    BadRecipe bad;
    bad.overrides = {key + "=" + value};
    const std::string text = refusal(bad);
    const Advice a = read_advice(key, text);
    return a.suggestions.empty() ? text == "(accepted)" ? text : std::string("none") : a.suggestions[0].text;
  };
  for (const auto& [value, meant] : {std::pair("1,5e-3", "1.5e-3"),
                                     {"0,001", "0.001"},
                                     {"0,0015", "0.0015"},
                                     {"1_0e-3", "10e-3"},
                                     {"1,500", "none"},
                                     {"1,2,3", "none"},
                                     {"1,000,000", "1000000"},
                                     {"1,5_0", "none"},
                                     {",5", "none"},
                                     {"1e-3x", "none"},
                                     {"\"1e-3\"", "1e-3"},
                                     {"1e-3", "(accepted)"}})
    CHECK(said("optimizer.lr", value) == meant);
  for (const auto& [value, meant] : {std::pair("1,000", "1000"),
                                     {"1,5", "none"},
                                     {"10_000", "10000"},
                                     {"1,00", "none"},
                                     {"1e3", "1000"},
                                     {"2.0", "2"},
                                     {"2.5", "none"},
                                     {"010", "10"},
                                     {"\"7\"", "7"},
                                     {"1,000,000", "1000000"},
                                     {"0,500", "none"},
                                     {"-1,000", "none"}})
    CHECK(said("train.train_steps", value) == meant);
}
