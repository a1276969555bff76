// Evaluations through the real program: named sets in a run and in `ltrain eval`, bits per byte, questions.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/app/run_program.h"

using namespace ltrain::test;

namespace {

nlohmann::json evaluated(const TempRun& t, const std::string& arguments) {
  const Outcome o =
      t.shell(std::string(LTRAIN_BINARY) + " eval " + arguments + " --threads 1 --json 2>notes");
  INFO(o.text << read_file(t.folder() + "/notes"));
  REQUIRE(o.code == 0);
  return nlohmann::json::parse(o.text);
}

const std::string kSets =
    "'data.eval=[{path: text-val, name: text}, {path: squares-train, name: squares}, {path: squares-val, "
    "name: squares}]' ";

}  // namespace

TEST_CASE("a run evaluates each named set, and ltrain eval gives the same of it") {
  TempRun t;
  REQUIRE(
      t.shell("for i in $(seq 1500); do echo \"$((i*i)) is the square of $i\"; done > squares.txt").code ==
      0);
  REQUIRE(t.sh("data build --input squares.txt --output squares --split 50,50 --tokenizer byte").code == 0);
  const Outcome run =
      t.sh("run tiny.yaml train.train_steps=3 checkpoint.save_interval=3 log.tensorboard=true " + kSets);
  INFO(run.text);
  REQUIRE(run.code == 0);
  CHECK(run.text.find("eval of text at step 3: loss ") != std::string::npos);
  CHECK(run.text.find("eval of squares at step 3: loss ") != std::string::npos);
  CHECK(t.metric("eval_set") == std::vector<std::string>{"3:\"text\"", "3:\"squares\""});
  const auto losses = t.metric("eval_loss"), bits = t.metric("eval_bits_per_byte");
  REQUIRE(losses.size() == 2);
  REQUIRE(bits.size() == 2);
  CHECK(losses[0] != losses[1]);
  const auto value = [](const std::string& metric) { return std::stod(metric.substr(2)); };

  // eval_steps * global_batch = 16 sequences of each set, of all of its sources.
  const auto there = evaluated(t, "run --samples 16")["sets"];
  REQUIRE(there.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(there[i]["name"] == (i == 0 ? "text" : "squares"));
    CHECK(there[i]["samples"] == 16);
    CHECK(there[i]["tokens"] == 16 * 32);
    CHECK(there[i]["loss"].get<double>() == Approx(value(losses[i])).epsilon(1e-6));
    CHECK(there[i]["bits_per_byte"].get<double>() == Approx(value(bits[i])).epsilon(1e-6));
    // A byte is a token, but for the ends of documents, of which each file has one at its end.
    const double loss = there[i]["loss"], bytes = there[i]["bytes"];
    CHECK(there[i]["bits_per_byte"].get<double>() == Approx(loss / std::log(2.0) * 512 / bytes));
    CHECK((bytes <= 512 && bytes >= 510));
  }
  const std::string report = t.sh("report run").text;
  INFO(report);
  CHECK(report.find("squares ") != std::string::npos);
  CHECK(report.find("held out") == std::string::npos);
  CHECK(nlohmann::json::parse(t.sh("report run --json").text)["evaluations"][1]["eval_set"] == "squares");
  // In the plan a second set takes as much again as the first, but for the weights that the other rank has
  // updated, which come once: a half of all, in fp32.
  const auto planned = [&](const std::string& sets) {
    return nlohmann::json::parse(
        t.shell(std::string(LTRAIN_BINARY) + " plan tiny.yaml --json " + sets + " 2>/dev/null")
            .text)["ranks"][0];
  };
  const auto one = planned(""), two = planned(kSets);
  CHECK(two["eval_seconds"].get<double>() > 1.5 * one["eval_seconds"].get<double>());
  CHECK(two["eval_seconds"].get<double>() < 2 * one["eval_seconds"].get<double>());
  const int64_t each = two["wire_bytes_per_eval"].get<int64_t>() - one["wire_bytes_per_eval"].get<int64_t>();
  CHECK(each > 0);
  CHECK(one["wire_bytes_per_eval"].get<int64_t>() - each == 37088 / 2 * 4);
}

TEST_CASE("ltrain eval takes several sets, and says why there are no bits per byte") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.train_steps=2").code == 0);
  const auto both = evaluated(t, "run --data held=text-val --data text-train --samples 8")["sets"];
  REQUIRE(both.size() == 2);
  CHECK(both[0]["name"] == "held");
  CHECK(both[1]["name"] == "text-train");
  CHECK(both[0]["loss"] == evaluated(t, "run --data text-val --samples 8")["sets"][0]["loss"]);
  CHECK(both[0]["loss"] != both[1]["loss"]);
  const Outcome people = t.sh("eval run --data held=text-val --data text-train --samples 8 --threads 1");
  CHECK(people.text.find("\n  held: loss ") != std::string::npos);
  CHECK(people.text.find(" bits per byte over 8 sequences of 32 tokens\n") != std::string::npos);

  REQUIRE(t.shell("cp text-val.bin other.bin && cp text-val.idx other.idx").code == 0);  // without a sidecar
  const auto other = evaluated(t, "run --data other --samples 8")["sets"][0];
  CHECK(other["loss"] == both[0]["loss"]);
  CHECK_FALSE(other.contains("bits_per_byte"));
  CHECK(read_file(t.folder() + "/notes").find("no bits per byte of other: no sidecar says") !=
        std::string::npos);
  const Outcome twice = t.sh("eval run --data a=text-val --data a=text-train");
  CHECK(twice.code == 64);
  CHECK(twice.text.find("a is given twice") != std::string::npos);
}

TEST_CASE("ltrain eval says that the shortest of several sources without names ends the set") {
  TempRun t;
  REQUIRE(t.shell("head -c 2000 text.txt > few.txt").code == 0);
  REQUIRE(t.sh("data build --input few.txt --output few --quiet").code == 0);
  REQUIRE(t.sh("run tiny.yaml train.train_steps=2 'data.eval=[{path: text-val},{path: few}]'").code == 0);
  const Outcome o = t.sh("eval run --threads 1");
  INFO(o.text);
  CHECK(o.code == 0);
  CHECK(o.text.find(
            "data.eval: few ends after 62 samples, and the set with it: 125 of 317 samples are evaluated") !=
        std::string::npos);
  // Neither with weights in proportion, nor where fewer samples are asked for than the shorter one has.
  CHECK(t.sh("eval run --threads 1 --samples 20").text.find("ends after") == std::string::npos);
}

TEST_CASE("names of held-out sets are refused where they mean nothing") {
  TempRun t;
  const auto refused = [&](const std::string& setting) {
    const Outcome o = t.sh("plan tiny.yaml " + setting);
    CHECK(o.code == 64);
    return o.text;
  };
  CHECK(refused("'data.eval=[{path: a, name: x}, {path: b}]'")
            .find("source 2 has no name, and source 1 has one; give all of them names, or none") !=
        std::string::npos);
  CHECK(refused("'data.eval=[{path: a, name: x/y}]'").find("name must be of letters, digits") !=
        std::string::npos);
  CHECK(refused("'data.train=[{path: a, name: x}]'")
            .find("has an unknown key `name`; the keys of a source are path, weight, max_epochs, text, "
                  "split, config, where") != std::string::npos);
  CHECK(refused("'data.eval=[{path: a, nam: x}]'").find("did you mean `name`?") != std::string::npos);
}

TEST_CASE("ltrain eval answers questions, alone and beside data") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.train_steps=60 optimizer.lr=0.01 data.seq_length=64").code == 0);
  std::ofstream questions(t.folder() + "/q.jsonl");
  for (int i = 0; i < 20; ++i)
    questions << R"({"question": "line )" << i
              << R"( of a text that", "choices": ["zzqx qqzx", "repeats itself"], "answer": 1})"
              << "\n";
  questions.close();
  const auto j = evaluated(t, "run --choices q.jsonl --scores scores.jsonl");
  CHECK_FALSE(j.contains("sets"));
  const auto& q = j["questions"][0];
  CHECK(q["questions"] == 20);
  CHECK(q["accuracy"] == 1.0);  // the model has read that often
  CHECK(q["accuracy_stderr"] == 0.0);
  int lines = 0;
  std::ifstream in(t.folder() + "/scores.jsonl");
  for (std::string line; std::getline(in, line); ++lines) {
    const auto s = nlohmann::json::parse(line);
    CHECK(s["line"] == lines + 1);
    CHECK(s["chosen"] == 1);
    CHECK(s["log_likelihoods"][1].get<double>() > s["log_likelihoods"][0].get<double>());
  }
  CHECK(lines == 20);
  const Outcome people = t.sh("eval run --threads 1 --choices short=q.jsonl --data text-val --samples 4");
  INFO(people.text);
  CHECK(
      people.text.find("  short: accuracy 1.0000 ± 0.0000, by length 1.0000 ± 0.0000 over 20 questions\n") !=
      std::string::npos);
  CHECK(people.text.find(" over 4 sequences of 64 tokens\n") != std::string::npos);

  const Outcome bos = t.sh("eval run --choices q.jsonl --bos yes");
  CHECK(bos.code == 64);
  CHECK(bos.text.find("--bos yes: tokenizer byte names no token that begins a text") != std::string::npos);
  CHECK(t.sh("eval run --scores s").code == 64);
  CHECK(t.sh("eval run --choices missing.jsonl").code == 65);
}

TEST_CASE("a text begins as the documents of training did, or as a folder's tokenizer says") {
  TempRun t;
  REQUIRE(t.shell("mkdir tok && cp " LTRAIN_SOURCE_DIR
                  "/tests/golden/tokenizers/llama3.tokenizer.json tok/tokenizer.json && "
                  "printf '{\"eos_token\": \"<|end|>\", \"bos_token\": \"<s>\"}' > tok/tokenizer_config.json")
              .code == 0);
  std::ofstream(t.folder() + "/q.jsonl")
      << R"({"question": "line of a", "choices": ["text", "times"], "answer": 0})";
  const auto scores = [&](const std::string& arguments) {
    evaluated(t, arguments + " --choices q.jsonl --scores s.jsonl");
    return nlohmann::json::parse(read_file(t.folder() + "/s.jsonl"))["log_likelihoods"];
  };
  for (const bool begins : {false, true}) {
    const std::string name = begins ? "with" : "without";
    REQUIRE(t.sh("data build --input text.txt --output " + name + " --tokenizer tok" +
                 (begins ? " --prepend-bos" : ""))
                .code == 0);
    const Outcome run = t.sh(
        "run tiny.yaml train.train_steps=3 data.eval=[] train.eval_interval=0 model.vocab_size=504 "
        "data.tokenizer.kind=huggingface data.tokenizer.path=tok data.train=[" +
        name + "] output_dir=run-" + name);
    INFO(run.text);
    REQUIRE(run.code == 0);
    const auto with = scores("run-" + name + " --bos yes"), without = scores("run-" + name + " --bos no");
    CHECK(with != without);
    CHECK(scores("run-" + name) == (begins ? with : without));
    if (begins) continue;
    // The folder has no data; its tokenizer puts <s> before a text.
    REQUIRE(t.sh("export run-without hf --dtype fp32 -q").code == 0);
    CHECK(scores("hf") == with);
    CHECK(scores("hf --bos no") == without);
    const auto text = [&](const std::string& how) {
      return t.sh("generate " + how + " --prompt line --tokens 8 --temperature 0 --threads 1 2>/dev/null")
          .text;
    };
    CHECK(text("hf --bos no") == text("run-without"));
    CHECK(text("hf") == text("run-without --bos yes"));
    // A prompt that has the token itself would have it twice.
    const auto said = [&](const std::string& how) {
      const Outcome o = t.sh("generate hf --prompt ok --prompt '<s>line' --tokens 1 --threads 1" + how);
      CHECK(o.code == 0);
      return o.text;
    };
    const auto twice =
        Catch::Contains("note: prompt 2 begins with token 501 itself, which is put before it too");
    CHECK_THAT(said(""), twice && !Catch::Contains("prompt 1 begins"));
    CHECK_THAT(said(" --bos no"), !twice);
  }
}
