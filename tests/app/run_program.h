// A temporary folder with tiny token files and a recipe, and the real program run in it.
#pragma once
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

namespace ltrain::test {

struct Outcome {
  int code = -1;
  std::string text;  ///< stdout and stderr
};

/// The program that is tested: LTRAIN_BINARY where a test is away from its build
/// (scripts/package/pack-gpu-check.sh).
inline std::string program() {
  const char* given = std::getenv("LTRAIN_BINARY");
  return given && *given ? given : LTRAIN_BINARY;
}

/// Settings of a run of one process.
inline const std::string kOneRank = "parallel.data=1 parallel.zero_stage=0 ";

class TempRun {
 public:
  TempRun() {
    std::ofstream text(folder() + "/text.txt");
    for (int i = 0; i < 1500; ++i)
      text << "line " << i << " of a text that repeats itself, " << i * i << " times.\n";
    text.close();
    std::ofstream(folder() + "/tiny.yaml") << R"(name: tiny
output_dir: run
model: {architecture: llama, vocab_size: 257, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, max_position_embeddings: 64}
parallel: {data: 2, zero_stage: 1}
data: {train: [{path: text-train}], eval: [{path: text-val}], seq_length: 32}
train: {micro_batch_size: 2, global_batch_size: 8, train_steps: 6, eval_interval: 3, eval_steps: 2}
optimizer: {lr: 1.0e-3}
checkpoint: {save_interval: 2}
launch: {threads_per_rank: 1}
)";
    build_ = sh("data build --input text.txt --output text --split 90,10 --tokenizer byte");
  }

  const std::string& folder() const { return folder_.path(); }
  const Outcome& build() const { return build_; }

  /// `ltrain ARGUMENTS` in the folder; `variables` as "A=1 B=2".
  Outcome sh(const std::string& arguments, const std::string& variables = "") const {
    return shell(variables + " " + program() + " " + arguments);
  }
  Outcome shell(const std::string& command) const {
    Outcome o;
    std::FILE* pipe = ::popen(("cd " + folder() + " && exec 2>&1; " + command).c_str(), "r");
    char buffer[4096];
    while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) o.text.append(buffer, n);
    const int status = ::pclose(pipe);
    o.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    return o;
  }
  /// The same in a shell with job control: without it what runs in the background ignores SIGINT, and so does
  /// ltrain there.
  Outcome shell_with_jobs(const std::string& command) const {
    std::ofstream(folder() + "/script.sh") << "set -m\n" << command;
    return shell("bash script.sh");
  }
  /// Values of `key` in metrics.jsonl by step, as their text, so that they are compared to the bit.
  std::vector<std::string> metric(const std::string& key, const std::string& run = "run") const {
    std::vector<std::string> out;
    std::ifstream in(folder() + "/" + run + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      const auto j = nlohmann::json::parse(line);
      if (j.contains(key)) out.push_back(std::to_string(j["step"].get<int>()) + ":" + j[key].dump());
    }
    return out;
  }
  /// The same without the steps.
  std::vector<double> values(const std::string& key, const std::string& run = "run") const {
    std::vector<double> out;
    for (const std::string& row : metric(key, run)) out.push_back(std::stod(row.substr(row.find(':') + 1)));
    return out;
  }

 private:
  TemporaryFolder folder_;
  Outcome build_;
};

}  // namespace ltrain::test
