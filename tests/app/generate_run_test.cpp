// ltrain generate through the real program: several prompts, strings that end a text, several ranks.
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

TEST_CASE("generation and evaluation over several processes print what one process prints") {
  TempRun t;
  const std::string experts =
      GENERATE("", " model.architecture=mixtral model.moe.num_experts=4 model.moe.top_k=2");
  REQUIRE(
      t.sh("run tiny.yaml train.train_steps=30 optimizer.lr=0.01 model.num_hidden_layers=3" + experts).code ==
      0);
  std::ofstream(t.folder() + "/q.jsonl")
      << R"({"question": "line of a", "choices": ["text", "times"], "answer": 0})"
      << "\n"
      << R"({"question": "line", "choices": ["of", "is", "s"], "answer": 1})";
  std::vector<std::string> layouts{"tensor=2", "pipeline=2", "tensor=2 --parallel pipeline=3"};
  if (!experts.empty()) layouts = {"data=2,expert=2", "data=2,expert=2,pipeline=2"};
  const auto say = [&](const std::string& command, const std::string& layout) {
    const Outcome o = t.sh(command + (layout.empty() ? "" : " --parallel " + layout) + " 2>err.txt");
    INFO(o.text << read_text(t.folder() + "/err.txt"));
    REQUIRE(o.code == 0);
    return o.text;
  };
  for (const std::string command :
       {"generate run --prompt 'line ' --tokens 40 --temperature 0",
        "generate run --prompt 'line ' --prompt 'of a' --prompt '' --tokens 30 --seed 3 --json",
        "generate run --prompt 'line ' --tokens 40 --temperature 0 --stop e", "eval run --json",
        "eval run --choices q.jsonl --scores s.jsonl"}) {
    const std::string one = say(command, "");
    REQUIRE_FALSE(one.empty());
    std::string scores;
    if (command.ends_with("s.jsonl")) scores = read_text(t.folder() + "/s.jsonl");
    for (const std::string& layout : layouts) {
      INFO(command << " " << layout);
      const std::string several = say(command, layout);
      if (!command.starts_with("eval run --json")) {
        CHECK(several == one);
      } else {  // sums in another order
        const auto a = nlohmann::json::parse(one)["sets"][0], b = nlohmann::json::parse(several)["sets"][0];
        CHECK(a["tokens"] == b["tokens"]);
        CHECK(a["bytes"] == b["bytes"]);
        CHECK(std::abs(a["loss"].get<double>() - b["loss"].get<double>()) < 1e-4);
      }
      if (scores.empty()) continue;
      const auto a = nlohmann::json::parse(scores.substr(0, scores.find('\n')))["log_likelihoods"];
      const std::string now = read_text(t.folder() + "/s.jsonl");
      const auto b = nlohmann::json::parse(now.substr(0, now.find('\n')))["log_likelihoods"];
      for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i].get<double>() - b[i].get<double>()) < 1e-3);
    }
  }
}

TEST_CASE("a layout that a model cannot have is refused before any rank is started") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.train_steps=1").code == 0);
  const auto refused = [&](const std::string& layout) {
    const Outcome o = t.sh("generate run --parallel " + layout);
    CHECK(o.code == 64);
    CHECK(o.text.find("run failed") == std::string::npos);
    return o.text;
  };
  CHECK_THAT(refused("tensor=3"),
             Catch::Contains("parallel.tensor = 3: must divide model.num_attention_heads"));
  CHECK_THAT(refused("pipeline=99"), Catch::Contains("parallel.pipeline = 99"));
  CHECK_THAT(refused("data=2,expert=2"), Catch::Contains("a dense model has no experts to cut"));
  CHECK_THAT(refused("expert=2"), Catch::Contains("experts are cut over data ranks"));
  CHECK_THAT(refused("tensor=x"), Catch::Contains("needs a number of ranks from 1 to"));
  CHECK_THAT(refused("tensors=2"), Catch::Contains("needs data, tensor, pipeline or expert"));
  CHECK_THAT(refused("tensor"), Catch::Contains("such as tensor=2"));
}
