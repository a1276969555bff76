// ltrain init, followed to the end of what it says comes next.
#include <catch2/catch.hpp>
#include <sstream>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

/// The lines after "next:", each a command of ltrain's.
std::vector<std::string> next_commands(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text.substr(text.find("next:\n") + 6));
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("  ltrain ")) out.push_back(line.substr(9));
  return out;
}

const char* const kShort = " --steps 2 train.micro_batch_size=4 data.seq_length=32 launch.threads_per_rank=1";

}  // namespace

TEST_CASE("init writes a recipe for a folder, and the two commands that it names train on it") {
  TempRun t;
  REQUIRE(t.shell("mkdir \"my notes\" && cp text.txt \"my notes/a.txt\" && head -c 5000 text.txt > \"my "
                  "notes/b.txt\"")
              .code == 0);
  const Outcome init = t.sh("init \"my notes\"");
  INFO(init.text);
  REQUIRE(init.code == 0);
  CHECK_THAT(init.text, Contains("wrote my-notes.yaml, for 2 files of "));
  const std::vector<std::string> next = next_commands(init.text);
  REQUIRE(next.size() == 2);
  CHECK(next[0].starts_with("data build --input 'my notes' --output runs/my-notes/data/text --split 95,5"));
  CHECK(next[1] == "run my-notes.yaml");
  const Outcome build = t.sh(next[0] + " -q");
  INFO(build.text);
  REQUIRE(build.code == 0);
  const Outcome run = t.sh(next[1] + kShort);
  INFO(run.text);
  CHECK(run.code == 0);
  CHECK(t.metric("lm_loss", "runs/my-notes").size() == 2);
  // Existing files stay.
  const Outcome again = t.sh("init \"my notes\"");
  CHECK(again.code == 64);
  CHECK_THAT(again.text, Contains("my-notes.yaml: is there already"));
  CHECK(t.sh("init \"my notes\" --output other.yaml").code == 0);
}

TEST_CASE("init takes tokenizer and vocabulary of token files from their sidecar") {
  TempRun t;
  const Outcome init = t.sh("init text-train");
  INFO(init.text);
  REQUIRE(init.code == 0);
  CHECK_THAT(init.text, Contains("wrote text-train.yaml, for ") && Contains(" tokens of byte"));
  const std::string recipe = read_file(t.folder() + "/text-train.yaml");
  CHECK_THAT(recipe, Contains("vocab_size: 257\n") && Contains("train: [{path: \"text-train\"}]") &&
                         Contains("eval: [{path: \"text-val\"}]") && Contains("tokenizer: {kind: byte}"));
  const std::vector<std::string> next = next_commands(init.text);
  REQUIRE(next.size() == 2);
  CHECK(t.sh(next[0]).code == 0);
  CHECK(t.sh(next[1] + kShort).code == 0);
}

TEST_CASE("init refuses what is no data, and writes nothing then") {
  TempRun t;
  REQUIRE(t.shell("mkdir empty").code == 0);
  CHECK(t.sh("init empty").code != 0);
  CHECK(t.sh("init nowhere").code != 0);
  CHECK_FALSE(std::filesystem::exists(t.folder() + "/empty.yaml"));
  REQUIRE(t.shell("cp text-train.idx bare.idx && cp text-train.bin bare.bin").code == 0);
  const Outcome bare = t.sh("init bare");
  INFO(bare.text);
  CHECK(bare.code == 64);
  CHECK_THAT(bare.text, Contains("bare: has no sidecar bare.json"));
}
