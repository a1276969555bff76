#include "app/slurm_script.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "kernels/core/error.h"

using namespace ltrain;
using namespace ltrain::app;

namespace {

SlurmOptions example() {
  SlurmOptions o;
  o.recipe = "recipes/llama 1b.yaml";
  o.overrides = {"train.train_steps=100", "name=it's"};
  o.nodes = 2, o.ranks_per_node = 4, o.threads_per_rank = 8;
  o.time = "1-12:00:00";
  o.partition = "long", o.account = "physics", o.job_name = "llama-1b";
  return o;
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// LTRAIN_UPDATE_GOLDEN=1 writes the expected text anew.
void compare(const std::string& name, const std::string& text) {
  const std::string path = std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/" + name;
  if (std::getenv("LTRAIN_UPDATE_GOLDEN")) std::ofstream(path) << text;
  CHECK(text == read(path));
  // shellcheck where it is installed; bash's own parser everywhere.
  CHECK(std::system(("bash -n '" + path + "'").c_str()) == 0);
  if (std::system("command -v shellcheck >/dev/null 2>&1") == 0)
    CHECK(std::system(("shellcheck '" + path + "'").c_str()) == 0);
}

}  // namespace

TEST_CASE("sbatch scripts: as expected, and clean for the shell") {
  compare("slurm-requeue.sbatch", slurm_script(example()));
  SlurmOptions plain;
  plain.recipe = "r.yaml", plain.job_name = "r", plain.max_attempts = 0, plain.gpus_per_node = 8;
  compare("slurm-exec.sbatch", slurm_script(plain));
}

TEST_CASE("Slurm's forms of time") {
  CHECK(parse_slurm_minutes("90") == 90);
  CHECK(parse_slurm_minutes("90:30") == 90);
  CHECK(parse_slurm_minutes("2:30:00") == 150);
  CHECK(parse_slurm_minutes("1-12") == 36 * 60);
  CHECK(parse_slurm_minutes("1-12:30") == 36 * 60 + 30);
  CHECK(parse_slurm_minutes("1-12:30:10") == 36 * 60 + 30);
  for (const char* bad : {"", "x", "1h", "1:2:3:4", "1-", "12:00 "}) CHECK(parse_slurm_minutes(bad) < 0);
}

TEST_CASE("values that would break the script are refused") {
  SlurmOptions o = example();
  o.partition = "long\n#SBATCH --uid=0";
  CHECK_THROWS_WITH(slurm_script(o), Catch::Contains("--partition="));
  o = example();
  o.time = "soon";
  CHECK_THROWS_WITH(slurm_script(o), Catch::Contains("--time=\"soon\""));
  o = example();
  o.time = "3", o.signal_lead_seconds = 120;
  CHECK_THROWS_WITH(slurm_script(o), Catch::Contains("--signal-lead=120"));
}
