// data.ledger and `ltrain data ledger`: each sample is trained on as often as the recipe says.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "base/json/json.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kLength = 32;

std::string run(const std::string& name, const std::string& more = "") {
  return "run tiny.yaml data.eval=[] train.eval_interval=0 data.ledger=true train.global_batch_size=24 "
         "train.micro_batch_size=1 train.train_steps=12 output_dir=" +
         name + " " + more;
}

/// CRC-32 of ISO 3309, a bit at a time.
uint32_t crc32(const std::vector<int32_t>& values) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const int32_t value : values)
    for (int bit = 0; bit < 32; ++bit) {
      const bool odd = ((crc ^ (static_cast<uint32_t>(value) >> bit)) & 1) != 0;
      crc = (crc >> 1) ^ (odd ? 0xEDB88320u : 0u);
    }
  return ~crc;
}

/// CRC-32 of each sample of text-train, read from its file of 16-bit tokens.
std::vector<uint32_t> samples_of_file(const TempRun& t) {
  const std::string bytes = read_file(t.folder() + "/text-train.bin");
  std::vector<int32_t> tokens(bytes.size() / 2);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<uint8_t>(bytes[2 * i]) | static_cast<uint8_t>(bytes[2 * i + 1]) << 8;
  std::vector<uint32_t> all;
  for (size_t i = 0; i + kLength < tokens.size(); i += kLength)
    all.push_back(crc32({tokens.begin() + static_cast<ptrdiff_t>(i),
                         tokens.begin() + static_cast<ptrdiff_t>(i + kLength + 1)}));
  return all;
}

/// Samples of all steps from one source by their number in the run: (number in the source, CRC-32).
std::map<int64_t, std::pair<int64_t, uint32_t>> ledger(const TempRun& t, const std::string& name) {
  std::map<int64_t, std::pair<int64_t, uint32_t>> all;
  for (const auto& entry : fs::directory_iterator(t.folder() + "/" + name + "/ledger")) {
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      const auto samples = nlohmann::json::parse(line)["samples"];
      REQUIRE(samples.size() == 1);
      for (const auto& s : samples.front()) {
        const bool once =
            all.emplace(s[0].get<int64_t>(), std::pair(s[1].get<int64_t>(), s[2].get<uint32_t>())).second;
        CHECK(once);
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("ledger: 1 to 8 ranks, killed anywhere and resumed, with and without a cache, train on one order") {
  TempRun t;
  // 73 samples, which twelve steps of 24 read three or four times.
  REQUIRE(t.shell("head -c 2345 text.txt > short.txt; rm text-train.*; " + program() +
                  " data build --tokenizer byte --input short.txt --output text-train")
              .code == 0);
  const std::vector<uint32_t> in_file = samples_of_file(t);
  std::map<int64_t, std::pair<int64_t, uint32_t>> first;
  struct Case {
    std::string ranks, killed_at;
    bool cold;
  };
  const std::string text = "'data.train=[{path: short.txt}]' data.tokenizer.kind=byte data.cache=cache ";
  for (const Case& c : std::vector<Case>{
           {"1", "6", true}, {"2", "2", false}, {"3", "11", true}, {"4", "9", false}, {"8", "5", true}}) {
    INFO("ranks " << c.ranks);
    const std::string name = "r" + c.ranks;
    if (c.cold) fs::remove_all(t.folder() + "/cache");
    const Outcome killed = t.sh(run(name, text + "parallel.data=" + c.ranks),
                                "LTRAIN_FAULT=train.step:0:" + c.killed_at + ":kill");
    REQUIRE(killed.code != 0);
    if (c.cold) fs::remove_all(t.folder() + "/cache");
    const Outcome resumed = t.sh(run(name, text + "parallel.data=2"));
    INFO(resumed.text);
    REQUIRE(resumed.code == 0);
    const auto seen = ledger(t, name);
    REQUIRE(seen.size() == 12 * 24);
    std::vector<int> reads(in_file.size(), 0);
    for (const auto& [index, sample] : seen) {
      CHECK(sample.second == in_file.at(static_cast<size_t>(sample.first)));
      ++reads[static_cast<size_t>(sample.first)];
    }
    const auto [least, most] = std::minmax_element(reads.begin(), reads.end());
    CHECK(*least >= 3);
    CHECK(*most <= *least + 1);
    if (first.empty()) first = seen;
    CHECK(seen == first);
    const Outcome checked = t.sh("data ledger " + name);
    INFO(checked.text);
    CHECK(checked.code == 0);
    CHECK_THAT(checked.text, Contains("steps 1 to 12: 288 samples, each once"));
  }
}

TEST_CASE("ledger: what differs from the recipe's order is refused with its step") {
  TempRun t;
  REQUIRE(t.sh(run("a")).code == 0);
  const std::string file = t.folder() + "/a/ledger/rank-00001.jsonl", whole = read_file(file);
  const auto refused = [&](const std::string& text, const std::string& why) {
    std::ofstream(file) << text;
    const Outcome o = t.sh("data ledger a");
    INFO(o.text);
    CHECK(o.code == 65);
    CHECK_THAT(o.text, Contains(why));
  };
  const size_t line = whole.find('\n') + 1, next = whole.find('\n', line) + 1;
  refused(whole.substr(0, line) + whole.substr(next), "step 2: expected sample 25 of the run once, got 26");
  refused(whole.substr(0, line) + whole, "rank-00001.jsonl:2: expected a line of a step after 1, got step 1");
  const size_t number = whole.find("[[") + 2;
  refused(whole.substr(0, number) + "0" + whole.substr(number + 1),
          "step 1: expected sample 1 of the run once, got 0 again");
  refused("{\"step\": 1, \"samples\": {\"text-train\": [[1]]}}\n",
          "rank-00001.jsonl:1: is not a line of a ledger");
  std::ofstream(file) << whole + "{\"step\": 13, \"sam";  // a killed rank leaves such a line
  CHECK(t.sh("data ledger a").code == 0);
  const Outcome step = t.sh("data ledger a --step 3 --json");
  INFO(step.text);
  REQUIRE(step.code == 0);
  CHECK(nlohmann::json::parse(step.text)["step"].size() == 24);
  // A token that has changed since.
  const std::string tokens = read_file(t.folder() + "/text-train.bin");
  const auto sample = nlohmann::json::parse(step.text)["step"][0];
  std::string changed = tokens;
  changed.at(2 * static_cast<size_t>(sample["in_source"].get<int64_t>() * kLength + 5)) ^= 1;
  std::ofstream(t.folder() + "/text-train.bin") << changed;
  const Outcome other = t.sh("data ledger a");
  INFO(other.text);
  CHECK(other.code == 65);
  CHECK_THAT(other.text, Contains("step 3: sample 48 of the run: expected sample"));
  CHECK_THAT(t.sh("data ledger none").text, Contains("none/recipe.yaml"));
}
