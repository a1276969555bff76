// `ltrain bench --device cuda`: the profile of a card from ops that were timed on it.
#include "runtime/bench/bench.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/cuda/twin.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

AttentionShape tiny_attention() {
  AttentionShape shape;
  shape.seq = 32, shape.heads = shape.kv_heads = 2, shape.head_dim = 16;
  return shape;
}

}  // namespace

TEST_CASE("a card's profile has a time of every op of its models, and prices plans once it is written") {
  if (!have_cuda()) return;
  std::vector<std::string> said;
  BenchModel huge = bench_model("huge", "llama", 1 << 15, 1 << 17, 64, 1 << 20, 64, 4096);
  huge.options.model.num_hidden_layers = 100;
  MachineProfile p = bench_card([&](const std::string& line) { said.push_back(line); }, {"bf16", "fp32"},
                                {bench_model("tiny", "llama", 64, 96, 1, 50, 1, 24),
                                 bench_model("tiny too", "gpt2", 32, 64, 2, 50, 2, 16), huge},
                                {tiny_attention()});
  CHECK(p.host_memory_source == "assumed");
  bench_host_memory(p, 1 << 16);
  CHECK(p.measured);
  CHECK(!p.built_in);
  CHECK(p.device_bytes == device_info(DeviceKind::cuda).total_bytes);
  REQUIRE(p.ranks.size() == 1);
  for (const char* type : {"f32", "bf16"})
    for (const char* op :
         {"matmul_nt", "matmul_nn", "matmul_tn", "attention_forward", "attention_backward",
          "attention_block_forward", "attention_block_backward", "norm_forward", "norm_forward_dropout"}) {
      const auto at = p.ranks[0].ops.find(fmt::format("{}/{}", op, type));
      INFO(op << "/" << type);
      REQUIRE(at != p.ranks[0].ops.end());
      for (const OpSample& s : at->second) {
        CHECK(s.seconds > 0);
        CHECK(s.seconds < 100);
      }
    }
  int left_out = 0;
  for (const std::string& line : said) left_out += line.find("huge: left out") != std::string::npos;
  CHECK(left_out == 2);
  CHECK(said.front() == "1 of 7: the ops of tiny in bf16");
  CHECK(said.back() == "7 of 7: attention of context-parallel ranks");
  // Limited to the type that a recipe uses.
  const MachineProfile one =
      bench_card([](const std::string&) {}, {"bf16"}, {bench_model("tiny", "llama", 64, 96, 1, 50, 1, 24)},
                 {tiny_attention()});
  CHECK(one.ranks.at(0).ops.contains("matmul_nt/bf16"));
  CHECK(!one.ranks.at(0).ops.contains("matmul_nt/f32"));

  const TemporaryFolder folder;
  const char* before = std::getenv("LTRAIN_PROFILE");
  const std::string kept = before ? before : "";
  ::setenv("LTRAIN_PROFILE", (folder.path() + "/profile.json").c_str(), 1);
  const std::string path = card_profile_path(p.machine);
  CHECK(std::filesystem::path(path).parent_path() == folder.path());
  CHECK(default_profile(DeviceKind::cuda).built_in);
  save_profile(p, path);
  const MachineProfile q = default_profile(DeviceKind::cuda);
  before ? ::setenv("LTRAIN_PROFILE", kept.c_str(), 1) : ::unsetenv("LTRAIN_PROFILE");
  CHECK(q.measured);
  CHECK(q.source == path);
  CHECK(q.device_bytes == p.device_bytes);
  CHECK(q.link_bytes_per_second == p.link_bytes_per_second);
  CHECK(q.host_memory_bytes_per_second == p.host_memory_bytes_per_second);
  CHECK(q.host_memory_source == "measured");
  REQUIRE(q.ranks.size() == 1);
  CHECK(q.ranks[0].ops.size() == p.ranks[0].ops.size());
}
