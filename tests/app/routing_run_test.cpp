// `ltrain eval --routing`: choices of routers on held-out tokens, and how many change between checkpoints.
#include <catch2/catch.hpp>

#include <algorithm>

#include "base/json/json.h"
#include "tests/app/json_lines.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// Six steps of a model with 4 experts, top-2, in the second of two layers, saved after 3 and 6.
void train_qwen3_moe(const TempRun& t, const std::string& more = "") {
  const Outcome o = t.sh(
      "run tiny.yaml model.architecture=qwen3_moe model.moe.num_experts=4 model.moe.top_k=2 "
      "model.moe.layer_step=2 "
      "model.moe.intermediate_size=32 model.num_hidden_layers=2 train.train_steps=6 train.eval_interval=0 "
      "checkpoint.save_interval=3 optimizer.lr=0.02 output_dir=moe " +
      more);
  INFO(o.text);
  REQUIRE(o.code == 0);
}

}  // namespace

TEST_CASE("routing: a record has k experts of each token, and changes are counted against an earlier one") {
  TempRun t;
  train_qwen3_moe(t);
  const std::string early = "eval moe/checkpoints/step-00000003 --samples 5 ",
                    late = "eval moe/checkpoints/step-00000006 --samples 5 --json ";
  Outcome o = t.sh(early + "--routing early.jsonl");
  INFO(o.text);
  REQUIRE(o.code == 0);
  const auto before = json_lines(t, "early.jsonl");
  REQUIRE(before.size() == 5);
  for (size_t i = 0; i < before.size(); ++i) {
    CHECK(before[i]["step"] == 3);
    CHECK(before[i]["sample"] == i);
    CHECK(before[i]["layer"] == 1);
    const int tokens = before[i]["num_tokens"];
    CHECK(before[i]["tokens"].size() == static_cast<size_t>(tokens));
    REQUIRE(before[i]["top_indices"].size() == static_cast<size_t>(tokens));
    for (const auto& row : before[i]["top_indices"]) {
      REQUIRE(row.size() == 2);
      CHECK(row[0] != row[1]);
      for (const int e : row) CHECK((e >= 0 && e < 4));
    }
  }
  // Other micro-batches, and experts on two ranks, record the same.
  REQUIRE(t.sh(early + "--micro-batch 2 --routing other.jsonl").code == 0);
  CHECK(json_lines(t, "other.jsonl") == before);
  o = t.sh(early + "--parallel data=2,expert=2 --routing ranks.jsonl");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK(json_lines(t, "ranks.jsonl") == before);
  // The counts are those of the two files.
  o = t.sh(late + "--routing late.jsonl --routing-before early.jsonl");
  INFO(o.text);
  REQUIRE(o.code == 0);
  const auto now = json_lines(t, "late.jsonl");
  int tokens = 0, first = 0, others = 0;
  for (size_t i = 0; i < now.size(); ++i)
    for (size_t k = 0; k < now[i]["top_indices"].size(); ++k) {
      const auto &a = before[i]["top_indices"][k], &b = now[i]["top_indices"][k];
      ++tokens;
      first += a[0] != b[0];
      for (const auto& e : b) others += e != a[0] && e != a[1];
    }
  const auto changes = nlohmann::json::parse(o.text)["routing_changes"];
  REQUIRE(changes.size() == 1);
  CHECK(first > 0);
  CHECK(changes[0]["layer"] == 1);
  CHECK(changes[0]["tokens"] == tokens);
  CHECK(changes[0]["first"].get<double>() == Approx(double(first) / tokens));
  CHECK(changes[0]["choices"].get<double>() == Approx(double(others) / (2 * tokens)));
  o = t.sh(early + "--routing-before early.jsonl");
  CHECK_THAT(o.text, Contains("  layer 1      0.00%   0.00%"));
}

TEST_CASE("routing: with top-p a token has as many experts as it took") {
  TempRun t;
  train_qwen3_moe(t,
                  "model.moe.router.selection=top_p model.moe.router.top_p=0.215 model.moe.zero_experts=2");
  const std::string early = "eval moe/checkpoints/step-00000003 --samples 5 ";
  REQUIRE(t.sh(early + "--routing early.jsonl").code == 0);
  REQUIRE(t.sh(early + "--parallel data=2,expert=2 --routing ranks.jsonl").code == 0);
  const auto before = json_lines(t, "early.jsonl");
  CHECK(json_lines(t, "ranks.jsonl") == before);
  REQUIRE(before.size() == 5);
  int of_size[3] = {};
  for (const auto& line : before) {
    CHECK((line["topk"] == 2 && line["selection"] == "top_p"));
    for (const auto& row : line["top_indices"]) {
      REQUIRE((row.size() == 1 || row.size() == 2));
      ++of_size[row.size()];
      for (const int e : row) CHECK((e >= 0 && e < 6));
    }
  }
  CHECK((of_size[1] > 0 && of_size[2] > 0));
  const Outcome o = t.sh(
      "eval moe/checkpoints/step-00000006 --samples 5 --json --routing late.jsonl --routing-before "
      "early.jsonl");
  INFO(o.text);
  REQUIRE(o.code == 0);
  const auto now = json_lines(t, "late.jsonl");
  int all = 0, others = 0;
  for (size_t i = 0; i < now.size(); ++i)
    for (size_t k = 0; k < now[i]["top_indices"].size(); ++k) {
      const auto& a = before[i]["top_indices"][k];
      for (const auto& e : now[i]["top_indices"][k])
        ++all, others += std::find(a.begin(), a.end(), e) == a.end();
    }
  CHECK(others > 0);
  CHECK(nlohmann::json::parse(o.text)["routing_changes"][0]["choices"].get<double>() ==
        Approx(double(others) / all));
}

TEST_CASE("routing: other tokens, damaged records, dense models and layouts without all tokens are refused") {
  TempRun t;
  train_qwen3_moe(t);
  REQUIRE(t.sh("eval moe --samples 2 --routing two.jsonl").code == 0);
  const auto refused = [&](const std::string& arguments, int code, const std::string& why) {
    const Outcome o = t.sh("eval " + arguments);
    INFO(o.text);
    CHECK(o.code == code);
    CHECK_THAT(o.text, Contains(why));
  };
  refused("moe --samples 3 --routing-before two.jsonl", 65,
          "sample 2 of set \"\", layer 1: expected the tokens");
  refused("moe --samples 1 --routing-before two.jsonl", 65,
          "has 1 lines of samples that were not evaluated now");
  refused("moe --samples 2 --seq-length 16 --routing-before two.jsonl", 65,
          "record both with the same --data");
  REQUIRE(t.shell("sed 's/\"topk\":2/\"topk\":3/' two.jsonl > topk.jsonl; head -c 300 two.jsonl > cut.jsonl")
              .code == 0);
  refused("moe --samples 2 --routing-before topk.jsonl", 65,
          "topk.jsonl:1: is not a line of `ltrain eval --routing`");
  refused("moe --samples 2 --routing-before cut.jsonl", 65, "cut.jsonl:1: is not a line of");
  refused("moe --parallel tensor=2 --routing w.jsonl", 64,
          "--routing: expected one rank of tensor and pipeline");
  REQUIRE(t.sh("run tiny.yaml train.train_steps=1 train.eval_interval=0 output_dir=dense").code == 0);
  refused("dense --routing w.jsonl", 64, "to record their choices, got a model without experts");
}
