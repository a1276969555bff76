// Runs as Weights & Biases and MLflow take them. scripts/compare.sh trackers has their own clients read them.
#include <fmt/format.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "planner/report/mlflow_run.h"
#include "planner/report/run_history.h"
#include "planner/report/wandb_run.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

void write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// A run of three steps out of `train_steps`, with a setting of `long_text` letters.
std::string run_in(const std::string& folder, int train_steps, size_t long_text = 0) {
  const std::string run = folder + "/run";
  write(run + "/recipe.yaml",
        "name: a.run\ntrain: {train_steps: " + std::to_string(train_steps) +
            "}\nbeta: [1, 0.5]\nkind: \"4\"\ntelemetry: {on_end: curl secret}\nnotes: x" +
            std::string(long_text, 'y') + "\n");
  write(run + "/metrics.jsonl",
        "{\"step\":1,\"lm_loss\":2.5,\"step_time_ms\":500,\"expert_tokens\":[[1,2]]}\n"
        "{\"step\":2,\"lm_loss\":null,\"step_time_ms\":250,\"rewards/chosen\":1}\n"
        "{\"step\":2,\"eval_loss\":2,\"eval_set\":\"held out\"}\n"
        "{\"step\":2,\"straggler\":1,\"straggler_reason\":\"data\"}\n"
        "{\"step\":3,\"lm_loss\":2,\"step_time_ms\":250}\n");
  return run;
}

/// CRC-32, bit by bit.
uint32_t crc(const std::string& bytes) {
  uint32_t c = ~0u;
  for (const char b : bytes) {
    c ^= static_cast<uint8_t>(b);
    for (int i = 0; i < 8; ++i) c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
  }
  return ~c;
}

/// The records of a .wandb file.
std::vector<std::string> records(const std::string& file) {
  std::vector<std::string> out;
  std::string record;
  REQUIRE(file.substr(0, 7) == std::string(":W&B\xe1\xbe\0", 7));
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(file.at(i))); };
  for (size_t at = 7; at < file.size();) {
    if (32768 - at % 32768 < 7) {
      at += 32768 - at % 32768;
      continue;
    }
    const size_t length = byte(at + 4) | byte(at + 5) << 8;
    const char part = file.at(at + 6);
    const std::string data = file.substr(at + 7, length);
    CHECK((byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24) == crc(part + data));
    record += data;
    at += 7 + length;
    if (part == 1 || part == 4) out.push_back(record), record.clear();
  }
  return out;
}

std::string wandb_file(const std::string& offline) {
  for (const auto& entry : fs::directory_iterator(offline))
    if (entry.path().extension() == ".wandb") return entry.path().string();
  return {};
}

}  // namespace

TEST_CASE("a tracker gets the numbers of each step with those of its evaluations", "[telemetry]") {
  const test::TemporaryFolder dir;
  const std::string run = run_in(dir.path(), 3);
  std::vector<StepNumbers> steps;
  each_step(run, [&](const StepNumbers& s) { steps.push_back(s); });
  REQUIRE(steps.size() == 3);
  CHECK(steps[0].values == std::map<std::string, double>{{"lm_loss", 2.5}, {"step_time_ms", 500}});
  CHECK(std::isnan(steps[1].values.at("lm_loss")));
  CHECK(steps[1].values.at("eval_loss/held out") == 2);
  CHECK(steps[1].values.count("straggler") == 0);
  CHECK(steps[2].seconds == Approx(1));
  const TrackedRun tracked = read_tracked_run(run);
  CHECK(tracked.name == "a.run");
  CHECK(tracked.config["kind"] == "4");
  CHECK(tracked.config["beta"] == nlohmann::json::array({1, 0.5}));
  CHECK(tracked.config["telemetry"].count("on_end") == 0);
  CHECK(tracked.id() == read_tracked_run(run + "/").id());
  write(run + "/metrics.jsonl", "{\"step\":2,\"lm_loss\":2}\n{\"step\":1,\"lm_loss\":2}\n");
  CHECK_THROWS_WITH(each_step(run, [](const StepNumbers&) {}),
                    Contains("metrics.jsonl:2: step 1 after step 2"));
  CHECK_THROWS_WITH(read_tracked_run(dir.path() + "/none"), Contains("expected the output_dir of a run"));
}

TEST_CASE("a run for Weights & Biases has whole records, also across blocks", "[telemetry]") {
  const test::TemporaryFolder dir;
  const std::string to = dir.path() + "/wandb";
  for (const size_t letters : {0, 32700, 32758, 100000}) {
    const std::string run = run_in(dir.path(), 3, letters);
    const std::string offline = write_wandb_run(run, to, "a project");
    const std::vector<std::string> all = records(test::read_file(wandb_file(offline)));
    INFO("letters: " << letters);
    REQUIRE(all.size() == 7);  // header, run, three steps, summary, end
    CHECK_THAT(all[1], Contains("a project") && Contains("{\"train_steps\":3}") &&
                           Contains(std::string(letters, 'y')));
    CHECK_THAT(all[1], !Contains("secret"));
    CHECK_THAT(all[2], Contains("lm_loss") && Contains("2.5") && Contains("_step"));
    CHECK_THAT(all[3], Contains("\"NaN\"") && Contains("eval_loss/held out"));
    CHECK_THAT(all[5], Contains("rewards/chosen"));
  }
}

TEST_CASE("a run that goes on has no end for Weights & Biases, and is uploaded again", "[telemetry]") {
  const test::TemporaryFolder dir;
  const std::string to = dir.path() + "/wandb", run = run_in(dir.path(), 4);
  const std::string file = wandb_file(write_wandb_run(run, to, "p"));
  CHECK(records(test::read_file(file)).size() == 6);
  write(file + ".synced", "");
  write(file + ".syncstate", "");
  std::ofstream(run + "/metrics.jsonl", std::ios::app) << "{\"step\":4,\"lm_loss\":1}\n";
  CHECK(wandb_file(write_wandb_run(run, to, "p")) == file);
  CHECK(records(test::read_file(file)).size() == 8);
  CHECK_FALSE(fs::exists(file + ".synced"));
  CHECK_FALSE(fs::exists(file + ".syncstate"));
}

TEST_CASE("a run in MLflow's store has a file for each number and setting", "[telemetry]") {
  const test::TemporaryFolder dir;
  const std::string run = run_in(dir.path(), 4), to = dir.path() + "/mlruns";
  const TrackedRun tracked = read_tracked_run(run);
  for (int twice = 0; twice < 2; ++twice) write_mlflow_run(run, to, "an experiment");
  std::vector<fs::path> experiments{fs::directory_iterator(to), {}};
  REQUIRE(experiments.size() == 1);
  CHECK_THAT(test::read_file(experiments[0] / "meta.yaml"), Contains("name: \"an experiment\""));
  const fs::path of_run = experiments[0] / tracked.id();
  const auto line = [&](double seconds, const char* value, int step) {
    return fmt::format("{} {} {}\n", tracked.started * 1000 + static_cast<int64_t>(seconds * 1e3), value,
                       step);
  };
  CHECK(test::read_file(of_run / "metrics/lm_loss") ==
        line(0.5, "2.5", 1) + line(0.75, "nan", 2) + line(1, "2", 3));
  CHECK(test::read_file(of_run / "metrics/eval_loss/held_out") == line(0.75, "2", 2));
  CHECK(test::read_file(of_run / "params/train.train_steps") == "4");
  CHECK_FALSE(fs::exists(of_run / "params/telemetry.on_end"));
  CHECK_THAT(test::read_file(of_run / "meta.yaml"), Contains("status: 1\n") && Contains("end_time: null"));
  write(run + "/recipe.yaml", "name: a.run\ntrain: {train_steps: 3}\n");
  fs::last_write_time(run + "/recipe.yaml", fs::file_time_type::clock::now());
  write_mlflow_run(run, to, "an experiment");
  CHECK_THAT(test::read_file(experiments[0] / read_tracked_run(run).id() / "meta.yaml"),
             Contains("status: 3\n"));
}
