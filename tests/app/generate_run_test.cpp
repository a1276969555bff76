// ltrain generate through the real program: several prompts, strings that end a text.
#include <catch2/catch.hpp>

#include "tests/app/run_program.h"

using namespace ltrain::test;

namespace {

/// The objects that `generate --json` prints, one a prompt.
std::vector<nlohmann::json> generated(const TempRun& t, const std::string& options) {
  const Outcome o =
      t.shell(std::string(LTRAIN_BINARY) + " generate run --json --threads 1 " + options + " 2>/dev/null");
  INFO(o.text);
  REQUIRE(o.code == 0);
  std::vector<nlohmann::json> out;
  std::istringstream lines(o.text);
  for (std::string line; std::getline(lines, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

}  // namespace

TEST_CASE("several prompts at once give what each gives, whatever the batch") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.train_steps=30 optimizer.lr=0.01").code == 0);
  const std::string three =
      "--prompt 'line ' --prompt 'of a text that' --prompt '' --tokens 50 --temperature 0";
  const auto together = generated(t, three);
  REQUIRE(together.size() == 3);
  CHECK(together[1]["prompt"] == "of a text that");
  for (const std::string batch : {"1", "2"}) CHECK(generated(t, three + " --batch " + batch) == together);
  for (size_t i = 0; i < 3; ++i) {
    const std::string prompt = together[i]["prompt"];
    const auto alone = generated(t, "--prompt '" + prompt + "' --tokens 50 --temperature 0");
    CHECK(alone.at(0)["tokens"] == together[i]["tokens"]);
  }
  // Draws are another for each prompt, though the prompts are alike, and the first one's are those of it
  // alone.
  const auto drawn = generated(t, "--prompt a --prompt a --tokens 30");
  CHECK(drawn[0]["tokens"] != drawn[1]["tokens"]);
  CHECK(generated(t, "--prompt a --tokens 30")[0]["tokens"] == drawn[0]["tokens"]);
  // For people: whole texts under their numbers.
  const Outcome text = t.sh("generate run --threads 1 --prompt 'line ' --prompt 'of' --tokens 5 2>/dev/null");
  CHECK(text.text.find("== 1\nline ") == 0);
  CHECK(text.text.find("\n== 2\nof") != std::string::npos);
}

TEST_CASE("a stop string ends a text before it") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.train_steps=30 optimizer.lr=0.01").code == 0);
  const std::string options = "--prompt 'line ' --tokens 60 --temperature 0 --ignore-end";
  const std::string whole = generated(t, options)[0]["text"];
  REQUIRE(whole.size() > 20);
  const std::string stop = whole.substr(10, 2);
  const auto cut = generated(t, options + " --stop never-there --stop '" + stop + "'")[0];
  CHECK(cut["stopped"] == true);
  CHECK(cut["text"] == whole.substr(0, whole.find(stop)));
  CHECK(cut["tokens"].size() < 20);
  CHECK(generated(t, options + " --stop never-there")[0]["text"] == whole);
  const Outcome people = t.sh("generate run --threads 1 " + options + " --stop '" + stop + "' 2>/dev/null");
  CHECK(people.text == "line " + whole.substr(0, whole.find(stop)) + "\n");
}
