// Checkpoints with rows for more or fewer tokens.
#include "runtime/weights/resize_vocab.h"

#include <catch2/catch.hpp>

#include "tests/runtime/weights/support.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

ResizeVocabOptions options(const std::string& from, const std::string& to, int64_t size) {
  ResizeVocabOptions o;
  o.checkpoint = from;
  o.made = to;
  o.vocab_size = size;
  return o;
}

}  // namespace

TEST_CASE("new rows of a vocabulary are the mean of the old ones, which stay bit for bit", "[weights]") {
  const TemporaryFolder t;
  const json& model = golden().begin().value()["mixtral"];
  write_folder(t.path() + "/in", model["config"], random_tensors(model));
  import_folder(t.path() + "/in", t.path() + "/old");
  const WholeCheckpoint old = read_whole_checkpoint(t.path() + "/old");
  const int64_t before = old.recipe.model.vocab_size, after = before + 5,
                hidden = old.recipe.model.hidden_size;
  const ResizeVocabReport report = resize_vocab(options(t.path() + "/old", t.path() + "/new", after));
  CHECK((report.before == before && report.after == after));
  REQUIRE(report.tensors == std::vector<std::string>{"lm_head.weight", "model.embed_tokens.weight"});
  const WholeCheckpoint made = read_whole_checkpoint(t.path() + "/new");
  CHECK(made.recipe.model.vocab_size == after);
  CHECK(made.types == old.types);
  for (const auto& [name, values] : made.tensors) {
    INFO(name);
    const std::vector<double>& were = old.tensors.at(name);
    const bool kept = std::equal(were.begin(), were.end(), values.begin());
    CHECK(kept);
    const bool table = name == "lm_head.weight" || name == "model.embed_tokens.weight";
    REQUIRE(values.size() == were.size() + (table ? 5 * static_cast<size_t>(hidden) : 0));
    if (!table) continue;
    double worst = 0, largest = 0;
    for (int64_t c = 0; c < hidden; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < before; ++r) sum += were[static_cast<size_t>(r * hidden + c)];
      const double mean = sum / static_cast<double>(before);
      largest = std::max(largest, std::abs(mean));
      for (int64_t r = before; r < after; ++r)
        worst = std::max(worst, std::abs(values[static_cast<size_t>(r * hidden + c)] - mean));
    }
    CHECK(largest > 0);
    CHECK(worst <= largest / 256);  // rounded to bf16 once
  }
  // The same again; other rows by other rules, each a function of the options alone.
  resize_vocab(options(t.path() + "/old", t.path() + "/again", after));
  CHECK(read_whole_checkpoint(t.path() + "/again").tensors == made.tensors);
  ResizeVocabOptions o = options(t.path() + "/old", t.path() + "/zero", after);
  o.rows = NewRows::zero;
  resize_vocab(o);
  const auto zero = read_whole_checkpoint(t.path() + "/zero").tensors.at("lm_head.weight");
  CHECK(std::all_of(zero.end() - 5 * hidden, zero.end(), [](double v) { return v == 0; }));
  o.rows = NewRows::normal;
  o.made = t.path() + "/normal";
  resize_vocab(o);
  const auto normal = read_whole_checkpoint(t.path() + "/normal").tensors.at("lm_head.weight");
  double squares = 0;
  for (auto v = normal.end() - 5 * hidden; v != normal.end(); ++v) squares += *v * *v;
  const double std = std::sqrt(squares / static_cast<double>(5 * hidden));
  CHECK(std > 0.5 * old.recipe.model.initializer_range);
  CHECK(std < 1.5 * old.recipe.model.initializer_range);
}

TEST_CASE("rows of a vocabulary are lost by --force alone, where their tokens may be used", "[weights]") {
  const TemporaryFolder t;
  const json& model = golden().begin().value()["mixtral"];
  write_folder(t.path() + "/in", model["config"], random_tensors(model));
  import_folder(t.path() + "/in", t.path() + "/old");
  const WholeCheckpoint old = read_whole_checkpoint(t.path() + "/old");
  const int64_t before = old.recipe.model.vocab_size, hidden = old.recipe.model.hidden_size;
  ResizeVocabOptions o = options(t.path() + "/old", t.path() + "/new", before - 3);
  CHECK_THROWS_WITH(resize_vocab(o), Contains("3 rows would be lost, and the checkpoint does not record"));
  CHECK(!path_exists(o.made));
  o.force = true;
  resize_vocab(o);
  const auto rows = read_whole_checkpoint(o.made).tensors.at("model.embed_tokens.weight");
  const auto& were = old.tensors.at("model.embed_tokens.weight");
  REQUIRE(rows.size() == static_cast<size_t>((before - 3) * hidden));
  const bool kept = std::equal(rows.begin(), rows.end(), were.begin());
  CHECK(kept);
  CHECK_THROWS_WITH(resize_vocab(options(t.path() + "/old", t.path() + "/same", before)),
                    Contains("has a vocabulary of " + std::to_string(before) + " already"));
  CHECK_THROWS_WITH(resize_vocab(o), Contains("new"));  // it exists
}
