#include <catch2/catch.hpp>
#include <fstream>
#include <regex>

#include "app/cluster/kube_manifest.h"
#include "base/error.h"
#include "tests/app/run_program.h"
#include "tests/faults/run_support.h"

using namespace ltrain;
using namespace ltrain::app;
using Catch::Contains;

namespace {

KubeOptions kube_job() {
  KubeOptions o;
  o.recipe = "recipes/llama.yaml", o.overrides = {"train.train_steps=100", "output_dir=runs/it\"s"};
  o.nodes = 2, o.ranks_per_node = 8, o.threads_per_rank = 12, o.gpus_per_node = 8;
  o.name = "llama", o.name_space = "team", o.image = "registry:5000/ltrain:0.1", o.claim = "shared",
  o.mem = "97Gi";
  o.recipe_text = "  # a line with spaces before it\nname: llama\r\n\nmodel: {architecture: llama}\n";
  o.token = "00ff";
  o.notes = {"Memory: planned."};
  return o;
}

/// First group of `pattern` in `text`.
std::string found(const std::string& text, const char* pattern) {
  std::smatch m;
  INFO(pattern << "\n" << text);
  REQUIRE(std::regex_search(text, m, std::regex(pattern)));
  return m[1];
}

}  // namespace

TEST_CASE("the manifests of a job on Kubernetes are as expected") {
  const std::string path = std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/kube.yaml";
  const std::string text = kube_manifest(kube_job());
  if (std::getenv("LTRAIN_UPDATE_GOLDEN")) std::ofstream(path) << text;
  CHECK(text == test::read_file(path));
}

TEST_CASE("options that Kubernetes would refuse are refused with their rule") {
  const auto refused = [](auto set, const char* text) {
    KubeOptions o = kube_job();
    set(o);
    CHECK_THROWS_WITH(kube_manifest(o), Contains(text));
  };
  for (const char* bad : {"Llama", "1b", "a_b", "a-", "", "a\nb"})
    refused([&](KubeOptions& o) { o.name = bad; }, "--name=");
  refused([](KubeOptions& o) { o.name = std::string(41, 'a'); }, "at most 40");
  refused([](KubeOptions& o) { o.name_space = "a.b"; }, "--namespace=");
  refused([](KubeOptions& o) { o.claim = ""; }, "--claim=");
  refused([](KubeOptions& o) { o.image = "a b"; }, "--image=");
  refused([](KubeOptions& o) { o.mount = "work"; }, "--mount=");
  refused([](KubeOptions& o) { o.mem = "16GB"; }, "--mem=");
  refused([](KubeOptions& o) { o.recipe_text.assign(1 << 20, '#'); }, "a ConfigMap holds");
}

TEST_CASE("two launchers with the environment and arguments of ltrain kube are one job") {
  const test::TempRun t;
  const test::Outcome made = t.sh("kube tiny.yaml --nodes 2 --image x/ltrain --claim c train.train_steps=3");
  INFO(made.text);
  REQUIRE(made.code == 0);
  const auto variable = [&](const std::string& name) {
    return name + "=" + found(made.text, ("name: " + name + ", value: \"(\\d+)\"").c_str());
  };
  CHECK(found(made.text, "PET_MASTER_ADDR, value: (\\S+)\\}") == "tiny-node-0-0.tiny");
  CHECK(found(made.text, "memory: (\\d+)Mi") != "0");
  std::string args = found(made.text, "args: \\[(.*)\\]");
  args = std::regex_replace(std::regex_replace(args, std::regex("[\",]"), ""),
                            std::regex("/etc/ltrain/recipe"), "tiny");
  const std::string common =
      fmt::format("LTRAIN_TOKEN={} {} {} PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT={}",
                  found(made.text, "token: \"([0-9a-f]{64})\""), variable("PET_NNODES"),
                  variable("PET_NPROC_PER_NODE"), test::free_port());
  const test::Outcome ran =
      t.shell(fmt::format("{0} JOB_COMPLETION_INDEX=1 {1} {2} > second.txt & {0} JOB_COMPLETION_INDEX=0 {1} "
                          "{2}; first=$?; wait $!; "
                          "echo \"$first $?\"",
                          common, test::program(), args));
  INFO(ran.text << test::read_file(t.folder() + "/second.txt"));
  CHECK_THAT(ran.text, Contains("0 0\n"));
  CHECK(std::filesystem::exists(t.folder() + "/run/checkpoints"));
}
