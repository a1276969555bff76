// ltrain plan --campaign, as a program.
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;
using nlohmann::json;

TEST_CASE("plan --campaign prints where the time goes, and takes a file of figures") {
  const TempRun t;
  const Outcome plain = t.sh("plan tiny.yaml --campaign");
  INFO(plain.text);
  CHECK(plain.code == 0);
  CHECK_THAT(plain.text, Contains("campaign: 2 GPUs on 1 node and 0 spare") && Contains("by simulation") &&
                             Contains("published: arXiv:2407.21783 table 5") && Contains("assumed: "));

  std::ofstream(t.folder() + "/c.yaml")
      << "format: ltrain.campaign.v1\n"
         "watts_per_gpu: {value: 700, source: assumed, reference: a card}\n"
         "gpu_hour_price: {value: 3, source: assumed, reference: a price}\n";
  const Outcome priced = t.sh("plan tiny.yaml --campaign --campaign-file c.yaml --json");
  INFO(priced.text);
  REQUIRE(priced.code == 0);
  const json j = json::parse(priced.text);
  CHECK(j["gpus"] == 2);
  CHECK(j["gpu_price"].get<double>() == Approx(3 * j["gpu_hours"].get<double>()));
  CHECK(j["kilowatt_hours"].get<double>() == Approx(0.7 * j["gpu_hours"].get<double>()));

  std::ofstream(t.folder() + "/bad.yaml") << "format: ltrain.campaign.v1\nrepair_hour: {value: 1}\n";
  const Outcome bad = t.sh("plan tiny.yaml --campaign --campaign-file bad.yaml");
  CHECK(bad.code == 64);
  CHECK_THAT(bad.text, Contains("bad.yaml:2:1: repair_hour: unknown key; nearest valid value: repair_hours"));
  CHECK(t.sh("plan tiny.yaml --campaign --campaign-file nothing.yaml").code == 64);
  const Outcome large = t.sh(
      "plan tiny.yaml --campaign device=cuda --profile h100 train.micro_batch_size=1000000 "
      "train.global_batch_size=2000000 model.hidden_size=128");
  CHECK(large.code == 78);
  CHECK_THAT(large.text, Contains("does not fit"));
}

TEST_CASE("plan --campaign counts the bytes that a checkpoint of each optimizer has") {
  const TempRun t;
  const std::string settings =
      GENERATE(as<std::string>(), "", "optimizer.state_dtype=bf16", "optimizer.kind=adafactor",
               "optimizer.kind=muon", "optimizer.kind=sgd", "optimizer.kind=lion", "train.ema_decay=0.9",
               "optimizer.kind=onebit_lamb optimizer.freeze_step=1 parallel.zero_stage=0",
               "parallel.grad_reduce_dtype=int8 parallel.zero_stage=0",
               "parallel.grad_reduce_dtype=int8 parallel.zero_stage=0 parallel.data=1 parallel.context=2",
               "parallel.grad_reduce_dtype=int8 parallel.zero_stage=0 parallel.tensor=2",
               "parallel.grad_reduce_dtype=int8 parallel.zero_stage=0 parallel.data=4 parallel.expert=2 "
               "'model.moe={num_experts: 4}'",
               "optimizer.kind=muon parallel.expert=2 'model.moe={num_experts: 4}'");
  CAPTURE(settings);
  const Outcome planned = t.sh("plan tiny.yaml --campaign --json " + settings + " 2>/dev/null");
  INFO(planned.text);
  REQUIRE(planned.code == 0);
  const Outcome run = t.sh("run tiny.yaml train.train_steps=2 train.eval_interval=0 " + settings);
  INFO(run.text);
  REQUIRE(run.code == 0);
  // Bytes of tensors in safetensors files: all but 8 bytes of length and the header of that length.
  int64_t bytes = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(t.folder() + "/run/checkpoints"))
    if (file.path().extension() == ".safetensors" &&
        file.path().string().find("step-") != std::string::npos) {
      uint64_t header = 0;
      std::ifstream(file.path(), std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof header);
      bytes += static_cast<int64_t>(std::filesystem::file_size(file.path()) - sizeof header - header);
    }
  CHECK(json::parse(planned.text)["checkpoint_bytes"].get<double>() == static_cast<double>(bytes));
}

TEST_CASE("plan --export and --from-megatron as programs") {
  const TempRun t;
  const Outcome there = t.sh("plan tiny.yaml --export megatron --output flags.sh");
  INFO(there.text);
  CHECK(there.code == 0);
  const Outcome back = t.sh("plan --from-megatron \"$(cat flags.sh)\" --output back.yaml");
  INFO(back.text);
  CHECK(back.code == 0);
  CHECK_THAT(read_file(t.folder() + "/back.yaml"),
             Contains("  hidden_size: 32\n") && Contains("  zero_stage: 1\n"));
  CHECK(t.sh("recipe check back.yaml 'data.train=[{path: text-train}]' parallel.data=2").code == 0);
  CHECK(t.sh("plan tiny.yaml --export nothing").code == 64);
  // The file with the flags, as it is.
  const Outcome file = t.sh("plan --from-megatron flags.sh --output file.yaml");
  INFO(file.text);
  CHECK(file.code == 0);
  CHECK(read_file(t.folder() + "/file.yaml") == read_file(t.folder() + "/back.yaml"));
}
