// Models out and in through the real program: a run's weights as a Hugging Face folder, and runs that begin
// with it.
#include <catch2/catch.hpp>

#include "tests/app/outcomes.h"
#include "tests/app/run_program.h"

using namespace ltrain::test;

TEST_CASE("a run is exported, and another begins with the folder under any layout") {
  TempRun t;
  const auto loss = [&](const std::string& run, size_t i) {
    const std::string text = t.metric("lm_loss", run).at(i);
    return std::stod(text.substr(text.find(':') + 1));
  };
  REQUIRE(t.sh("run tiny.yaml train.train_steps=4 train.ema_decay=0.9").code == 0);
  const Outcome out = t.sh("export run hf --dtype fp32 --shard-size 0.00005");
  INFO(out.text);
  REQUIRE(out.code == 0);
  CHECK(has(out, "run/checkpoints/step-00000004, step 4: "));
  CHECK(has(out, "tensors of f32"));
  CHECK(has(out, "no tokenizer files: give their folder with --tokenizer"));
  CHECK(std::filesystem::exists(t.folder() + "/hf/model.safetensors.index.json"));
  const Outcome again = t.sh("export run hf");
  CHECK(again.code == 64);
  CHECK(has(again, "hf: exists, and is not an empty folder"));

  // Shape and weights from the folder, one process.
  const std::string run = "run tiny.yaml ~model model.from=hf train.train_steps=2 ";
  const Outcome one = t.sh(run + "output_dir=one");
  INFO(one.text);
  REQUIRE(one.code == 0);
  CHECK(has(one, "the run begins with the weights of hf, "));
  CHECK(loss("one", 0) < loss("run", 0) - 0.01);
  // The checkpoint's own weights are the same bits.
  REQUIRE(t.sh("run tiny.yaml checkpoint.load.path=run train.train_steps=2 output_dir=own").code == 0);
  CHECK(t.metric("lm_loss", "own") == t.metric("lm_loss", "one"));
  // Layouts that cut the tensors otherwise.
  for (const std::string layout :
       {"parallel.tensor=2 parallel.data=1", "parallel.data=2 parallel.zero_stage=3",
        "parallel.pipeline=2 parallel.data=1", "parallel.data=2 parallel.zero_stage=1"}) {
    INFO(layout);
    const Outcome o =
        t.sh(run + layout + " output_dir=" + std::to_string(layout.size()) + layout.substr(9, 3));
    INFO(o.text);
    REQUIRE(o.code == 0);
    for (size_t i = 0; i < 2; ++i)
      CHECK(loss(std::to_string(layout.size()) + layout.substr(9, 3), i) ==
            Approx(loss("one", i)).epsilon(1e-5));
  }
  // A restart of that run goes on from its own checkpoint, not from the folder.
  const Outcome more = t.sh(run + "output_dir=one train.train_steps=3");
  INFO(more.text);
  REQUIRE(more.code == 0);
  CHECK(has(more, "resuming from one/checkpoints/step-00000002"));
  CHECK_FALSE(has(more, "begins with the weights"));

  // A checkpoint has the loss of the run. The average has another one.
  const Outcome in = t.sh("import hf imported --json");
  INFO(in.text);
  REQUIRE(in.code == 0);
  CHECK(nlohmann::json::parse(in.text)["family"] == "llama");
  CHECK(t.sh("checkpoint verify imported").code == 0);
  const auto eval = [&](const std::string& what) {
    const Outcome o = t.sh("eval " + what + " --threads 1 --json");
    INFO(o.text);
    REQUIRE(o.code == 0);
    return nlohmann::json::parse(o.text.substr(o.text.find('{')))["sets"][0]["loss"].get<double>();
  };
  REQUIRE(t.sh("export run average --ema --dtype fp32 -q").code == 0);
  REQUIRE(t.sh("import average imported-average").code == 0);
  const std::string data = std::string(" --seq-length 32 --data text-val");
  CHECK(eval("imported" + data) == eval("run" + data));
  CHECK(eval("imported-average" + data) == eval("run --ema" + data));
  CHECK(eval("hf" + data) == eval("run" + data));  // the folder itself needs no recipe
  CHECK(eval("imported-average" + data) != eval("imported" + data));
}

TEST_CASE("weights that cannot begin the run are refused before anything is started") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.train_steps=1").code == 0);
  REQUIRE(t.sh("export run hf").code == 0);
  struct Case {
    std::string arguments, text;
    int code;
  };
  for (const Case& c :
       {Case{"checkpoint.load.path=nowhere", "checkpoint.load.path = nowhere: there is no such folder", 73},
        Case{"checkpoint.load.path=hf model.hidden_size=64", "are not weights of the recipe's model", 64},
        Case{"checkpoint.load.path=run model.num_hidden_layers=1",
             "is of another model: model.num_hidden_layers is", 64},
        Case{"~model model.from=hf model.vocab_size=300", "are not weights of the recipe's model", 64}}) {
    const Outcome o = t.sh("run tiny.yaml output_dir=other " + c.arguments);
    INFO(c.arguments << "\n" << o.text);
    CHECK(o.code == c.code);
    CHECK(has(o, c.text));
    CHECK_FALSE(std::filesystem::exists(t.folder() + "/other"));
  }
}

TEST_CASE("a newer checkpoint that cannot be used is said by all that take weights") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.train_steps=4 parallel.data=1 parallel.zero_stage=0").code == 0);
  const std::string newest = t.folder() + "/run/checkpoints/step-00000004";
  std::filesystem::resize_file(newest + "/shard-00000-of-00001.safetensors", 100);
  for (const std::string command :
       {"export run hf", "eval run --threads 1 --samples 2", "generate run --prompt a --tokens 1",
        "run tiny.yaml train.train_steps=1 train.eval_interval=0 output_dir=own checkpoint.load.path=run"}) {
    const Outcome o = t.sh(command);
    INFO(command << "\n" << o.text);
    CHECK(o.code == 0);
    CHECK(has(o, "newer checkpoints that cannot be used:\n  run/checkpoints/step-00000004"));
    CHECK(has(o, "step 2"));
    CHECK_FALSE(has(o, "resuming from run"));
  }
}

TEST_CASE("a run with one expert a token is exported where config.json can say what it computes") {
  TempRun t;
  const auto exported = [&](const std::string& family, const std::string& divides) {
    const std::string name = family + divides;
    const Outcome run = t.sh("run tiny.yaml train.train_steps=1 model.moe.num_experts=4 model.moe.top_k=1 " +
                             std::string("model.architecture=") + family + " output_dir=" + name +
                             (divides.empty() ? "" : " model.moe.router.norm_topk_prob=" + divides));
    INFO(run.text);
    REQUIRE(run.code == 0);
    return t.sh("export " + name + " " + name + "-hf");
  };
  // transformers' mixtral divides the one weight by itself, whatever its config.json says.
  for (const char* divides : {"", "false"}) {
    const Outcome o = exported("mixtral", divides);
    INFO(o.text);
    CHECK(o.code == 64);
    CHECK(has(o,
              "a config.json of mixtral cannot say what this model is: model.moe.router.norm_topk_prob = "
              "false (read back as true)"));
  }
  CHECK(exported("mixtral", "true").code == 0);
  for (const char* divides : {"", "false", "true"}) CHECK(exported("olmoe", divides).code == 0);
}
