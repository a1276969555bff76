// Choices of routers, recorded and replayed: the same bits under the same layout, and the losses of the run
// that recorded under every other one.
#include <filesystem>
#include <fstream>
#include <map>

#include "base/json/json.h"
#include "tests/parity/moe/moe_jobs.h"
#include "tests/parity/moe/routing_jobs.h"
#include "tests/parity/parity.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace fs = std::filesystem;

namespace {

TinyOptions replay_moe() {
  TinyOptions o = tiny_moe();
  o.layers = 3;
  o.moe.dense_layers = {1};
  o.micro_batch = 2;
  o.seq = 12;
  return o;
}

std::vector<NamedLayout> replay_layouts() {
  return {{"data 2", [](TinyOptions& o) { o.ranks = 2; }},
          {"ZeRO-3", [](TinyOptions& o) { o.ranks = 2, o.zero_stage = 3; }},
          {"tensor 2", [](TinyOptions& o) { o.tensor = 2; }},
          {"tensor 2 with sequence", [](TinyOptions& o) { o.tensor = 2, o.sequence_parallel = true; }},
          {"1F1B", [](TinyOptions& o) { o.pipeline = 2; }},
          {"interleaved",
           [](TinyOptions& o) { o.pipeline = 2, o.schedule = "interleaved", o.chunks = 2, o.layers = 4; }},
          {"context 2", [](TinyOptions& o) { o.context = 2; }},
          {"expert 2", [](TinyOptions& o) { o.ranks = o.expert = 2; }},
          {"experts over tensor 2 and data 2",
           [](TinyOptions& o) {
             o.ranks = o.tensor = 2, o.expert = 4, o.sequence_parallel = true, o.expert_tensor = false;
           }},
          {"experts over context 2 and data 2, ZeRO-1",
           [](TinyOptions& o) { o.ranks = o.context = 2, o.expert = 4, o.zero_stage = 1; }},
          {"micro-batches of 1", [](TinyOptions& o) { o.micro_batch = 1; }},
          {"overlapped micro-batches", [](TinyOptions& o) { o.ranks = o.expert = 2, o.interleaved = true; }},
          {"recomputed", [](TinyOptions& o) { o.recompute.run = 1; }}};
}

/// Moves every choice of a record to the next expert: another router's.
void shift_experts(const std::string& folder, int64_t experts) {
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    if (!file.is_regular_file()) continue;
    std::ifstream in(file.path());
    std::string text, all;
    while (std::getline(in, text)) {
      auto line = nlohmann::json::parse(text);
      for (auto& token : line["top_indices"])
        for (auto& e : token) e = (e.get<int64_t>() + 1) % experts;
      all += line.dump() + "\n";
    }
    std::ofstream(file.path()) << all;
  }
}

}  // namespace

TEST_CASE("a run that replays its own record has its bits", "[expert]") {
  TinyOptions o = replay_moe();
  o.moe.balance = BalanceLoss::switch_loss;
  o.moe.balance_coeff = 0.1;
  o.precision = GENERATE("fp64", "bf16");
  if (GENERATE(false, true)) o.ranks = o.expert = 2, o.zero_stage = 1;
  const TemporaryFolder at;
  const TinyResult plain = train_tiny(o), recorded = record_routing(o, at.path()),
                   replayed = replay_routing(o, at.path());
  check_same_bits(plain, recorded);  // recording changes nothing
  check_same_bits(recorded, replayed);
  CHECK(recorded.plan_bytes == recorded.used_bytes);
  CHECK(replayed.plan_bytes == replayed.used_bytes);
}

TEST_CASE("a record of one layout replays under every other one", "[expert]") {
  // A record of another router, so that tokens do not go there anyway.
  const auto check = [](const NamedLayout& recorder, const NamedLayout& player) {
    INFO(recorder.name << ", then " << player.name);
    TinyOptions one = replay_moe(), many = replay_moe();
    recorder.set(one), player.set(many);
    if (many.layers != one.layers) one.layers = many.layers = 4;
    TinyOptions alone = replay_moe();
    alone.layers = one.layers;
    const TemporaryFolder at;
    const TinyResult own = record_routing(one, at.path());
    shift_experts(at.path(), one.moe.num_experts);
    const TinyResult base = replay_routing(alone, at.path()), result = replay_routing(many, at.path());
    CHECK(std::abs(base.losses[0] / own.losses[0] - 1) > 1e-6);  // negative control: other experts
    require_parity(base, result, 1e-12);
    CHECK(result.plan_bytes == result.used_bytes);
  };
  const NamedLayout alone{"one process", [](TinyOptions&) {}};
  for (const NamedLayout& layout : replay_layouts()) {
    check(alone, layout);
    check(layout, alone);
  }
}

TEST_CASE("a record has each token of a step once, whatever recomputes", "[expert]") {
  TinyOptions o = replay_moe();
  const TemporaryFolder plain, again;
  record_routing(o, plain.path());
  o.recompute.run = 1;
  record_routing(o, again.path());
  const auto text = [](const TemporaryFolder& of) {
    std::ifstream in(of.path() + "/step-00000002/rank-00000-of-00001.jsonl");
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string lines = text(plain);
  CHECK(std::count(lines.begin(), lines.end(), '\n') == o.global_batch * 2);  // two layers with experts
  CHECK(lines == text(again));
}

TEST_CASE("a token without a record chooses for itself, where routed_experts leave tokens out", "[expert]") {
  const TinyOptions o = replay_moe();
  const TemporaryFolder at, part;
  const TinyResult own = record_routing(o, at.path());
  // vLLM's form of the record, without the last three positions.
  for (int64_t step = 1; step <= o.steps; ++step) {
    const std::string name = fmt::format("/step-{:08}", step);
    std::map<int64_t, std::map<int64_t, nlohmann::json>> samples;
    std::ifstream in(at.path() + name + "/rank-00000-of-00001.jsonl");
    for (std::string text; std::getline(in, text);) {
      const auto line = nlohmann::json::parse(text);
      samples[line["sample"].get<int64_t>()][line["layer"].get<int64_t>()] = line["top_indices"];
    }
    fs::create_directories(part.path() + name);
    std::ofstream out(part.path() + name + "/rollout.jsonl");
    for (const auto& [sample, layers] : samples) {
      nlohmann::json tokens = nlohmann::json::array();
      for (int64_t t = 0; t < o.seq - 3; ++t) {
        nlohmann::json of_token = nlohmann::json::array();
        for (const auto& [layer, indices] : layers) of_token.push_back(indices[static_cast<size_t>(t)]);
        tokens.push_back(of_token);
      }
      out << nlohmann::json{{"sample", sample}, {"routed_experts", tokens}}.dump() << "\n";
    }
  }
  check_same_bits(own, replay_routing(o, part.path()));
}

TEST_CASE("a record that lacks a token, a sample or a step, or has one twice, is refused by file and rule",
          "[expert]") {
  const TinyOptions o = replay_moe();
  const TemporaryFolder at;
  record_routing(o, at.path());
  const std::string file = at.path() + "/step-00000002/rank-00000-of-00001.jsonl";
  std::vector<std::string> lines;
  {
    std::ifstream in(file);
    for (std::string text; std::getline(in, text);) lines.push_back(text + "\n");
  }
  const auto refusal = [&](const std::vector<std::string>& all) {
    {
      std::ofstream out(file);
      for (const std::string& line : all) out << line;
    }
    try {
      replay_routing(o, at.path());
    } catch (const Error& e) {
      CHECK(e.code() == ExitCode::data);
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  CHECK(refusal(lines) == "accepted");
  std::vector<std::string> bad(lines.begin() + 1, lines.end());
  CHECK_THAT(refusal(bad),
             Catch::Contains("/step-00000002: has no choices of sample 8, position 0, layer 0"));
  bad = lines, bad.push_back(lines[3]);
  CHECK_THAT(refusal(bad), Catch::Contains(".jsonl:17: sample 9, position 0, layer 2 came before"));
  bad = lines, bad[0].replace(bad[0].find("\"sample\":8"), 10, "\"sample\":3");
  CHECK_THAT(refusal(bad), Catch::Contains(".jsonl:1: sample = 3: must be one of step 2, from 8 to 15"));
  bad = lines, bad[2] = "{\n";
  CHECK_THAT(refusal(bad), Catch::Contains(".jsonl:3: "));
  fs::remove(file);
  CHECK_THAT(refusal({}), Catch::Contains("has no choices of sample"));
  fs::remove(file);
  CHECK_THROWS_WITH(replay_routing(o, at.path()), Catch::Contains("expected *.jsonl, got no such file"));
}
