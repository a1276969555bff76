#include "runtime/launch/environment/environment.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"

using namespace ltrain;
using Catch::Contains;
using Kind = LaunchEnvironment::Kind;

namespace {

Variables with(Variables base, const Variables& more) {
  for (const auto& [k, v] : more) base[k] = v;
  return base;
}
Variables without(Variables base, const std::string& key) {
  base.erase(key);
  return base;
}

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"GROUP_RANK", "1"},
                          {"MASTER_ADDR", "node001"},
                          {"MASTER_PORT", "29501"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"TORCHELASTIC_RUN_ID", "abc"}};
const Variables kSlurm{{"SLURM_JOB_ID", "4242"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_PROCID", "5"},
                       {"SLURM_NTASKS", "7"},
                       {"SLURM_STEP_NUM_TASKS", "7"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "2"},
                       {"SLURM_STEP_NODELIST", "node[001-003,010]"},
                       {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                       {"SLURM_JOB_NUM_NODES", "4"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"PMIX_NAMESPACE", "1234.1"}};
const Variables kLtrain{{"LTRAIN_RANK", "1"},
                        {"LTRAIN_WORLD_SIZE", "2"},
                        {"LTRAIN_LOCAL_RANK", "1"},
                        {"LTRAIN_LOCAL_SIZE", "2"},
                        {"LTRAIN_COORDINATOR", "127.0.0.1:4000"},
                        {"LTRAIN_TOKEN", "t"},
                        {"LTRAIN_LAUNCHER", "1"},
                        {"LTRAIN_ATTEMPT", "3"}};

}  // namespace

TEST_CASE("nothing: a single process") {
  const auto e = detect_environment({{"PATH", "/bin"}, {"RANK", ""}});
  CHECK(e.kind == Kind::single);
  CHECK(e.world_size == 1);
  CHECK(e.source == "none");
}

TEST_CASE("our own launcher") {
  const auto e = detect_environment(kLtrain);
  CHECK(e.kind == Kind::rank);
  CHECK((e.rank == 1 && e.world_size == 2 && e.local_rank == 1 && e.local_size == 2 && e.attempt == 3));
  CHECK((e.coordinator_host == "127.0.0.1" && e.coordinator_ports == std::vector<int>{4000}));
  CHECK(e.coordinator_is_launcher);
  // First of all: over every other set.
  CHECK(detect_environment(with(with(kSlurm, kTorchrun), kLtrain)).source == "ltrain");
  CHECK_THROWS_WITH(detect_environment(without(kLtrain, "LTRAIN_TOKEN")), Contains("LTRAIN_TOKEN"));
  CHECK_THROWS_WITH(detect_environment(with(kLtrain, {{"LTRAIN_RANK", "2"}})), Contains("LTRAIN_RANK=2"));
  CHECK_THROWS_WITH(detect_environment(with(kLtrain, {{"LTRAIN_RANK", "x1"}})),
                    Contains("LTRAIN_RANK=\"x1\""));
  CHECK_THROWS_WITH(detect_environment(with(kLtrain, {{"LTRAIN_COORDINATOR", "h:99999"}})),
                    Contains("1 to 65535"));
}

TEST_CASE("torchrun") {
  auto e = detect_environment(kTorchrun);
  CHECK((e.kind == Kind::rank && e.source == "torchrun" && e.rank == 5 && e.world_size == 8 &&
         e.local_rank == 1));
  CHECK((e.local_size == 4 && e.node == 1 && e.attempt == 2 && e.coordinator_host == "node001"));
  CHECK(e.coordinator_ports.front() == 29501);
  CHECK(e.coordinator_ports.size() > 1);
  CHECK_FALSE(e.coordinator_is_launcher);
  // The agent's store sits on MASTER_PORT: use others.
  e = detect_environment(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  for (int p : e.coordinator_ports) CHECK(p != 29501);
  // All ranks derive the same ports and token; another restart or job does not.
  const auto other =
      detect_environment(with(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"GROUP_RANK", "0"}}));
  CHECK(other.token == detect_environment(kTorchrun).token);
  CHECK(other.coordinator_ports == detect_environment(kTorchrun).coordinator_ports);
  CHECK(detect_environment(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}})).token != other.token);
  CHECK(detect_environment(without(kTorchrun, "TORCHELASTIC_RUN_ID")).source == "RANK/WORLD_SIZE");
  CHECK_THROWS_WITH(detect_environment(without(kTorchrun, "MASTER_ADDR")), Contains("MASTER_ADDR"));
  CHECK_THROWS_WITH(detect_environment(with(kTorchrun, {{"RANK", "8"}})),
                    Contains("RANK=8 with WORLD_SIZE=8"));
  CHECK_THROWS_AS(detect_environment(with(kTorchrun, {{"LOCAL_RANK", "4"}})), Error);
}

TEST_CASE("RANK and WORLD_SIZE without LOCAL_RANK count nodes") {
  const Variables pod{
      {"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}};
  const auto e = detect_environment(pod);
  CHECK((e.kind == Kind::node && e.node == 1 && e.nodes == 3 && e.ranks_per_node == 0));
  CHECK((e.coordinator_host == "job-master-0" && e.coordinator_ports == std::vector<int>{23456}));
  CHECK_THAT(e.note, Contains("node"));
  CHECK(detect_environment(with(pod, {{"RANK", "0"}, {"WORLD_SIZE", "1"}})).kind == Kind::single);
  CHECK_THROWS_AS(detect_environment(with(pod, {{"RANK", "3"}})), Error);
}

TEST_CASE("PET_* counts nodes") {
  const Variables pet{{"PET_NNODES", "2"},
                      {"PET_NODE_RANK", "1"},
                      {"PET_NPROC_PER_NODE", "4"},
                      {"PET_MASTER_ADDR", "trainer-0"},
                      {"PET_MASTER_PORT", "29500"}};
  auto e = detect_environment(pet);
  CHECK((e.kind == Kind::node && e.node == 1 && e.nodes == 2 && e.ranks_per_node == 4));
  CHECK(detect_environment(with(pet, {{"PET_NPROC_PER_NODE", "auto"}})).ranks_per_node == 0);
  e = detect_environment(with(without(pet, "PET_NODE_RANK"), {{"JOB_COMPLETION_INDEX", "0"}}));
  CHECK(e.node == 0);
  CHECK_THROWS_WITH(detect_environment(with(pet, {{"PET_NNODES", "1:4"}})), Contains("PET_NNODES=\"1:4\""));
  CHECK_THROWS_WITH(detect_environment(without(pet, "PET_NODE_RANK")), Contains("JOB_COMPLETION_INDEX"));
}

TEST_CASE("a Slurm step") {
  auto e = detect_environment(kSlurm);
  CHECK((e.kind == Kind::rank && e.source == "Slurm" && e.rank == 5 && e.world_size == 7));
  CHECK((e.local_rank == 1 && e.local_size == 2 && e.node == 2 && e.nodes == 4));
  CHECK(e.coordinator_host == "node001");
  CHECK(e.coordinator_ports.size() == 8);
  for (int p : e.coordinator_ports) CHECK((p >= 20000 && p < 32000));
  CHECK(
      detect_environment(with(kSlurm, {{"SLURM_NODEID", "3"}, {"SLURM_PROCID", "6"}, {"SLURM_LOCALID", "0"}}))
          .local_size == 1);
  CHECK(detect_environment(with(kSlurm, {{"SLURM_RESTART_COUNT", "2"}})).attempt == 2);
  CHECK(detect_environment(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).coordinator_ports != e.coordinator_ports);
  // One node: the loopback address, whatever the name resolves to.
  const auto one = with(kSlurm, {{"SLURM_STEP_NODELIST", "node001"},
                                 {"SLURM_STEP_TASKS_PER_NODE", "7"},
                                 {"SLURM_NODEID", "0"},
                                 {"SLURM_LOCALID", "5"}});
  CHECK(detect_environment(one).coordinator_host == "127.0.0.1");
  // The user's value wins.
  e = detect_environment(with(kSlurm, {{"LTRAIN_COORDINATOR", "10.0.0.1:7000"}, {"LTRAIN_TOKEN", "secret"}}));
  CHECK((e.coordinator_host == "10.0.0.1" && e.coordinator_ports == std::vector<int>{7000} &&
         e.token == "secret"));
}

TEST_CASE("inside a Slurm job but not in a step") {
  // A batch script: SLURM_PROCID is 0 there, and believing it would wait for ranks that nobody starts.
  const Variables batch{{"SLURM_JOB_ID", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"},
                        {"SLURM_NODEID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_NUM_NODES", "1"}};
  const auto e = detect_environment(batch);
  CHECK(e.kind == Kind::single);
  CHECK_THAT(e.note, Contains("outside a step"));
  CHECK_THROWS_WITH(detect_environment(with(batch, {{"SLURM_JOB_NUM_NODES", "2"}})),
                    Contains("srun ltrain run"));
  // One task: the launcher of its node.
  const auto one = with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"},
                                 {"SLURM_NTASKS", "1"},
                                 {"SLURM_PROCID", "0"},
                                 {"SLURM_NODEID", "0"},
                                 {"SLURM_LOCALID", "0"},
                                 {"SLURM_STEP_NODELIST", "n1"},
                                 {"SLURM_STEP_TASKS_PER_NODE", "1"}});
  CHECK(detect_environment(one).kind == Kind::single);
}

TEST_CASE("Open MPI and MPICH") {
  auto e = detect_environment(kOpenMpi);
  CHECK((e.kind == Kind::rank && e.source == "Open MPI" && e.rank == 3 && e.world_size == 4 &&
         e.local_size == 4));
  CHECK(e.coordinator_host == "127.0.0.1");
  const auto spread =
      with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  CHECK_THROWS_WITH(detect_environment(spread), Contains("MASTER_ADDR"));
  e = detect_environment(with(spread, {{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "4444"}}));
  CHECK((e.coordinator_host == "n1" && e.coordinator_ports.front() == 4444 && e.node == 1));
  e = detect_environment(with(spread, {{"LTRAIN_COORDINATOR", "n2:5555"}}));
  CHECK((e.coordinator_host == "n2" && e.coordinator_ports == std::vector<int>{5555}));

  const Variables mpich{{"PMI_RANK", "1"},
                        {"PMI_SIZE", "2"},
                        {"MPI_LOCALRANKID", "1"},
                        {"MPI_LOCALNRANKS", "2"},
                        {"_PARENT", "77"}};
  e = detect_environment(mpich);
  CHECK((e.source == "MPICH" && e.rank == 1 && e.world_size == 2 && e.local_rank == 1));
  CHECK(detect_environment(with(mpich, {{"PMI_RANK", "0"}})).token == e.token);
  CHECK(detect_environment(with(mpich, {{"_PARENT", "78"}})).token != e.token);
}

TEST_CASE("order and ambiguity") {
  CHECK(detect_environment(with(kSlurm, kTorchrun)).source == "torchrun");
  // srun --mpi sets PMI_* too, and then both agree: Slurm, which knows the hosts.
  CHECK(detect_environment(with(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}})).source == "Slurm");
  // mpirun inside an allocation starts its helpers with srun, one task a node: the inner launcher is the
  // right one.
  CHECK(detect_environment(with(kSlurm, kOpenMpi)).source == "Open MPI");
  CHECK(detect_environment(with(kSlurm, kOpenMpi)).rank == 3);
  // An incomplete set of variables is ignored.
  CHECK(detect_environment(without(kTorchrun, "WORLD_SIZE")).kind == Kind::single);
  CHECK(detect_environment(with(kSlurm, {{"RANK", "1"}})).source == "Slurm");
}

TEST_CASE("sizes of zero are refused by name, not divided by") {
  CHECK_THROWS_WITH(detect_environment(with(kTorchrun, {{"WORLD_SIZE", "0"}})),
                    Contains("WORLD_SIZE=\"0\": must be a whole number from 1"));
  CHECK_THROWS_WITH(detect_environment(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "0"}})),
                    Contains("LOCAL_WORLD_SIZE=\"0\": must be a whole number from 1"));
}

namespace {

struct Described {
  const char* name;
  Variables variables;
  std::vector<std::string> numbers;  ///< the variables that hold one
};

std::vector<Described> every_environment() {
  const Variables pod{{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "23456"}};
  const Variables pet{{"PET_NNODES", "2"},
                      {"PET_NODE_RANK", "1"},
                      {"PET_NPROC_PER_NODE", "4"},
                      {"PET_MASTER_ADDR", "t"},
                      {"PET_MASTER_PORT", "29500"}};
  const Variables mpich{{"PMI_RANK", "1"},        {"PMI_SIZE", "2"},    {"MPI_LOCALRANKID", "1"},
                        {"MPI_LOCALNRANKS", "2"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "29500"}};
  return {{"ltrain",
           with(kLtrain, {{"LTRAIN_NODE", "0"}}),
           {"LTRAIN_RANK", "LTRAIN_WORLD_SIZE", "LTRAIN_LOCAL_RANK", "LTRAIN_LOCAL_SIZE", "LTRAIN_NODE",
            "LTRAIN_ATTEMPT"}},
          {"torchrun",
           kTorchrun,
           {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
            "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"}},
          {"nodes", pod, {"RANK", "WORLD_SIZE", "MASTER_PORT"}},
          {"PET", pet, {"PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_PORT"}},
          {"PET of a Kubernetes job",
           with(without(pet, "PET_NODE_RANK"), {{"JOB_COMPLETION_INDEX", "1"}}),
           {"JOB_COMPLETION_INDEX"}},
          {"Slurm",
           with(kSlurm, {{"SLURM_RESTART_COUNT", "0"}}),
           {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_RESTART_COUNT"}},
          {"Slurm without a step's tasks", without(kSlurm, "SLURM_STEP_NUM_TASKS"), {"SLURM_NTASKS"}},
          {"Slurm outside of a step",
           {{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NUM_NODES", "1"}, {"SLURM_NNODES", "1"}},
           {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}},
          {"Open MPI",
           kOpenMpi,
           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE"}},
          {"MPICH", mpich, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MASTER_PORT"}}};
}

/// Guarantees that every caller relies on.
void check_sane(const LaunchEnvironment& e) {
  CHECK((e.world_size >= 1 && e.world_size <= kMaxRanks && e.rank >= 0 && e.rank < e.world_size));
  CHECK((e.local_size >= 1 && e.local_size <= e.world_size && e.local_rank >= 0 &&
         e.local_rank < e.local_size));
  CHECK((e.nodes >= 1 && e.node >= 0 && e.ranks_per_node >= 0 && e.attempt >= 0));
  for (int port : e.coordinator_ports) CHECK((port >= 1 && port <= 65535));
  if (e.kind != Kind::single) CHECK(!e.coordinator_ports.empty());
}

}  // namespace

TEST_CASE(
    "every numeric variable, with whatever may stand there: taken as a number in range, or refused by name") {
  for (const Described& d : every_environment()) {
    INFO(d.name);
    REQUIRE_NOTHROW(check_sane(detect_environment(d.variables)));
    for (const std::string& key : d.numbers) {
      // One that must be refused wherever a number stands.
      for (const char* bad : {"-1", "-9223372036854775809", "99999999999999999999", "2147483648", "x", "1x",
                              " 1", "1 ", "+1", "1.5", "1e3", "0x1", "\x1b[31m1", "1\n"}) {
        INFO(key << "=" << bad);
        try {
          detect_environment(with(d.variables, {{key, bad}}));
          FAIL_CHECK("it was believed");
        } catch (const Error& e) {
          const std::string text = e.what();
          CHECK(e.code() == ExitCode::usage);
          CHECK_THAT(text, Contains(key + "="));
          CHECK_THAT(text, Contains("must be"));
          CHECK(std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }));
        }
      }
      // Others are a number somewhere; what comes of them is sane, or a refusal that names a variable.
      for (const char* some : {"0", "", "1", "2", "7", "4096", "65535", "65536", "1048575", "1048576",
                               "1048577", "2147483647"}) {
        INFO(key << "=" << some);
        try {
          check_sane(detect_environment(with(d.variables, {{key, some}})));
        } catch (const Error& e) {
          CHECK(e.code() == ExitCode::usage);
          CHECK(std::string(e.what()).size() < 600);
        }
      }
      const std::string longest(100000, '9');
      CHECK_THROWS_WITH(detect_environment(with(d.variables, {{key, longest}})),
                        Contains("(100000 bytes)") && Contains(key));
    }
  }
}

TEST_CASE("how long ranks wait for each other") {
  CHECK(join_seconds({}, 120) == 120);
  CHECK(join_seconds({{"LTRAIN_JOIN_TIMEOUT", ""}}, 120) == 120);
  CHECK(join_seconds({{"LTRAIN_JOIN_TIMEOUT", "0.5"}}, 120) == 0.5);
  CHECK(join_seconds({{"LTRAIN_JOIN_TIMEOUT", "1e3"}}, 120) == 1000);
  for (const char* bad : {"0", "-1", "nan", "inf", "1e7", "x", "1x", " 1", "0x1"})
    CHECK_THROWS_WITH(join_seconds({{"LTRAIN_JOIN_TIMEOUT", bad}}, 120), Contains("LTRAIN_JOIN_TIMEOUT=\""));
}

TEST_CASE("host and port") {
  CHECK(split_host_port("n1:80", "X") == std::pair<std::string, int>("n1", 80));
  CHECK(split_host_port("n1", "X") == std::pair<std::string, int>("n1", 0));
  CHECK(split_host_port("[::1]:80", "X") == std::pair<std::string, int>("::1", 80));
  CHECK(split_host_port("fe80::1", "X") == std::pair<std::string, int>("fe80::1", 0));
  for (const char* bad : {"", ":80", "n1:0", "n1:65536", "n1:x", "[::1", "[::1]x"})
    CHECK_THROWS_AS(split_host_port(bad, "X"), Error);
}
