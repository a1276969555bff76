// The command line as a user meets it: every example of every --help runs, and a wrong word is named.
#include <catch2/catch.hpp>

#include <regex>
#include <set>
#include <sstream>

#include "tests/app/run_program.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

struct Help {
  std::string command;  ///< "checkpoint list"
  std::string text;
  std::vector<std::string> subcommands;
};

/// --help of `command` and of everything below it.
void collect(const TempRun& t, const std::string& command, std::vector<Help>& all) {
  const Outcome o = t.sh(command + " --help");
  INFO(command << "\n" << o.text);
  REQUIRE(o.code == 0);
  Help help{command, o.text, {}};
  const size_t at = o.text.find("\nSubcommands:\n");
  if (at != std::string::npos) {
    std::istringstream in(o.text.substr(at + 14));
    static const std::regex name("^  ([a-z]+) .*");
    std::smatch found;
    for (std::string line; std::getline(in, line);)
      if (std::regex_match(line, found, name)) help.subcommands.push_back(found[1]);
  }
  all.push_back(help);
  for (const std::string& s : help.subcommands) collect(t, command.empty() ? s : command + " " + s, all);
}

/// Small enough for a test: the same command, two steps.
const char* kTwoSteps =
    " train.train_steps=2 train.eval_interval=0 schedule.lr_warmup_steps=1 checkpoint.save_interval=2 "
    "data.ledger=true";

}  // namespace

TEST_CASE("every command's help has an example, and every example runs") {
  TempRun t;
  // The folder of a user who has run the quickstart, and the sbatch and kubectl of clusters, which read all.
  REQUIRE(
      t.shell(
           "mkdir -p bin corpus runs/quickstart/data && ln -s " + std::string(LTRAIN_BINARY) +
           " bin/ltrain && cp -r " + LTRAIN_SOURCE_DIR + "/recipes . && cp " + LTRAIN_SOURCE_DIR +
           "/tests/golden/small.tiktoken gpt2.tiktoken && cp " + LTRAIN_SOURCE_DIR +
           "/tests/golden/all_reduce_perf.log . && cp text.txt corpus && printf "
           "'#!/bin/sh\\ntest $(grep -c \"^#SBATCH --nodes\") = 1\\n' > bin/sbatch && chmod +x bin/sbatch && "
           "printf "
           "'#!/bin/sh\\ntest $(grep -c \"^kind: JobSet\") = 1\\n' > bin/kubectl && chmod +x bin/kubectl && "
           "bin/ltrain data build --input text.txt --output runs/quickstart/data/text --split 90,10 "
           "--tokenizer byte && bin/ltrain run recipes/quickstart.yaml" +
           kTwoSteps + " && bin/ltrain run recipes/moe.yaml" + kTwoSteps +
           " && bin/ltrain eval runs/moe --samples 2 --routing routing.jsonl")
          .code == 0);
  std::vector<Help> all;
  collect(t, "", all);
  REQUIRE(all.size() >= 18);
  int examples = 0;
  std::set<std::string> seen;
  for (const Help& help : all) {
    static const std::regex example("Example: ((?:echo .* \\| )?ltrain .*)");
    int here = 0;
    std::istringstream in(help.text);
    for (std::string line; std::getline(in, line);) {
      std::smatch found;
      if (!std::regex_search(line, found, example)) continue;
      ++here;
      std::string command = found[1];
      if (!seen.insert(command).second) continue;  // shown by the command above as well
      ++examples;
      if (command.starts_with("ltrain run ")) command += kTwoSteps;
      // The example of `ltrain` itself belongs to run. Every other example is for the command that shows it.
      if (!help.command.empty()) CHECK_THAT(command, Contains("ltrain " + help.command));
      const Outcome o = t.shell("PATH=$PWD/bin:$PATH bash -o pipefail -c \"" + command + "\"");
      INFO(command << "\n" << o.text);
      CHECK(o.code == 0);
    }
    INFO(help.command << "\n" << help.text);
    CHECK((here >= 1 || !help.subcommands.empty()));
  }
  CHECK(examples >= 16);
}

TEST_CASE("a word that is no command is named, with those that are") {
  TempRun t;
  const auto refused = [&](const std::string& arguments, const std::string& text) {
    const Outcome o = t.sh(arguments);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains(text));
  };
  refused("rum tiny.yaml",
          "rum is not a command of ltrain, which has run, plan, init, profile, recipe, data, ");
  refused("rum tiny.yaml", "; did you mean run?");
  refused("recipe chekc tiny.yaml",
          "chekc is not a command of ltrain recipe, which has new, show, check, keys; did you mean check?");
  refused("frobnicate", "frobnicate is not a command of ltrain");
  refused("train tiny.yaml", "; did you mean run?");  // called by other programs
  refused("evaluate tiny.yaml", "; did you mean eval?");
  refused("help rnu", "rnu is not a command of ltrain");
  refused("help rnu", "; did you mean run?");
  refused("\"$(printf 'a\\033b')\"", "a\\x1bb is not a command");
  CHECK(t.sh("frobnicate").text.find("selftest") == std::string::npos);  // hidden
  CHECK(t.sh("--version").code == 0);
  refused("", "subcommand");
}

TEST_CASE("a profile is a card's exact name or a file, and fits the device") {
  TempRun t;
  const std::string plan = "plan tiny.yaml parallel.data=1 --profile ";
  Outcome o = t.sh(plan + "h1000");
  CHECK(o.code == 64);
  CHECK_THAT(
      o.text,
      Contains("profile h1000: there is no such file, and the cards built in are a100-40, a100, b200") &&
          Contains("did you mean h100?"));
  o = t.sh(plan + "my-h100-file");
  CHECK(o.code == 64);
  o = t.sh(plan + "H100 device=cuda");
  INFO(o.text);
  CHECK(o.code == 0);
  o = t.sh(plan + "h100");  // device: auto goes with the profile, and says so
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK_THAT(o.text, Contains("note: device: auto is planned as cuda, which the profile h100 is of"));
  o = t.sh(plan + "h100 device=cpu");
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("--profile h100: has the rates of a GPU, and the recipe has device: cpu"));
  REQUIRE(t.shell("mkfifo pipe").code == 0);
  o = t.shell("timeout 20 " + std::string(LTRAIN_BINARY) + " " + plan + "pipe");
  CHECK(o.code == 64);
  CHECK_THAT(o.text, Contains("profile pipe: is a pipe"));
}

TEST_CASE("plan says which keys of a config.json it passes over, as the other commands do") {
  TempRun t;
  std::ofstream(t.folder() + "/config.json")
      << R"({"model_type": "llama", "hidden_size": 32, "num_attention_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 257, "max_position_embeddings": 64, "mystery": 3})";
  std::ofstream(t.folder() + "/from.yaml")
      << "model: {from: config.json, from_ignore: [mystery]}\ndata: {train: [{path: text-train}], "
         "seq_length: 32}\ntrain: {train_steps: 1, global_batch_size: 2}\noutput_dir: out\n";
  for (const char* command :
       {"plan from.yaml", "recipe check from.yaml", "run from.yaml", "slurm from.yaml"}) {
    const Outcome o = t.sh(command);
    INFO(command << "\n" << o.text);
    CHECK(o.code == 0);
    CHECK_THAT(o.text, Contains("note: config.json: mystery = 3 is passed over, as model.from_ignore says"));
    const Outcome refused = t.sh(command + std::string(" ~model.from_ignore"));
    CHECK(refused.code == 64);
    CHECK_THAT(refused.text, Contains("config.json: mystery = 3: is not a key of llama that ltrain knows"));
  }
}

TEST_CASE("memory of a Slurm job is in Slurm's form") {
  TempRun t;
  for (const char* good : {"16G", "800M", "4096", "0", "1t"})
    CHECK(t.sh(std::string("slurm tiny.yaml --mem ") + good).code == 0);
  for (const char* bad : {"foo", "16GB", "G", "-1G", "1.5G", "1e3", "16\\ G"}) {
    const Outcome o = t.sh(std::string("slurm tiny.yaml --mem=") + bad);
    INFO(bad << "\n" << o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains("--mem"));
  }
}

TEST_CASE("recipes and config.json that are no files are refused at once") {
  TempRun t;
  REQUIRE(t.shell("mkfifo pipe && mkdir folder && ln -s /dev/zero zero && ln -s pipe link").code == 0);
  for (const auto& [path, what] : {std::pair("pipe", "is a pipe"),
                                   {"link", "is a pipe"},
                                   {"folder", "is a folder"},
                                   {"zero", "is a device"},
                                   {"/dev/tty", ""}}) {
    for (const char* command : {"recipe check", "plan", "run", "slurm"}) {
      const Outcome o = t.shell(std::string("timeout 20 ") + LTRAIN_BINARY + " " + command + " " + path);
      INFO(command << " " << path << "\n" << o.text);
      CHECK(o.code == 64);
      CHECK_THAT(o.text, Contains(path) && Contains(what));
    }
    const Outcome o =
        t.shell(std::string("timeout 20 ") + LTRAIN_BINARY + " recipe check tiny.yaml model.from=" + path);
    INFO(path << "\n" << o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains(std::string("model.from = ") + path) && Contains(what));
  }
}

TEST_CASE("ltrain help COMMAND is what the command's --help says") {
  TempRun t;
  for (const std::string command : {"", "run", "plan", "checkpoint list"}) {
    const Outcome help = t.sh("help " + command);
    INFO(command << "\n" << help.text);
    CHECK(help.code == 0);
    CHECK(help.text == t.sh(command + " --help").text);
  }
}

TEST_CASE("ltrain recipe keys with words lists the keys that are about them") {
  TempRun t;
  const Outcome warmup = t.sh("recipe keys WarmUp");
  INFO(warmup.text);
  CHECK(warmup.code == 0);
  CHECK_THAT(warmup.text, Contains("schedule.lr_warmup_steps") && Contains("train.router_warmup_steps") &&
                              !Contains("model.vocab_size"));
  const Outcome both = t.sh("recipe keys warmup router");
  CHECK_THAT(both.text, Contains("train.router_warmup_steps") && !Contains("schedule.lr_warmup_steps"));
  const Outcome alias = t.sh("recipe keys tensor_model_parallel_size");
  CHECK_THAT(alias.text, Contains("parallel.tensor "));
  const Outcome none = t.sh("recipe keys gradient_checkpointing");
  CHECK(none.code == 64);
  CHECK_THAT(none.text, Contains("no key has that in its name or meaning; the Hugging Face Trainer's "
                                 "`gradient_checkpointing` is recompute.granularity: full here"));
  CHECK(t.sh("recipe keys warmup --json").code == 64);
}

TEST_CASE("ltrain profile show knows all that ltrain profile list names") {
  TempRun t;
  const Outcome list = t.sh("profile list");
  REQUIRE(list.code == 0);
  std::istringstream in(list.text);
  int shown = 0;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("  ")) continue;
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    const Outcome o = t.sh("profile show " + name);
    INFO(name << "\n" << o.text);
    CHECK(o.code == 0);
    CHECK_THAT(o.text, Catch::StartsWith(name + ", built in: "));
    const auto j = nlohmann::json::parse(t.sh("profile show " + name + " --json").text);
    CHECK(j.at("name") == name);
    ++shown;
  }
  CHECK(shown > 20);
  const auto network = nlohmann::json::parse(t.sh("profile show ib-8x400g --json").text);
  CHECK(network.at("figures").at(1).at("value") == 50e9);  // 400 Gbit/s
}
