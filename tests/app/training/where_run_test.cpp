// `where` of a source: records that a run keeps by their fields.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kCached = "run tiny.yaml data.eval=[] train.eval_interval=0 data.cache=cache ";

/// Writes all.jsonl, and en.jsonl with its English records of a score of at least 0.5.
void write_records(const TempRun& t) {
  std::ofstream all(t.folder() + "/all.jsonl"), en(t.folder() + "/en.jsonl");
  for (int i = 0; i < 400; ++i) {
    const bool english = i % 3 != 0;
    const double score = (i % 10) / 10.0;
    const std::string line = nlohmann::json{
        {"text", "record " + std::to_string(i) + " of a language"},
        {"meta", {{"language", english ? "en" : "de"}}},
        {"score", score}}.dump();
    all << line << "\n";
    if (english && score >= 0.5) en << line << "\n";
  }
}

}  // namespace

TEST_CASE("run: a filtered source trains like a file of the records that it keeps, to the bit") {
  TempRun t;
  write_records(t);
  REQUIRE(t.sh(kCached + "'data.train=[{path: en.jsonl, text: text}]' output_dir=a").code == 0);
  const std::string filtered =
      kCached + "'data.train=[{path: all.jsonl, where: {meta.language: [en], score: {min: 0.5}}}]' ";
  const Outcome first = t.sh(filtered + "output_dir=b");
  INFO(first.text);
  REQUIRE(first.code == 0);
  CHECK_THAT(first.text, Contains("133 of 400 records kept by where"));
  CHECK(t.metric("lm_loss", "b") == t.metric("lm_loss", "a"));
  const Outcome again = t.sh(filtered + "output_dir=c");
  CHECK_THAT(again.text, !Contains("tokenising") && Contains("133 of 400"));
  // Another filter is other data.
  const Outcome other =
      t.sh(kCached + "'data.train=[{path: all.jsonl, where: {meta.language: de}}]' output_dir=d");
  CHECK_THAT(other.text, Contains("tokenising") && Contains("134 of 400"));
  CHECK(t.metric("lm_loss", "d") != t.metric("lm_loss", "a"));
}

TEST_CASE(
    "run: a filter on an unknown field, keys of records on token files, and a filter that keeps nothing are "
    "refused") {
  TempRun t;
  write_records(t);
  const Outcome unknown = t.sh(kCached + "'data.train=[{path: all.jsonl, where: {tongue: en}}]'");
  CHECK(unknown.code == 65);
  CHECK_THAT(unknown.text, Contains("all.jsonl:1: where: no field \"tongue\""));
  for (const std::string key : {"where: {language: en}", "text: body", "split: train", "config: en"}) {
    INFO(key);
    const Outcome tokens = t.sh(kCached + "'data.train=[{path: text-train, " + key + "}]'");
    CHECK(tokens.code == 64);
    CHECK_THAT(tokens.text,
               Contains(key.substr(0, key.find(':')) + ": expected files of records, got token files"));
  }
  const Outcome nothing = t.sh(kCached + "'data.train=[{path: all.jsonl, where: {score: {min: 7}}}]'");
  CHECK(nothing.code == 65);
  CHECK_THAT(nothing.text, Contains("0 of 400 records kept by where"));
}

TEST_CASE(
    "run: a source without its copies and evaluation data trains like a file without them, to the bit") {
  TempRun t;
  const auto text_of = [](int i) {
    return "record " + std::to_string(i) + " is read " + std::to_string(i * i) + " times by all who know it";
  };
  std::ofstream all(t.folder() + "/all.jsonl"), few(t.folder() + "/few.jsonl"),
      held(t.folder() + "/held.jsonl");
  for (int i = 0; i < 500; ++i) {
    const std::string line = nlohmann::json{{"text", text_of(i % 200)}}.dump();
    all << line << "\n";
    if (i < 200 && i % 10 != 3) few << line << "\n";
    if (i < 200 && i % 10 == 3)
      held << nlohmann::json{{"q", {"Really: " + text_of(i) + "?", 1}}}.dump() << "\n";
  }
  all.close(), few.close(), held.close();
  REQUIRE(t.sh(kCached + "'data.train=[few.jsonl]' output_dir=a").code == 0);
  const std::string chosen = kCached +
                             "'data.train=[all.jsonl]' data.deduplicate=exact "
                             "'data.decontaminate.against=[held.js*]' data.decontaminate.ngram=10 ";
  const Outcome first = t.sh(chosen + "output_dir=b");
  INFO(first.text);
  REQUIRE(first.code == 0);
  // 20 texts of the evaluation data are twice or three times in the file.
  CHECK_THAT(first.text, Contains("note: data.train: all.jsonl: 270 documents left out by deduplicate") &&
                             Contains("50 documents left out by decontaminate") && Contains("180 documents"));
  CHECK(t.metric("lm_loss", "b") == t.metric("lm_loss", "a"));
  CHECK_THAT(t.sh(chosen + "output_dir=c").text,
             !Contains("tokenising") && Contains("270 documents left out"));
  // Held-out data are read as they are.
  const Outcome same = t.sh(chosen + "'data.eval=[all.jsonl]' train.eval_interval=6 output_dir=d");
  INFO(same.text);
  CHECK(same.code == 0);
  CHECK_THAT(same.text, Contains("tokenising all.jsonl") && !Contains("data.eval: all.jsonl: 270"));
  const Outcome tokens = t.sh(chosen + "'data.train=[text-train]'");
  CHECK(tokens.code == 64);
  CHECK_THAT(tokens.text,
             Contains("text-train: data.deduplicate: expected files of text or records, got token"));
  const Outcome nowhere = t.sh(chosen + "'data.decontaminate.against=[nowhere]'");
  CHECK(nowhere.code == 65);
  CHECK_THAT(nowhere.text, Contains("data.decontaminate.against: path nowhere: expected a file or a folder"));
}

TEST_CASE("data build: --where keeps records, and says how many") {
  TempRun t;
  write_records(t);
  const Outcome built = t.sh(
      "data build --input all.jsonl --tokenizer byte --output en --where '{meta.language: en, score: {min: "
      "0.5}}'");
  INFO(built.text);
  REQUIRE(built.code == 0);
  CHECK_THAT(built.text, Contains("133 of 400 records kept by --where"));
  const Outcome wrong =
      t.sh("data build --input all.jsonl --tokenizer byte --output x --where '{score: {mim: 1}}'");
  CHECK(wrong.code == 64);
  CHECK_THAT(wrong.text, Contains("unknown key `mim`"));
}
