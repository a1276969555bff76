#include "app/cluster/slurm_script.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "tests/app/run_program.h"

using namespace ltrain;
using namespace ltrain::app;
using Catch::Contains;

namespace {

SlurmOptions slurm_job() {
  SlurmOptions o;
  o.recipe = "recipes/llama 1b.yaml";
  o.overrides = {"train.train_steps=100", "name=it's"};
  o.nodes = 2, o.ranks_per_node = 4, o.threads_per_rank = 8;
  o.time = "1-12:00:00", o.mem = "4515M";
  o.notes = {"Memory: 4 ranks a node of 1026.0 MiB, planned, and a tenth more."};
  o.output_dir = "runs/it's";
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
  const std::string requeue = slurm_script(slurm_job());
  compare("slurm-requeue.sbatch", requeue);
  CHECK_THAT(requeue, Contains("output_dir='runs/it'\\''s'") && Contains("*JobState=CANCELLED*"));
  SlurmOptions plain;
  plain.recipe = "r.yaml", plain.job_name = "r", plain.max_attempts = 0, plain.gpus_per_node = 8;
  plain.nodes = plain.ranks_per_node = plain.threads_per_rank = 1, plain.time = "24:00:00";
  compare("slurm-exec.sbatch", slurm_script(plain));
}

TEST_CASE("sbatch scripts start the ranks in an image") {
  SlurmOptions o = slurm_job();
  o.max_attempts = 0, o.gpus_per_node = 8;
  o.container_image = "registry#ltrain:0.1";
  compare("slurm-pyxis.sbatch", slurm_script(o));
  o.container_image.clear();
  o.apptainer_image = "images/ltrain 0.1.sif";
  compare("slurm-apptainer.sbatch", slurm_script(o));
  CHECK_THAT(slurm_script(o), Contains("apptainer exec --nv --bind \"$PWD\""));
  o.gpus_per_node = 0, o.container_mounts = "/data,/home:/home";
  CHECK_THAT(slurm_script(o), Contains("apptainer exec --bind /data,/home:/home --pwd \"$PWD\""));
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
  SlurmOptions o = slurm_job();
  o.partition = "long\n#SBATCH --uid=0";
  CHECK_THROWS_WITH(slurm_script(o), Catch::Contains("--partition="));
  o = slurm_job();
  o.time = "soon";
  CHECK_THROWS_WITH(slurm_script(o), Catch::Contains("--time=\"soon\""));
  o = slurm_job();
  o.time = "3", o.signal_lead_seconds = 120;
  CHECK_THROWS_WITH(slurm_script(o), Catch::Contains("--signal-lead=120"));
}

TEST_CASE("times for Slurm: whole minutes, rounded up, and read back") {
  CHECK(slurm_time(600) == "00:10:00");
  CHECK(slurm_time(601) == "00:11:00");
  CHECK(slurm_time(86399) == "1-00:00:00");
  CHECK(slurm_time(36 * 3600 + 1) == "1-12:01:00");
  for (double s : {60.0, 3600.0, 90000.0, 1e6})
    CHECK(parse_slurm_minutes(slurm_time(s)) == std::ceil(s / 60));
}

TEST_CASE(
    "ranks on nodes: what is not given follows from the recipe, what disagrees is refused with what would "
    "do") {
  const auto placed = [](int nodes, int ranks, int64_t world, int preferred = 0) {
    SlurmOptions o;
    o.recipe = "r.yaml", o.nodes = nodes, o.ranks_per_node = ranks;
    place_ranks(o, world, preferred);
    return std::make_pair(o.nodes, o.ranks_per_node);
  };
  using P = std::pair<int, int>;
  CHECK(placed(0, 0, 0) == P(1, 1));
  CHECK(placed(3, 0, 0) == P(3, 1));
  CHECK(placed(3, 5, 0) == P(3, 5));
  CHECK(placed(2, 0, 0, 4) == P(2, 4));
  CHECK(placed(0, 0, 8) == P(1, 8));
  CHECK(placed(0, 0, 8, 4) == P(2, 4));
  CHECK(placed(0, 0, 8, 3) == P(1, 8));  // 3 does not divide 8
  CHECK(placed(2, 0, 8) == P(2, 4));
  CHECK(placed(0, 2, 8) == P(4, 2));
  CHECK(placed(4, 2, 8) == P(4, 2));
  CHECK_THROWS_WITH(placed(3, 2, 8),
                    Contains("--nodes=3 --ranks-per-node=2: 6 ranks") && Contains("r.yaml make 8") &&
                        Contains("--nodes=4 --ranks-per-node=2") && Contains("--nodes=2 --ranks-per-node=4"));
  CHECK_THROWS_WITH(placed(3, 0, 8),
                    Contains("--nodes=3: must divide the 8 ranks") && Contains("nearest that does is 2"));
  CHECK_THROWS_WITH(placed(0, 7, 8), Contains("--ranks-per-node=7") && Contains("nearest that does is 8"));
}

TEST_CASE("slurm: threads, memory and time come from the plan, what is given wins, a bad recipe is refused") {
  test::TempRun t;
  const auto has_line = [](const test::Outcome& o, const std::string& line) {
    return ("\n" + o.text).find("\n" + line + "\n") != std::string::npos;
  };
  const auto mem = [&](int ranks, int threads = 1) {
    // The memory of a group depends on whether its ranks share a node.
    const auto plan = nlohmann::json::parse(
        t.sh(fmt::format("plan tiny.yaml --json launch.ranks_per_node={} launch.threads_per_rank={}", ranks,
                         threads))
            .text);
    double rank_bytes = 0;
    for (const auto& r : plan["ranks"])
      rank_bytes = std::max(rank_bytes, r["memory_bytes"]["total"].get<double>());
    return fmt::format("#SBATCH --mem={}M",
                       static_cast<int64_t>(std::ceil(rank_bytes / 1048576.0 * ranks * 1.1)));
  };
  const test::Outcome one = t.sh("slurm tiny.yaml");
  INFO(one.text);
  CHECK(one.code == 0);
  CHECK(has_line(one, "#SBATCH --nodes=1"));
  CHECK(has_line(one, "#SBATCH --ntasks-per-node=2"));
  CHECK(has_line(one, "#SBATCH --cpus-per-task=1"));  // launch.threads_per_rank of the recipe
  CHECK(has_line(one, mem(2)));
  CHECK(has_line(one, "#SBATCH --time=00:10:00"));
  CHECK(one.text.find("# Memory: 2 ranks a node") != std::string::npos);
  CHECK(one.text.find("by a guess (`ltrain bench` measures); and half more") != std::string::npos);
  CHECK(one.text.find("launch.threads_per_rank") == std::string::npos);

  const test::Outcome two = t.sh("slurm tiny.yaml --nodes 2 train.train_steps=10000000 --threads-per-rank 3");
  INFO(two.text);
  CHECK(has_line(two, "#SBATCH --ntasks-per-node=1"));
  CHECK(has_line(two, mem(1, 3)));
  CHECK(has_line(two, "#SBATCH --cpus-per-task=3"));
  CHECK(two.text.find("ltrain run tiny.yaml train.train_steps=10000000 launch.threads_per_rank=3") !=
        std::string::npos);
  CHECK_FALSE(has_line(two, "#SBATCH --time=00:10:00"));

  const test::Outcome given = t.sh("slurm tiny.yaml --mem 3G --time 45 --nodes 1");
  INFO(given.text);
  CHECK(has_line(given, "#SBATCH --mem=3G"));
  CHECK(has_line(given, "#SBATCH --time=45"));
  CHECK(given.text.find("planned") == std::string::npos);

  const test::Outcome many = t.sh("slurm tiny.yaml --nodes 2 --ranks-per-node 2 parallel.data=-1");
  INFO(many.text);
  CHECK(has_line(many, "#SBATCH --ntasks-per-node=2"));
  CHECK(many.text.find("4 ranks on 2 nodes") != std::string::npos);

  const test::Outcome gpus = t.sh("slurm tiny.yaml device=cuda");
  INFO(gpus.text);
  CHECK(has_line(gpus, "#SBATCH --gpus-per-node=2"));
  CHECK(gpus.text.find("by the profile h200, built in") != std::string::npos);
  CHECK_FALSE(has_line(gpus, mem(2)));  // the arenas are on the cards
  CHECK(one.text.find("--gpus-per-node") == std::string::npos);

  const test::Outcome wrong = t.sh("slurm tiny.yaml --nodes 3");
  CHECK(wrong.code == 64);
  CHECK_THAT(wrong.text, Contains("--nodes=3: must divide the 2 ranks"));
  const test::Outcome batch = t.sh("slurm tiny.yaml parallel.data=-1 --nodes 3");  // 8 sequences over 3 ranks
  CHECK(batch.code == 64);
  CHECK_THAT(batch.text, Contains("global_batch_size"));
  const test::Outcome key = t.sh("slurm tiny.yaml train.trian_steps=3");
  CHECK(key.code == 64);
  CHECK_THAT(key.text, Contains("train.train_steps"));
  CHECK(t.sh("slurm none.yaml").code == 64);
}

TEST_CASE("threads of a rank on GPUs are the cores of their node, whatever made the script") {
  const test::TempRun t;
  const auto has_line = [](const test::Outcome& o, const std::string& line) {
    return ("\n" + o.text).find("\n" + line + "\n") != std::string::npos;
  };
  const std::string dgx =
      "slurm tiny.yaml device=cuda parallel.data=16 train.global_batch_size=32 "
      "launch.threads_per_rank=auto ";
  // 112 cores of a DGX H100 over 8 ranks.
  const test::Outcome h100 = t.sh(dgx + "--profile h100");
  INFO(h100.text);
  CHECK(h100.code == 0);
  CHECK(has_line(h100, "#SBATCH --ntasks-per-node=8"));
  CHECK(has_line(h100, "#SBATCH --cpus-per-task=14"));
  CHECK_THAT(h100.text,
             Contains("# Threads a rank: the 112 cores of a node, by h100, built in, over 8 ranks"));
  std::ofstream(t.folder() + "/ours.yaml")
      << "format: ltrain.cluster.v1\nname: ours\nprofile: h100\nnodes: 4\n"
         "gpus_per_node: 8\ncores_per_node: 64\nnetwork: ib-8x400g\n";
  const test::Outcome ours = t.sh(dgx + "--cluster ours.yaml");
  INFO(ours.text);
  CHECK(has_line(ours, "#SBATCH --cpus-per-task=8"));
  CHECK(has_line(t.sh(dgx + "--cluster ours.yaml --threads-per-rank 3"), "#SBATCH --cpus-per-task=3"));
  // A node that nothing is known of: said, and not taken from this machine.
  const test::Outcome unknown = t.sh(dgx + "--profile l40s");
  INFO(unknown.text);
  CHECK(has_line(unknown, "#SBATCH --cpus-per-task=4"));
  CHECK_THAT(unknown.text, Contains("does not say how many cores a node has"));
}
