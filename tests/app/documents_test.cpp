// What the README says can be done is done; every recipe is planned and run.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;

namespace {

/// Lines of ```console blocks.
std::vector<std::string> commands(const std::string& document) {
  std::vector<std::string> out;
  std::istringstream in(read_text(document));
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("```", 0) == 0) {
      inside = line == "```console";
    } else if (inside && !line.empty()) {
      out.push_back(line);
    }
  }
  return out;
}

/// A small version of any recipe: two steps, short sequences, this folder's data.
const char* kSmall =
    " train.train_steps=2 train.eval_interval=0 train.micro_batch_size=2 train.global_batch_size=4 "
    "schedule.lr_warmup_steps=1 "
    "data.seq_length=16 checkpoint.save_interval=2 ";

}  // namespace

TEST_CASE("every command of the README runs") {
  TempRun t;
  const std::string source = LTRAIN_SOURCE_DIR;
  // A checkout in small: the binary, the recipes, and the quickstart's data.
  REQUIRE(t.shell("mkdir -p build runs/quickstart/data && ln -s " + std::string(LTRAIN_BINARY) +
                  " build/ltrain && cp -r " + source +
                  "/recipes . && build/ltrain data build --input text.txt --output runs/quickstart/data/text "
                  "--split 90,10 --tokenizer byte")
              .code == 0);
  const auto list = commands(source + "/README.md");
  REQUIRE(list.size() >= 10);
  for (std::string line : list) {
    if (line.rfind("build/ltrain run ", 0) == 0) line += kSmall;
    const Outcome o = t.shell(line);
    INFO(line << "\n" << o.text);
    CHECK(o.code == 0);
  }
}

TEST_CASE("every recipe plans as it is, and runs in small on the CPU") {
  TempRun t;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(LTRAIN_SOURCE_DIR) + "/recipes")) {
    ++count;
    const std::string recipe = entry.path().string();
    const Outcome plan = t.sh("plan " + recipe);
    INFO(recipe << "\n" << plan.text);
    CHECK(plan.code == 0);
    CHECK(plan.text.find("none refused") != std::string::npos);
    const Outcome run = t.sh("run " + recipe + kSmall +
                             " output_dir=out model.num_hidden_layers=2 'data.train=[{path: text-train}]' "
                             "'data.eval=[]' data.tokenizer.kind=byte parallel.data=2 device=cpu");
    INFO(run.text);
    CHECK(run.code == 0);
    std::filesystem::remove_all(t.folder() + "/out");
  }
  CHECK(count >= 9);
}

TEST_CASE("docs/parallelism.md has the table of compositions that the program prints") {
  TempRun t;
  const std::string table = t.sh("plan --compositions").text;
  REQUIRE(table.size() > 1000);
  CHECK(
      read_text(std::string(LTRAIN_SOURCE_DIR) + "/docs/parallelism.md").find("```text\n" + table + "```") !=
      std::string::npos);
  const auto j = nlohmann::json::parse(t.sh("plan --compositions --json").text);
  CHECK(j["cells"].size() == j["features"].size() * (j["features"].size() + 1) / 2);
}
