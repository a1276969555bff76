// Sparse matrices, by the program: against PyTorch, a resume in the middle, the plan, and verify.
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "runtime/checkpoint/store.h"
#include "runtime/plan/sparse_plan.h"
#include "tests/app/outcomes.h"
#include "tests/app/run_program.h"
#include "tests/app/trl_recipe.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

const char* const kSparse = " 'sparsity.match=[\"*.mlp.*\"]' sparsity.at_step=3";

}  // namespace

TEST_CASE("a run that is 2:4 sparse from step 3: planned, resumed in the middle bit for bit, verified") {
  TempRun t;
  const std::string run = std::string("run tiny.yaml checkpoint.keep_latest=0") + kSparse;
  const Outcome first = t.sh(run);
  INFO(first.text);
  REQUIRE(first.code == 0);
  const auto losses = t.metric("lm_loss"), norms = t.metric("grad_norm");
  for (const char* from : {"step-00000004", "step-00000002"}) {  // after the choice, before it
    for (const auto& entry : std::filesystem::directory_iterator(t.folder() + "/run/checkpoints"))
      if (entry.path().filename() > from) std::filesystem::remove_all(entry.path());
    REQUIRE(std::filesystem::exists(t.folder() + "/run/checkpoints/" + from));
    REQUIRE(t.sh(run + " parallel.zero_stage=0").code == 0);
    CHECK(t.metric("lm_loss") == losses);
    CHECK(t.metric("grad_norm") == norms);
  }
  const Outcome verified = t.sh("checkpoint verify run");
  CHECK(verified.code == 0);
  CHECK(has(verified, "6 matrices are 2:4 sparse"));

  const Outcome plan = t.sh(std::string("plan tiny.yaml --json") + kSparse),
                dense = t.sh("plan tiny.yaml --json");
  const auto j = nlohmann::json::parse(plan.text), without = nlohmann::json::parse(dense.text);
  CHECK(j["sparse_parameters"] == 2 * 3 * 32 * 64);
  CHECK(j["sparse_from_step"] == 3);
  CHECK(!without.contains("sparse_parameters"));
  CHECK(has(t.sh(std::string("plan tiny.yaml") + kSparse),
            "2:4 sparse: 12.3k parameters, half of them zero from update 3 on"));
}

TEST_CASE("a checkpoint whose recipe says 2:4 sparse and that is not is refused by the tensor's name") {
  TempRun t;
  // A dense run's weights under a sparse one's recipe: what a writer that lost the zeros would leave.
  REQUIRE(t.sh("run tiny.yaml checkpoint.save_interval=6").code == 0);
  const std::string folder = t.folder() + "/run/checkpoints/step-00000006";
  CHECK(check_sparse(folder).matrices == 0);
  std::string manifest = read_file(folder + "/manifest.json");
  const std::string from = "match: []", to = "match: ['*.mlp.*']";
  REQUIRE(manifest.find(from) != std::string::npos);
  manifest.replace(manifest.find(from), from.size(), to);
  std::ofstream(folder + "/manifest.json") << manifest;
  std::ofstream(folder + "/COMMIT") << commit_record(manifest);  // else its hash is refused first
  try {
    check_sparse(folder);
    FAIL("nothing was thrown");
  } catch (const Error& e) {
    INFO(e.what());
    const std::string text = e.what();
    CHECK(e.code() == ExitCode::storage);
    CHECK(text.find("mlp.down_proj.weight is not 2:4 sparse") != std::string::npos);
  }
  const Outcome o = t.sh("checkpoint verify run");
  CHECK(o.code == 73);
  CHECK(has(o, "mlp.down_proj.weight is not 2:4 sparse"));
}

TEST_CASE("one number in the place of a zero is seen, in a row and in a column") {
  std::vector<double> w(8 * 12);
  for (size_t i = 0; i < w.size(); ++i) w[i] = i % 4 < 2 ? 1.0 : 0.0;
  CHECK(dense_group(w, {8, 12}, {}).empty());
  CHECK(dense_group(w, {8, 12}, {.match = {}, .pattern = "1:4"}) ==
        "row 0 has 2 numbers other than zero in columns 0 to 3");
  CHECK(dense_group(w, {8, 12}, {.match = {}, .transposable = true}) ==
        "column 0 has 4 numbers other than zero in rows 0 to 3");
  w[5 * 12 + 7] = -1e-300;
  CHECK(dense_group(w, {8, 12}, {}) == "row 5 has 3 numbers other than zero in columns 4 to 7");
  for (size_t i = 0; i < w.size(); ++i) w[i] = (i + i / 12) % 2 ? 1.0 : 0.0;
  CHECK(dense_group(w, {8, 12}, {.match = {}, .transposable = true}).empty());
  w[7 * 12 + 3] = 1;  // beside (7, 2), below (4, 3) and (6, 3)
  w[7 * 12 + 2] = 0;
  CHECK(dense_group(w, {8, 12}, {.match = {}, .transposable = true}) ==
        "column 3 has 3 numbers other than zero in rows 4 to 7");
}

TEST_CASE(
    "patterns that choose no matrix of a linear layer, and matrices without fours, are refused at once") {
  TempRun t;
  const auto refused = [&](const std::string& arguments, const char* what) {
    for (const char* command : {"plan", "run"}) {
      const Outcome o = t.sh(std::string(command) + " tiny.yaml " + arguments);
      INFO(o.text);
      CHECK(o.code == 64);
      CHECK(has(o, what));
    }
    CHECK(!std::filesystem::exists(t.folder() + "/run/checkpoints"));
  };
  refused("'sparsity.match=[\"*.mpl.*\"]'", "sparsity.match: *.mpl.* matches no parameter");
  refused("'sparsity.match=[\"*.mlp.*\", \"*embed*\"]'",
          "*embed* matches no such matrix, but model.embed_tokens.weight");
  refused("'sparsity.match=[\"*.mlp.*\", \"*norm*\"]'", "*norm* matches no such matrix");
  refused("'sparsity.match=[\"*.mlp.*\"]' model.intermediate_size=66",
          "down_proj.weight has 66 columns, and 2:4 needs a multiple of 4");
  refused("'sparsity.match=[\"*.mlp.*\"]' 'optimizer.groups=[{match: \"*.mlp.*\", kind: muon}]'",
          "has muon, and");
  refused("'sparsity.match=[\"*.mlp.*\"]' 'optimizer.frozen=[\"*.mlp.down*\"]'",
          "down_proj.weight does not train, and a mask would change it");
}

TEST_CASE("masks that move: losses, norms and flips are those of PyTorch in fp64") {
  TempRun t;
  const auto want =
      nlohmann::json::parse(read_file(std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/sparsity/losses.json"));
  write_trl_recipe(t, "sft", "../distillation/completions.jsonl");
  REQUIRE(t.shell("sed -i '/^preference/d' sft.yaml").code == 0);
  for (const auto& [name, run] : want["runs"].items()) {
    std::string command =
        "run sft.yaml precision=fp64 'output_dir=" + name + "' 'sparsity.match=[\"*_proj.weight\"]'";
    for (const auto& [key, value] : run["options"].items())
      command += " 'sparsity." + key + "=" + value.dump() + "'";
    const Outcome o = t.sh(command);
    INFO(name << "\n" << o.text);
    REQUIRE(o.code == 0);
    check_trl_steps(t, name, run["steps"], "lm_loss", "loss", 1e-10);
    check_trl_steps(t, name, run["steps"], "grad_norm", "grad_norm", 1e-10);
    std::ifstream lines(t.folder() + "/" + name + "/metrics.jsonl");
    size_t step = 0, counted = 0;
    for (std::string line; std::getline(lines, line); ++step) {
      const auto got = nlohmann::json::parse(line);
      const auto& expected = run["steps"].at(step);
      INFO("step " << step + 1);
      REQUIRE(got.contains("mask_flip_rate") == expected.contains("mask_flip_rate"));
      if (!got.contains("mask_flip_rate")) continue;
      ++counted;
      CHECK(std::abs(got["mask_flip_rate"].get<double>() - expected["mask_flip_rate"].get<double>()) < 1e-15);
    }
    CHECK(counted > 3);
  }
}

TEST_CASE(
    "masks that move: a resume in the middle is bit for bit, and saved weights are those of the steps") {
  TempRun t;
  for (const std::string settings : {"precision=fp32", "precision=bf16 sparsity.transposable=true",
                                     "precision=bf16 optimizer.kind=muon sparsity.pattern=1:4"}) {
    INFO(settings);
    const std::string run =
        "run tiny.yaml 'sparsity.match=[\"*_proj.weight\"]' sparsity.mask_interval=3 "
        "sparsity.masked_decay=0.1 " +
        settings + " ";
    const std::string name = std::to_string(std::hash<std::string>()(settings));
    REQUIRE(t.sh(run + "output_dir=a" + name).code == 0);
    REQUIRE(t.sh(run + "output_dir=b" + name + " train.stop_step=2").code == 0);
    REQUIRE(t.sh(run + "parallel.zero_stage=0 output_dir=b" + name + " train.stop_step=5").code == 0);
    REQUIRE(t.sh(run + "output_dir=b" + name).code == 0);
    for (const char* key : {"lm_loss", "grad_norm", "mask_flip_rate"})
      CHECK(t.metric(key, "a" + name) == t.metric(key, "b" + name));
    CHECK(t.values("mask_flip_rate", "a" + name).size() == 2);
    const Outcome verified = t.sh("checkpoint verify a" + name);
    INFO(verified.text);
    CHECK(verified.code == 0);
    CHECK(has(verified, "14 matrices are "));
  }
  // eval has the masked weights of the last step.
  REQUIRE(t.sh("run tiny.yaml train.train_steps=3 train.eval_steps=51 parallel.data=1 parallel.zero_stage=0 "
               "train.micro_batch_size=5 train.global_batch_size=5 output_dir=last "
               "'sparsity.match=[\"*.mlp.*\"]' sparsity.mask_interval=2")
              .code == 0);
  const Outcome eval = t.sh("eval last --json");
  INFO(eval.text);
  REQUIRE(eval.code == 0);
  const double loss = nlohmann::json::parse(eval.text)["sets"][0]["loss"];
  CHECK(std::abs(loss - t.values("eval_loss", "last").back()) < 1e-5);
}

TEST_CASE("masks that move: a dense run goes on with dense weights, and a tail ends with them") {
  TempRun t;
  const std::string masks = "'sparsity.match=[\"*.mlp.*\"]' sparsity.mask_interval=2 ";
  REQUIRE(t.sh("run tiny.yaml precision=fp64 " + masks + "train.stop_step=4").code == 0);
  REQUIRE(t.shell("cp -r run tail").code == 0);
  const Outcome dense = t.sh("run tiny.yaml precision=fp64");
  INFO(dense.text);
  REQUIRE(dense.code == 0);
  // The tail of 2 in 6 steps has the weights that a dense run goes on with.
  const Outcome tail =
      t.sh("run tiny.yaml precision=fp64 " + masks + "sparsity.dense_tail=0.33 output_dir=tail");
  INFO(tail.text);
  REQUIRE(tail.code == 0);
  CHECK(t.metric("lm_loss", "tail") == t.metric("lm_loss"));
  const Outcome verified = t.sh("checkpoint verify tail");
  INFO(verified.text);
  CHECK(verified.code == 0);
  CHECK(has(verified, "step-00000004: whole"));
  // The masks of step 4 are there; the last checkpoint is dense.
  CHECK(verified.text.find("6 matrices are 2:4 sparse") ==
        verified.text.rfind("matrices are 2:4 sparse") - 2);
  const Outcome plan =
      t.sh("plan tiny.yaml " + masks + "sparsity.dense_tail=0.33 sparsity.transposable=true");
  CHECK(
      has(plan,
          "2:4 transposable sparse: 12.3k parameters, half of them masked from update 1 to 4, with new masks "
          "every 2 updates"));
}

TEST_CASE(
    "masks that move: a dense run that goes on with them has masks at once, and a start from its weights a "
    "note") {
  TempRun t;
  REQUIRE(t.sh("run tiny.yaml train.stop_step=2").code == 0);
  const Outcome o = t.sh("run tiny.yaml 'sparsity.match=[\"*.mlp.*\"]' sparsity.mask_interval=10");
  INFO(o.text);
  REQUIRE(o.code == 0);
  CHECK(t.metric("mask_flip_rate") == std::vector<std::string>{"3:0.0"});
  const Outcome verified = t.sh("checkpoint verify run");
  INFO(verified.text);
  CHECK(verified.code == 0);
  CHECK(has(verified, "6 matrices are 2:4 sparse"));
  const std::string load = "run tiny.yaml train.train_steps=1 checkpoint.load.path=run ";
  CHECK(has(t.sh(load + "output_dir=pruned"), "its weights are those with sparsity's masks"));
  const Outcome dense = t.sh(load + "output_dir=dense checkpoint.load.parts=weights+optimizer");
  INFO(dense.text);
  CHECK((dense.code == 0 && !has(dense, "sparsity's masks")));
}
