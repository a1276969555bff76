// LoRA through the real program: layouts, resume, export both ways, and what is refused.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/app/run_program.h"
#include "tests/app/training/losses.h"

using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kAdapters =
    "lora.r=4 lora.alpha=8 'lora.rank_pattern={q_proj: 2, model.layers.1.mlp.*: 6}' "
    "'lora.alpha_pattern={up_proj: 20}' ";
const std::string kLora =
    "run tiny.yaml precision=fp64 train.eval_interval=0 checkpoint.save_interval=2 optimizer.lr=0.01 "
    "train.train_steps=4 " +
    kAdapters;

}  // namespace

TEST_CASE("lora: a run from a folder, resumed on other layouts, has the losses of one process") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml output_dir=base train.eval_interval=0 train.train_steps=2").code == 0);
  REQUIRE(t.sh("export base folder").code == 0);
  const std::string load = "checkpoint.load.path=folder lora.dropout=0.2 ";
  const Outcome one = t.sh(kLora + load + "output_dir=one parallel.data=1 parallel.zero_stage=0");
  INFO(one.text);
  REQUIRE(one.code == 0);
  CHECK_THAT(one.text, Contains("parameters of which ") && Contains(" train, 1 rank"));
  const std::vector<double> want = t.values("lm_loss", "one");
  REQUIRE(want.size() == 4);
  CHECK(want.back() < want.front());
  int run = 0;
  for (const char* layout :
       {"parallel.data=2 parallel.zero_stage=3", "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2",
        "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2"}) {
    const std::string name = "layout" + std::to_string(run++);
    const Outcome half = t.sh(kLora + load + "output_dir=" + name +
                              " train.stop_step=2 parallel.data=1 parallel.zero_stage=0");
    INFO(layout << "\n" << half.text);
    REQUIRE(half.code == 0);
    const Outcome rest = t.sh(kLora + load + "output_dir=" + name + " " + layout);
    INFO(rest.text);
    REQUIRE(rest.code == 0);
    check_same_losses(t.values("lm_loss", name), want);
  }
}

TEST_CASE("lora: merged weights and adapters in PEFT's form are the run's model") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml output_dir=base train.eval_interval=0 train.train_steps=2").code == 0);
  REQUIRE(t.sh("export base folder --dtype fp32").code == 0);
  REQUIRE(t.sh(kLora + "checkpoint.load.path=folder output_dir=one precision=fp32").code == 0);
  REQUIRE(t.sh("export one merged --merge --dtype fp32").code == 0);
  REQUIRE(t.sh("export one adapter --adapter").code == 0);
  // The next step of the run; of a run that begins with the merged weights; and with PEFT's files.
  const std::string next =
      "run tiny.yaml precision=fp32 train.eval_interval=0 train.train_steps=1 optimizer.lr=0.01 ";
  REQUIRE(t.sh(next + "output_dir=m checkpoint.load.path=merged").code == 0);
  REQUIRE(t.sh(next + kAdapters + "output_dir=a checkpoint.load.path=folder lora.adapter=adapter").code == 0);
  REQUIRE(t.sh(next + kAdapters + "output_dir=c checkpoint.load.path=one/checkpoints").code == 0);
  const auto config = nlohmann::json::parse(read_file(t.folder() + "/adapter/adapter_config.json"));
  CHECK(config["rank_pattern"]["model.layers.0.self_attn.q_proj"] == 2);
  CHECK(config["rank_pattern"]["model.layers.1.mlp.up_proj"] == 6);
  CHECK(config["alpha_pattern"]["model.layers.1.mlp.up_proj"] == 20);
  CHECK_FALSE(config["rank_pattern"].contains("model.layers.0.mlp.up_proj"));
  REQUIRE(t.sh(next + "output_dir=b checkpoint.load.path=folder").code == 0);
  const double merged = t.values("lm_loss", "m").at(0), adapted = t.values("lm_loss", "a").at(0);
  CHECK(std::abs(merged - adapted) < 1e-6 * merged);
  CHECK(t.values("lm_loss", "c").at(0) == adapted);
  CHECK(std::abs(merged - t.values("lm_loss", "b").at(0)) > 1e-4);  // negative control: without adapters
}

TEST_CASE("lora: with magnitudes, merged weights and adapters in PEFT's form are the run's model") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml output_dir=base train.eval_interval=0 train.train_steps=2").code == 0);
  REQUIRE(t.sh("export base folder --dtype fp32").code == 0);
  const std::string dora = "lora.dora=true ";
  const Outcome one = t.sh(kLora + dora + "checkpoint.load.path=folder output_dir=one precision=fp32");
  INFO(one.text);
  REQUIRE(one.code == 0);
  REQUIRE(t.sh("export one merged --merge --dtype fp32").code == 0);
  const Outcome written = t.sh("export one adapter --adapter");
  REQUIRE(written.code == 0);
  CHECK_THAT(written.text, Contains("vLLM 0.33 refuses use_dora; give it the merged model"));
  const std::string next =
      "run tiny.yaml precision=fp32 train.eval_interval=0 train.train_steps=1 optimizer.lr=0.01 ";
  const std::string adapter = next + kAdapters + dora + "checkpoint.load.path=folder lora.adapter=adapter ";
  REQUIRE(t.sh(next + "output_dir=m checkpoint.load.path=merged").code == 0);
  const Outcome a = t.sh(adapter + "output_dir=a");
  INFO(a.text);
  REQUIRE(a.code == 0);
  REQUIRE(t.sh(adapter + "output_dir=z parallel.data=2 parallel.zero_stage=3").code == 0);
  REQUIRE(t.sh(next + kAdapters + dora + "output_dir=c checkpoint.load.path=one/checkpoints").code == 0);
  const auto config = nlohmann::json::parse(read_file(t.folder() + "/adapter/adapter_config.json"));
  CHECK(config["use_dora"] == true);
  const double merged = t.values("lm_loss", "m").at(0);
  for (const char* name : {"a", "z", "c"}) {
    INFO(name);
    CHECK(std::abs(merged - t.values("lm_loss", name).at(0)) < 1e-6 * merged);
  }
  // Negative control: the same factors without their magnitudes are refused, and have another loss.
  REQUIRE(t.sh(next + "output_dir=b checkpoint.load.path=folder").code == 0);
  CHECK(std::abs(merged - t.values("lm_loss", "b").at(0)) > 1e-4);
  const Outcome without =
      t.sh(next + kAdapters + "output_dir=w checkpoint.load.path=folder lora.adapter=adapter");
  CHECK(without.code == 64);
  CHECK_THAT(without.text, Contains("use_dora = true: the recipe has lora.dora = false"));
  // A resumed run on another layout goes on as one that was not stopped.
  const std::string run = kLora + dora + "checkpoint.load.path=folder ";
  REQUIRE(t.sh(run + "output_dir=whole parallel.data=1 parallel.zero_stage=0").code == 0);
  REQUIRE(t.sh(run + "output_dir=parts train.stop_step=2 parallel.data=1 parallel.zero_stage=0").code == 0);
  const Outcome rest = t.sh(run + "output_dir=parts parallel.data=1 parallel.zero_stage=0 parallel.tensor=2");
  INFO(rest.text);
  REQUIRE(rest.code == 0);
  check_same_losses(t.values("lm_loss", "parts"), t.values("lm_loss", "whole"));
}

TEST_CASE(
    "lora: experts' adapters resume on other layouts, and merged or in PEFT's form are the run's model") {
  TempRun t;
  const std::string experts =
                        "model.architecture=qwen3_moe model.moe.num_experts=4 model.moe.top_k=2 "
                        "model.moe.intermediate_size=24 ",
                    alone = "parallel.data=1 parallel.zero_stage=0 ",
                    lora =
                        "checkpoint.load.path=folder lora.r=4 lora.alpha=6 lora.use_rslora=true "
                        "'lora.rank_pattern={down_proj: 2}' "
                        "'lora.target_modules=[q_proj, gate_proj, up_proj, down_proj]' ",
                    run = "run tiny.yaml train.eval_interval=0 optimizer.lr=0.02 " + experts;
  REQUIRE(t.sh(run + "output_dir=base train.train_steps=2").code == 0);
  REQUIRE(t.sh("export base folder --dtype fp32").code == 0);
  const std::string trained = run + lora + "precision=fp64 train.train_steps=4 ";
  const Outcome one = t.sh(trained + alone + "output_dir=one");
  INFO(one.text);
  REQUIRE(one.code == 0);
  int run_of = 0;
  for (const char* layout : {"parallel.data=2 parallel.expert=2", "parallel.data=1 parallel.tensor=2"}) {
    const std::string name = "layout" + std::to_string(run_of++);
    REQUIRE(t.sh(trained + alone + "train.stop_step=2 output_dir=" + name).code == 0);
    const Outcome rest = t.sh(trained + "parallel.zero_stage=1 output_dir=" + name + " " + layout);
    INFO(layout << "\n" << rest.text);
    REQUIRE(rest.code == 0);
    check_same_losses(t.values("lm_loss", name), t.values("lm_loss", "one"));
  }
  REQUIRE(t.sh("export one merged --merge --dtype fp32").code == 0);
  REQUIRE(t.sh("export one adapter --adapter").code == 0);
  const std::string next = run + alone + "precision=fp32 train.train_steps=1 ";
  REQUIRE(t.sh(next + "output_dir=m checkpoint.load.path=merged").code == 0);
  REQUIRE(t.sh(next + lora + "output_dir=a lora.adapter=adapter").code == 0);
  REQUIRE(t.sh(next + "output_dir=b checkpoint.load.path=folder").code == 0);
  const double merged = t.values("lm_loss", "m").at(0);
  CHECK(std::abs(t.values("lm_loss", "a").at(0) - merged) < 1e-6 * merged);
  CHECK(std::abs(t.values("lm_loss", "b").at(0) - merged) > 1e-4);  // negative control: without adapters
  const auto config = nlohmann::json::parse(read_file(t.folder() + "/adapter/adapter_config.json"));
  CHECK(config["target_modules"] == nlohmann::json{"down_proj", "gate_proj", "q_proj", "up_proj"});
  // For transformers' stacks too, with the scale of the experts: 6 / sqrt(4) = alpha / sqrt(8).
  nlohmann::json ranks{{"down_proj", 2}}, alphas = nlohmann::json::object();
  for (const std::string layer : {"0", "1"}) {
    const std::string experts = "model.layers." + layer + ".mlp.experts.";
    ranks[experts + "gate_up_proj"] = 8, ranks[experts + "down_proj"] = 2;
    alphas[experts + "gate_up_proj"] = 6 * std::sqrt(2.0), alphas[experts + "down_proj"] = 6;
  }
  CHECK(config["rank_pattern"] == ranks);
  CHECK(config["alpha_pattern"] == alphas);
  const Outcome fewer = t.sh(next +
                             "output_dir=f lora.adapter=adapter checkpoint.load.path=folder lora.r=4 "
                             "lora.alpha=6 lora.use_rslora=true 'lora.rank_pattern={down_proj: 2}' "
                             "'lora.target_modules=[q_proj, \"*.down_proj\"]'");
  CHECK(fewer.code == 64);
  CHECK_THAT(fewer.text, Contains("which the recipe's adapters do not have"));
}

TEST_CASE("lora: magnitudes of experts resume on other layouts, and merged are the run's model") {
  TempRun t;
  const std::string alone = "parallel.data=1 parallel.zero_stage=0 ",
                    run =
                        "run tiny.yaml train.eval_interval=0 optimizer.lr=0.02 model.architecture=qwen3_moe "
                        "model.moe.num_experts=4 model.moe.top_k=2 model.moe.intermediate_size=24 ",
                    dora = run +
                           "checkpoint.load.path=folder lora.r=4 lora.dora=true precision=fp64 "
                           "'lora.target_modules=[q_proj, \"*.experts.*\"]' train.train_steps=5 ";
  REQUIRE(t.sh(run + "output_dir=base train.train_steps=2").code == 0);
  REQUIRE(t.sh("export base folder --dtype fp32").code == 0);
  const Outcome one = t.sh(dora + alone + "train.stop_step=4 output_dir=one");
  INFO(one.text);
  REQUIRE(one.code == 0);
  const Outcome adapter = t.sh("export one adapter --adapter");
  CHECK(adapter.code == 64);
  CHECK_THAT(adapter.text, Contains("PEFT has none for its stacks of experts; ltrain export --merge"));
  REQUIRE(t.sh("export one merged --merge --dtype fp32").code == 0);
  REQUIRE(t.sh(dora + alone + "output_dir=one").code == 0);
  REQUIRE(t.sh(dora + alone + "train.stop_step=2 output_dir=parts").code == 0);
  const Outcome rest =
      t.sh(dora + "parallel.data=2 parallel.expert=2 parallel.zero_stage=1 output_dir=parts");
  INFO(rest.text);
  REQUIRE(rest.code == 0);
  check_same_losses(t.values("lm_loss", "parts"), t.values("lm_loss", "one"));
  // The last step's samples, by the merged model and by the one without adapters.
  const std::string next = run + alone + "precision=fp64 train.train_steps=5 checkpoint.load.path=";
  std::vector<double> losses;
  for (const std::string folder : {"merged", "folder"}) {
    REQUIRE(t.sh(next + folder + " optimizer.lr=1e-13 output_dir=of_" + folder).code == 0);
    losses.push_back(t.values("lm_loss", "of_" + folder).at(4));
  }
  const double trained = t.values("lm_loss", "one").at(4);
  CHECK(std::abs(losses[0] - trained) < 1e-6 * trained);
  CHECK(std::abs(losses[1] - trained) > 1e-4);  // negative control: without adapters
}

TEST_CASE("lora: PiSSA of experts begins with the model's loss under every layout") {
  TempRun t;
  const std::string run =
      "run tiny.yaml train.eval_interval=0 optimizer.lr=0.02 precision=fp64 train.train_steps=3 "
      "model.architecture=qwen3_moe model.moe.num_experts=4 model.moe.top_k=2 "
      "model.moe.intermediate_size=24 ";
  REQUIRE(t.sh(run + "output_dir=base train.train_steps=2").code == 0);
  REQUIRE(t.sh("export base folder --dtype fp32").code == 0);
  const std::string
      alone = "parallel.data=1 parallel.zero_stage=0 ",
      zero = run +
             "checkpoint.load.path=folder lora.r=4 lora.alpha=6 'lora.rank_pattern={down_proj: 2}' "
             "'lora.target_modules=[\"*.experts.*\"]' ",
      pissa = zero + "lora.init=pissa ";
  REQUIRE(t.sh(zero + alone + "output_dir=zero").code == 0);
  const Outcome one = t.sh(pissa + alone + "output_dir=one");
  INFO(one.text);
  REQUIRE(one.code == 0);
  CHECK_THAT(one.text, Contains("the largest singular vectors of 24 matrices"));
  const std::vector<double> want = t.values("lm_loss", "one"), first = t.values("lm_loss", "zero");
  CHECK(std::abs(want.at(0) - first.at(0)) < 1e-12 * first[0]);
  CHECK(std::abs(want.at(2) - first.at(2)) > 1e-6);  // negative control: other adapters train
  int layouts = 0;
  for (const char* layout : {"parallel.data=2 parallel.zero_stage=3", "parallel.data=2 parallel.expert=2",
                             "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2"}) {
    const std::string name = "layout" + std::to_string(layouts++);
    const Outcome many = t.sh(pissa + "output_dir=" + name + " " + layout);
    INFO(layout << "\n" << many.text);
    REQUIRE(many.code == 0);
    check_same_losses(t.values("lm_loss", name), want);
  }
  REQUIRE(t.sh("export one merged --merge --dtype fp32").code == 0);
  const Outcome adapter = t.sh("export one adapter --adapter");
  CHECK_THAT(adapter.text, Contains("PEFT 0.21 with transformers 5 does not decompose stacks of experts"));
  const std::string next = alone + "train.train_steps=1 ";
  REQUIRE(t.sh(run + next + "output_dir=m checkpoint.load.path=merged").code == 0);
  REQUIRE(t.sh(pissa + next + "output_dir=a lora.adapter=adapter").code == 0);
  const double merged = t.values("lm_loss", "m").at(0);
  CHECK(std::abs(t.values("lm_loss", "a").at(0) - merged) < 1e-6 * merged);
  CHECK(std::abs(first.at(0) - merged) > 1e-4);  // negative control: without adapters
}

TEST_CASE("lora: exports and adapters that do not fit are refused by name") {
  TempRun t;
  REQUIRE(t.sh(kLora + "output_dir=one").code == 0);
  const auto refused = [&](const std::string& arguments, const std::string& text) {
    const Outcome o = t.sh(arguments);
    INFO(arguments << "\n" << o.text);
    CHECK(o.code == 64);
    CHECK_THAT(o.text, Contains(text));
  };
  refused("export one out", "has adapters (lora.r = 4); give --merge");
  refused("export one out --merge --ema", "--ema: averages of adapters are not exported");
  refused(kLora + "output_dir=x lora.target_modules=[q_prj]",
          "lora.target_modules: q_prj stands for no linear layer");
  refused(kLora + "output_dir=x lora.modules_to_save=[lm_hed]",
          "lora.modules_to_save: lm_hed stands for no module");
  REQUIRE(t.sh("export one adapter --adapter").code == 0);
  REQUIRE(t.sh("export one merged --merge").code == 0);
  const std::string with = kLora + "output_dir=x lora.adapter=adapter checkpoint.load.path=merged ";
  refused(with + "lora.r=8", "adapter_config.json: r = 4: the recipe has lora.r = 8");
  CHECK_THAT(t.sh(with + "lora.r=8").text, !Contains("rank 0"));  // refused before ranks are started
  refused(with + "checkpoint.load.path=one/checkpoints checkpoint.load.parts=all", "lora.adapter");
  refused(with + "lora.target_modules=[q_proj] 'lora.rank_pattern={q_proj: 2}' '~lora.alpha_pattern'",
          "which the recipe's adapters do not have");
  refused(with + "'lora.rank_pattern={k_prj: 2}'",
          "lora.rank_pattern: k_prj stands for no module with an adapter");
  refused(with + "'lora.alpha_pattern={up_proj: 21}'",
          "alpha_pattern: model.layers.0.mlp.up_proj has 20, and the recipe has lora.alpha_pattern that "
          "gives it 21");
  REQUIRE(t.shell("cp adapter/adapter_config.json kept.json; sed -i "
                  "'s/\"rank_pattern\": {/\"rank_pattern\": {\"q_proj|k_proj\": 2,/' "
                  "adapter/adapter_config.json")
              .code == 0);
  refused(with, "rank_pattern has the regular expression q_proj|k_proj");
  REQUIRE(t.shell("cp kept.json adapter/adapter_config.json").code == 0);
  REQUIRE(t.shell("sed -i 's/\"r\": 4/\"r\": 4, \"target_parameters\": [\"experts.down_proj\"]/' "
                  "adapter/adapter_config.json")
              .code == 0);
  refused(with,
          "target_parameters = [\"experts.down_proj\"]: adapters of stacks of experts are not read; those of "
          "single experts are");
  REQUIRE(t.shell("cp kept.json adapter/adapter_config.json").code == 0);
  REQUIRE(t.shell("sed -i 's/\"use_dora\": false/\"use_dora\": true/' adapter/adapter_config.json").code ==
          0);
  refused(with, "adapter_config.json: use_dora = true: the recipe has lora.dora = false");
  REQUIRE(t.shell("echo '{' > adapter/adapter_config.json").code == 0);
  CHECK_THAT(t.sh(with).text, Contains("adapter_config.json: expected a JSON object"));
  REQUIRE(t.sh("run tiny.yaml output_dir=plain train.train_steps=1 train.eval_interval=0").code == 0);
  refused("export plain out --merge", "has no adapters, and --merge is for a run with lora.r above 0");
}

TEST_CASE("lora: with weights in NF4 a run resumes on other layouts, and its merged model is the run's") {
  TempRun t;
  const std::string model = "model.hidden_size=128 model.intermediate_size=256 ";
  REQUIRE(t.sh("run tiny.yaml output_dir=base train.eval_interval=0 train.train_steps=2 " + model).code == 0);
  REQUIRE(t.sh("export base folder --dtype fp32").code == 0);
  const std::string nf4 = kLora + model + "lora.base=nf4 checkpoint.load.path=folder ",
                    alone = "parallel.data=1 parallel.zero_stage=0 ";
  const Outcome one = t.sh(nf4 + alone + "output_dir=one");
  INFO(one.text);
  REQUIRE(one.code == 0);
  const std::vector<double> want = t.values("lm_loss", "one");
  REQUIRE(want.size() == 4);
  REQUIRE(t.sh(kLora + model + alone + "checkpoint.load.path=folder output_dir=full").code == 0);
  CHECK(std::abs(t.values("lm_loss", "full")[0] - want[0]) > 1e-5);  // negative control
  int run = 0;
  for (const char* layout : {"parallel.data=2 parallel.zero_stage=3", "parallel.data=2 parallel.zero_stage=1",
                             "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2",
                             "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2"}) {
    const std::string name = "layout" + std::to_string(run++);
    const Outcome half =
        t.sh(nf4 + "output_dir=" + name + " train.stop_step=2 " + (run % 2 ? alone : layout));
    INFO(layout << "\n" << half.text);
    REQUIRE(half.code == 0);
    const Outcome rest = t.sh(nf4 + "output_dir=" + name + " " + (run % 2 ? layout : alone));
    INFO(rest.text);
    REQUIRE(rest.code == 0);
    check_same_losses(t.values("lm_loss", name), want);
  }
  const Outcome other =
      t.sh(kLora + model + alone + "checkpoint.load.path=folder output_dir=one train.train_steps=5");
  INFO(other.text);
  CHECK(other.code == 64);
  CHECK_THAT(other.text, Contains("is in NF4 there, and the recipe has lora.base: full"));
  // The merged model, and the checkpoint read without NF4, are what the run trained.
  REQUIRE(t.sh("export one merged --merge --dtype fp32").code == 0);
  const std::string next =
      "run tiny.yaml precision=fp32 train.eval_interval=0 train.train_steps=1 " + model + alone;
  REQUIRE(t.sh(next + "output_dir=m checkpoint.load.path=merged").code == 0);
  REQUIRE(t.sh(next + kAdapters + "lora.base=nf4 output_dir=c checkpoint.load.path=one/checkpoints").code ==
          0);
  REQUIRE(t.sh(next + kAdapters + "output_dir=f checkpoint.load.path=one/checkpoints").code == 0);
  const double merged = t.values("lm_loss", "m").at(0);
  for (const char* name : {"c", "f"}) {
    INFO(name);
    CHECK(std::abs(merged - t.values("lm_loss", name).at(0)) < 1e-6 * merged);
  }
  const Outcome said = t.sh("generate one --prompt line --tokens 3 --temperature 0"),
                whole = t.sh("generate merged --prompt line --tokens 3 --temperature 0");
  INFO(said.text);
  CHECK(said.code == 0);
  const auto second_line = [](const std::string& text) {
    const size_t at = text.find('\n');
    return text.substr(at, text.find('\n', at + 1) - at);
  };
  CHECK(second_line(said.text) == second_line(whole.text));
}

TEST_CASE("lora: adapters on NF4 train as on the dequantised weights, with magnitudes too") {
  TempRun t;
  const std::string model = "model.hidden_size=128 model.intermediate_size=256 ",
                    alone = "parallel.data=1 parallel.zero_stage=0 ";
  REQUIRE(t.sh("run tiny.yaml output_dir=base train.eval_interval=0 train.train_steps=2 " + model).code == 0);
  REQUIRE(t.sh("export base folder --dtype fp32").code == 0);
  // Without a learning rate the adapters stay zero, and the merged model is the dequantised weights.
  const std::string run = kLora + model + alone, nf4 = "lora.base=nf4 checkpoint.load.path=folder ";
  REQUIRE(t.sh(run + nf4 + "optimizer.lr=1e-30 optimizer.weight_decay=0 output_dir=still").code == 0);
  REQUIRE(t.sh("export still dequantised --merge --dtype fp32").code == 0);
  const std::string dora = GENERATE("lora.dora=false ", "lora.dora=true ");
  INFO(dora);
  REQUIRE(t.sh(run + dora + nf4 + "output_dir=quantised").code == 0);
  REQUIRE(t.sh(run + dora + "checkpoint.load.path=dequantised output_dir=full").code == 0);
  REQUIRE(t.sh(run + dora + "checkpoint.load.path=folder output_dir=other").code == 0);
  check_same_losses(t.values("lm_loss", "quantised"), t.values("lm_loss", "full"));
  CHECK(std::abs(t.values("lm_loss", "quantised")[0] - t.values("lm_loss", "other")[0]) > 1e-5);
}

TEST_CASE("lora: blocks of NF4 that ranks would share are refused before a launch") {
  TempRun t;
  const std::string model = "model.hidden_size=128 model.intermediate_size=256 model.num_attention_heads=4 ";
  const Outcome cut =
      t.sh("plan tiny.yaml parallel.data=1 parallel.zero_stage=0 parallel.tensor=4 lora.r=4 lora.base=nf4 " +
           model);
  CHECK(cut.code == 64);
  CHECK_THAT(cut.text, Contains("self_attn.o_proj.weight has rows of 32 elements on each rank"));
}

TEST_CASE(
    "lora: PiSSA begins with the model's loss under every layout, and goes into PEFT's folder and back") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml output_dir=base train.eval_interval=0 train.train_steps=2").code == 0);
  REQUIRE(t.sh("export base folder --dtype fp32").code == 0);
  const std::string alone = "parallel.data=1 parallel.zero_stage=0 ",
                    pissa = kLora + "lora.init=pissa checkpoint.load.path=folder ";
  REQUIRE(t.sh(kLora + alone + "checkpoint.load.path=folder output_dir=zero").code == 0);
  const Outcome one = t.sh(pissa + alone + "output_dir=one");
  INFO(one.text);
  REQUIRE(one.code == 0);
  CHECK_THAT(one.text, Contains("the largest singular vectors of 14 matrices"));
  const std::vector<double> want = t.values("lm_loss", "one"), zero = t.values("lm_loss", "zero");
  CHECK(std::abs(want.at(0) - zero.at(0)) < 1e-12 * zero[0]);
  CHECK(std::abs(want.at(3) - zero.at(3)) > 1e-6);  // negative control: other adapters train
  int run = 0;
  for (const char* layout : {"parallel.data=2 parallel.zero_stage=3", "parallel.data=2 parallel.zero_stage=1",
                             "parallel.data=1 parallel.zero_stage=0 parallel.tensor=2",
                             "parallel.data=1 parallel.zero_stage=0 parallel.pipeline=2"}) {
    const std::string name = "layout" + std::to_string(run++);
    const Outcome many = t.sh(pissa + "output_dir=" + name + " " + layout);
    INFO(layout << "\n" << many.text);
    REQUIRE(many.code == 0);
    check_same_losses(t.values("lm_loss", name), want);
  }
  // At the first step the merged model is the folder's.
  REQUIRE(t.sh(pissa + alone + "output_dir=first optimizer.lr=1e-30 train.train_steps=1").code == 0);
  REQUIRE(t.sh("export first same --merge --dtype fp32").code == 0);
  const std::string next = "run tiny.yaml precision=fp64 train.eval_interval=0 train.train_steps=1 " + alone;
  REQUIRE(t.sh(next + "output_dir=s checkpoint.load.path=same").code == 0);
  CHECK(std::abs(t.values("lm_loss", "s").at(0) - zero[0]) < 1e-7 * zero[0]);
  REQUIRE(t.sh("export one merged --merge --dtype fp32").code == 0);
  REQUIRE(t.sh("export one adapter --adapter").code == 0);
  REQUIRE(t.sh(next + "output_dir=m checkpoint.load.path=merged").code == 0);
  const Outcome back = t.sh(next + kAdapters +
                            "output_dir=a lora.init=pissa lora.adapter=adapter checkpoint.load.path=folder");
  INFO(back.text);
  REQUIRE(back.code == 0);
  const double merged = t.values("lm_loss", "m").at(0);
  CHECK(std::abs(t.values("lm_loss", "a").at(0) - merged) < 1e-6 * merged);
  const Outcome other =
      t.sh(next + kAdapters + "output_dir=b lora.adapter=adapter checkpoint.load.path=folder");
  CHECK(other.code == 64);
  CHECK_THAT(other.text,
             Contains("init_lora_weights = \"pissa\": the recipe has lora.init = zero; make it agree"));
}
