// Training on text and records without a build of token files before: `data.train: [{path: FOLDER}]`.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

/// Writes documents as JSONL, compressed, in two files, and the same as a CSV.
void write_documents(const TempRun& t) {
  fs::create_directories(t.folder() + "/docs/data");
  std::ofstream first(t.folder() + "/docs/data/train-0.jsonl"),
      second(t.folder() + "/docs/data/train-1.jsonl"), csv(t.folder() + "/all.csv");
  csv << "id,body\n";
  for (int i = 0; i < 400; ++i) {
    const std::string text = "document " + std::to_string(i) + " repeats itself " + std::to_string(i * i);
    (i < 200 ? first : second) << nlohmann::json{{"id", i}, {"body", text}}.dump() << "\n";
    csv << i << "," << text << "\n";
  }
  first.close(), second.close();
  std::ofstream(t.folder() + "/docs/README.md")
      << "---\ndataset_info:\n  splits: []\nconfigs:\n- config_name: default\n  data_files:\n  - split: "
         "train\n"
         "    path: data/train-*.jsonl.gz\n  - split: test\n    path: data/test-*\n---\n# About\n";
  REQUIRE(
      t.shell("gzip docs/data/*.jsonl && echo '{\"body\": \"held out\"}' > docs/data/test-0.jsonl").code ==
      0);
}

const std::string kCached = "run tiny.yaml data.eval=[] train.eval_interval=0 data.cache=cache ";

}  // namespace

TEST_CASE("run: a dataset folder is tokenised once, and trains like its token files, to the bit") {
  TempRun t;
  write_documents(t);
  REQUIRE(t.sh("data build --input docs --field body --output built --tokenizer byte").code == 0);
  const Outcome built = t.sh(kCached + "data.train=[built] output_dir=a");
  INFO(built.text);
  REQUIRE(built.code == 0);

  const std::string folder = kCached + "'data.train=[{path: docs, text: body}]' ";
  const Outcome first = t.sh(folder + "output_dir=b");
  INFO(first.text);
  REQUIRE(first.code == 0);
  CHECK_THAT(first.text, Contains("tokenising docs"));
  CHECK(t.metric("lm_loss", "b") == t.metric("lm_loss", "a"));

  // The cache is found, also under another path to the same data.
  const Outcome second = t.sh(folder + "output_dir=c");
  CHECK_THAT(second.text, !Contains("tokenising"));
  CHECK(t.metric("lm_loss", "c") == t.metric("lm_loss", "a"));
  REQUIRE(t.shell("mv docs moved").code == 0);
  const Outcome moved = t.sh(kCached + "'data.train=[{path: moved, text: body}]' output_dir=d");
  CHECK_THAT(moved.text, !Contains("tokenising"));
  CHECK(t.metric("lm_loss", "d") == t.metric("lm_loss", "a"));
  // The same documents from a CSV.
  REQUIRE(t.sh(kCached + "'data.train=[{path: all.csv, text: body}]' output_dir=e").code == 0);
  CHECK(t.metric("lm_loss", "e") == t.metric("lm_loss", "a"));
}

TEST_CASE("run: a resume takes the same data from a folder, and refuses documents that changed") {
  TempRun t;
  write_documents(t);
  const std::string run = kCached + "'data.train=[{path: docs, text: body}]' ";
  REQUIRE(t.sh(run + "output_dir=whole").code == 0);
  REQUIRE(t.sh(run + "--steps 3").code == 0);
  const Outcome resumed = t.sh(run);
  INFO(resumed.text);
  REQUIRE(resumed.code == 0);
  CHECK(t.metric("lm_loss") == t.metric("lm_loss", "whole"));
  REQUIRE(t.shell("echo '{\"body\": \"one more\"}' | gzip >> docs/data/train-1.jsonl.gz").code == 0);
  const Outcome changed = t.sh(run + "train.train_steps=8");
  INFO(changed.text);
  CHECK(changed.code != 0);
  CHECK_THAT(changed.text, Contains("data.train.0"));
}

TEST_CASE("run: a bad record stops the run before it trains, or is left out and named") {
  TempRun t;
  write_documents(t);
  REQUIRE(t.shell("echo '{\"body\": 5}' | gzip >> docs/data/train-1.jsonl.gz").code == 0);
  const std::string run = kCached + "'data.train=[{path: docs, text: body}]' ";
  const Outcome stopped = t.sh(run);
  INFO(stopped.text);
  CHECK(stopped.code == 65);
  CHECK_THAT(stopped.text, Contains("train-1.jsonl.gz:201: \"body\" is not a string"));
  CHECK(t.metric("lm_loss").empty());
  const Outcome wrong = t.sh(kCached + "'data.train=[{path: docs, text: bodies}]'");
  CHECK(wrong.code == 65);
  CHECK_THAT(wrong.text, Contains("train-0.jsonl.gz:1: no key \"bodies\""));
  const Outcome skipped = t.sh(run + "data.on_bad_record=skip");
  INFO(skipped.text);
  CHECK(skipped.code == 0);
  CHECK_THAT(skipped.text, Contains("docs: 1 bad records left out"));
}

TEST_CASE(
    "run: ranks of another launcher tokenise together before they meet, and train as one launcher's do") {
  TempRun t;
  write_documents(t);
  const std::string run = kCached + "'data.train=[{path: docs, text: body}]' ";
  REQUIRE(t.sh(run + "output_dir=one").code == 0);
  const std::string joined = run + "data.cache=joined output_dir=two";
  const auto rank = [&](int r) {
    return "RANK=" + std::to_string(r) + " LOCAL_RANK=" + std::to_string(r) +
           " WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port " + program() + " " +
           joined;
  };
  const Outcome o =
      t.shell("port=$((20000 + $$ % 20000)); " + rank(1) + " & " + rank(0) + "; code=$?; wait; exit $code");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK(t.metric("lm_loss", "two") == t.metric("lm_loss", "one"));
  CHECK(fs::exists(t.folder() + "/joined"));
}

TEST_CASE("run --dry-run says which data would be tokenised, and writes nothing") {
  TempRun t;
  write_documents(t);
  const Outcome o = t.sh(kCached + "'data.train=[{path: docs, text: body}]' --dry-run");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text,
             Contains("data.train: docs: 2 files") && Contains("are tokenised before the run trains"));
  CHECK_FALSE(fs::exists(t.folder() + "/cache"));
  const Outcome none = t.sh(kCached + "'data.train=[{path: docs, text: body, split: validation}]' --dry-run");
  INFO(none.text);
  CHECK(none.code == 65);
  CHECK_THAT(none.text, Contains("no split validation; the configuration default has: test, train"));
}

TEST_CASE("data prepare: a run finds the files, a killed one goes on, and two at once make each shard once") {
  TempRun t;
  REQUIRE(t.shell("mkdir texts; for i in 1 2 3 4 5 6; do head -c 9000 text.txt > texts/$i.txt; done").code ==
          0);
  const std::string recipe =
                        "tiny.yaml 'data.train=[{path: texts}]' data.tokenizer.kind=byte data.eval=[] "
                        "train.eval_interval=0 data.shard_mib=0.005 ",
                    prepare = "data prepare " + recipe + "-q --json data.cache=";
  const Outcome once = t.sh(prepare + "once");
  INFO(once.text);
  REQUIRE(once.code == 0);
  const auto made = nlohmann::json::parse(once.text);
  CHECK(made["made"] == true);
  CHECK(made["token_files"] == 6);
  CHECK(made["tokens"] == 6 * 9001);
  CHECK(nlohmann::json::parse(t.sh(prepare + "once").text)["made"] == false);
  const Outcome run = t.sh("run " + recipe + "data.cache=once output_dir=run");
  REQUIRE(run.code == 0);
  CHECK_THAT(run.text, !Contains("tokenising"));
  // Two processes with one folder, of which the first is killed.
  const std::string both = "(timeout -s KILL 0.05 " + program() + " " + prepare + "both; true) & " +
                           program() + " " + prepare + "both; wait; " + program() + " " + prepare + "both";
  const Outcome shared = t.shell(both);
  INFO(shared.text);
  REQUIRE(shared.code == 0);
  CHECK(t.shell("cd once && sha256sum *.bin *.idx > ../sums; cd ../both && sha256sum -c ../sums").code == 0);
}
