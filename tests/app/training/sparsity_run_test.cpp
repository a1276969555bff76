// Two of four, by the program: a resume in the middle, what the plan says, what verify looks at.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "runtime/checkpoint/store.h"
#include "runtime/plan/sparse_plan.h"
#include "tests/app/run_program.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

bool has(const Outcome& o, const std::string& text) { return o.text.find(text) != std::string::npos; }

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
  CHECK(check_2_4(folder) == 0);
  std::string manifest = read_text(folder + "/manifest.json");
  const std::string from = "match: []", to = "match: ['*.mlp.*']";
  REQUIRE(manifest.find(from) != std::string::npos);
  manifest.replace(manifest.find(from), from.size(), to);
  std::ofstream(folder + "/manifest.json") << manifest;
  std::ofstream(folder + "/COMMIT") << commit_record(manifest);  // else its hash is refused first
  try {
    check_2_4(folder);
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

TEST_CASE("one number in the place of a zero is seen") {
  std::vector<double> w(8 * 12);
  for (size_t i = 0; i < w.size(); ++i) w[i] = i % 4 < 2 ? 1.0 : 0.0;
  CHECK(dense_four(w, {8, 12}).empty());
  w[5 * 12 + 7] = -1e-300;
  CHECK(dense_four(w, {8, 12}) == "row 5 has 3 numbers other than zero in columns 4 to 7");
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
          "down_proj.weight has 66 columns, and two of each four");
  refused("'sparsity.match=[\"*.mlp.*\"]' 'optimizer.groups=[{match: \"*.mlp.*\", kind: muon}]'",
          "has muon, and");
  refused("'sparsity.match=[\"*.mlp.*\"]' 'optimizer.frozen=[\"*.mlp.down*\"]'",
          "down_proj.weight is frozen, and to set half of it to zero changes it");
}
