#include "runtime/launch/environment/environment.h"

#include <unistd.h>

#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/launch/environment/hostlist.h"

extern char** environ;

namespace ltrain {
namespace {

constexpr double kMostJoinSeconds = 1e6;  // eleven days
constexpr size_t kShown = 200;            // bytes of a variable's value in a message

/// Range of an integer variable.
struct Range {
  int64_t least, most;
};
constexpr Range kRank{0, kMaxRanks - 1}, kSize{1, kMaxRanks}, kPort{1, 65535}, kCount{0, INT32_MAX};
constexpr Range kRanksOfNode{1, 4096};  // same as launch.ranks_per_node

/// Typed, checked access to the variables.
class Reader {
 public:
  explicit Reader(const Variables& v) : v_(v) {}

  bool has(const std::string& key) const { return v_.contains(key) && !v_.at(key).empty(); }
  bool has_all(std::initializer_list<const char*> keys) const {
    for (const char* k : keys)
      if (!has(k)) return false;
    return true;
  }
  std::string text(const std::string& key, const std::string& otherwise = "") const {
    return has(key) ? v_.at(key) : otherwise;
  }
  int number(const std::string& key, Range range) const {
    const std::string& s = v_.at(key);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
    if (error != std::errc() || end != s.data() + s.size() || value < range.least || value > range.most)
      fail(ExitCode::usage, "environment variable {}=\"{}\": must be a whole number from {} to {}", key,
           printable(s, kShown), range.least, range.most);
    return static_cast<int>(value);
  }
  int number(const std::string& key, Range range, int otherwise) const {
    return has(key) ? number(key, range) : otherwise;
  }

 private:
  const Variables& v_;
};

uint64_t hash_text(const std::string& s) {  // FNV-1a: only spreads ports and names jobs, not for secrets
  uint64_t h = 0xcbf29ce484222325ull;
  for (unsigned char c : s) h = (h ^ c) * 0x100000001b3ull;
  return h;
}

/// Eight ports that every rank of a job derives identically, so that busy ones can be skipped.
std::vector<int> derived_ports(const std::string& job) {
  std::vector<int> ports;
  uint64_t h = hash_text(job);
  for (int i = 0; i < 8; ++i) {
    h = h * 6364136223846793005ull + 1442695040888963407ull;
    ports.push_back(20000 + static_cast<int>((h >> 33) % 12000));
  }
  return ports;
}

/// The port given by the user or launcher, then derived ones in case it is in use.
std::vector<int> ports_after(int port, const std::string& job) {
  std::vector<int> ports{port};
  for (int p : derived_ports(job)) ports.push_back(p);
  return ports;
}

/// Names of the variables from which `e` was read, for messages.
struct Names {
  const char *rank, *world, *local_rank, *local_size;
};

void check_range(const LaunchEnvironment& e, const Names& n) {
  if (e.rank >= e.world_size)
    fail(ExitCode::usage, "{}={} with {}={} ({}): the rank must be below the number of ranks", n.rank, e.rank,
         n.world, e.world_size, e.source);
  if (e.local_rank >= e.local_size)
    fail(ExitCode::usage, "{}={} with {}={} ({}): the local rank must be below the number of local ranks",
         n.local_rank, e.local_rank, n.local_size, e.local_size, e.source);
  if (e.local_size > e.world_size)
    fail(ExitCode::usage, "{}={} with {}={} ({}): a node cannot have more ranks than the job", n.local_size,
         e.local_size, n.world, e.world_size, e.source);
}

std::optional<LaunchEnvironment> from_ltrain(const Reader& r) {
  if (!r.has("LTRAIN_RANK") && !r.has("LTRAIN_WORLD_SIZE")) return {};
  if (!r.has_all({"LTRAIN_RANK", "LTRAIN_WORLD_SIZE", "LTRAIN_COORDINATOR", "LTRAIN_TOKEN"}))
    fail(ExitCode::usage,
         "LTRAIN_RANK and LTRAIN_WORLD_SIZE also need LTRAIN_COORDINATOR (host:port) and LTRAIN_TOKEN; "
         "`ltrain run` sets them for the ranks that it starts");
  LaunchEnvironment e;
  e.kind = LaunchEnvironment::Kind::rank;
  e.source = "ltrain";
  e.rank = r.number("LTRAIN_RANK", kRank), e.world_size = r.number("LTRAIN_WORLD_SIZE", kSize);
  e.local_rank = r.number("LTRAIN_LOCAL_RANK", kRank, e.rank);
  e.local_size = r.number("LTRAIN_LOCAL_SIZE", kSize, e.world_size);
  e.node = r.number("LTRAIN_NODE", kRank, 0);
  e.attempt = r.number("LTRAIN_ATTEMPT", kCount, 0);
  e.token = r.text("LTRAIN_TOKEN");
  e.coordinator_is_launcher = r.text("LTRAIN_LAUNCHER") == "1";
  const auto [host, port] = split_host_port(r.text("LTRAIN_COORDINATOR"), "LTRAIN_COORDINATOR");
  e.coordinator_host = host;
  e.coordinator_ports = port ? std::vector<int>{port} : derived_ports(e.token);
  check_range(e, {"LTRAIN_RANK", "LTRAIN_WORLD_SIZE", "LTRAIN_LOCAL_RANK", "LTRAIN_LOCAL_SIZE"});
  return e;
}

/// Token from words that all ranks of the job read identically. It keeps out other jobs and users, but not
/// somebody who knows the words. LTRAIN_TOKEN does.
std::string derived_token(const Reader& r, const std::string& job) {
  return fmt::format("{} user {}", job, r.text("_USER"));
}

std::string torch_job(const Reader& r) {
  return derived_token(r,
                       fmt::format("torch {} {} {} {}", r.text("TORCHELASTIC_RUN_ID"), r.text("MASTER_ADDR"),
                                   r.text("MASTER_PORT"), r.text("TORCHELASTIC_RESTART_COUNT")));
}

std::optional<LaunchEnvironment> from_torchrun(const Reader& r) {
  if (!r.has_all({"RANK", "WORLD_SIZE", "LOCAL_RANK"})) return {};
  if (!r.has("MASTER_ADDR"))
    fail(
        ExitCode::usage,
        "RANK, WORLD_SIZE and LOCAL_RANK are set but MASTER_ADDR is not: ranks need to know where rank 0 is");
  LaunchEnvironment e;
  e.kind = LaunchEnvironment::Kind::rank;
  e.source = r.has("TORCHELASTIC_RUN_ID") ? "torchrun" : "RANK/WORLD_SIZE";
  e.rank = r.number("RANK", kRank), e.world_size = r.number("WORLD_SIZE", kSize);
  e.local_rank = r.number("LOCAL_RANK", kRank);
  e.local_size = r.number("LOCAL_WORLD_SIZE", kSize, std::min(e.world_size, e.local_rank + 1));
  e.node = r.number("GROUP_RANK", kRank, e.rank / e.local_size);
  e.attempt = r.number("TORCHELASTIC_RESTART_COUNT", kCount, 0);
  e.coordinator_host = r.text("MASTER_ADDR");
  e.token = torch_job(r);
  const int port = r.number("MASTER_PORT", kPort, 29500);
  // torchrun's own agent usually listens on MASTER_PORT.
  e.coordinator_ports =
      r.text("TORCHELASTIC_USE_AGENT_STORE") == "True" ? derived_ports(e.token) : ports_after(port, e.token);
  check_range(e, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  return e;
}

std::optional<LaunchEnvironment> from_nodes(const Reader& r) {
  LaunchEnvironment e;
  std::string rank_key, nodes_key;
  if (r.has_all({"RANK", "WORLD_SIZE", "MASTER_ADDR"})) {
    e.source = "RANK/WORLD_SIZE of nodes";
    e.note = "RANK and WORLD_SIZE without LOCAL_RANK are taken as the number of this node and of all nodes";
    rank_key = "RANK", nodes_key = "WORLD_SIZE";
    e.coordinator_host = r.text("MASTER_ADDR");
    e.coordinator_ports = {r.number("MASTER_PORT", kPort, 29500)};
  } else if (r.has_all({"PET_NNODES", "PET_MASTER_ADDR"})) {
    e.source = "PET_*";
    if (r.text("PET_NNODES").find(':') != std::string::npos)
      fail(ExitCode::usage, "PET_NNODES=\"{}\": an elastic number of nodes is not supported; give one number",
           printable(r.text("PET_NNODES"), kShown));
    rank_key = r.has("PET_NODE_RANK") ? "PET_NODE_RANK" : "JOB_COMPLETION_INDEX", nodes_key = "PET_NNODES";
    if (!r.has(rank_key))
      fail(ExitCode::usage, "PET_NNODES is set but neither PET_NODE_RANK nor JOB_COMPLETION_INDEX");
    const std::string per_node = r.text("PET_NPROC_PER_NODE", "auto");
    if (per_node != "auto" && per_node != "gpu" && per_node != "cpu")
      e.ranks_per_node = r.number("PET_NPROC_PER_NODE", kRanksOfNode);
    e.coordinator_host = r.text("PET_MASTER_ADDR");
    e.coordinator_ports = {r.number("PET_MASTER_PORT", kPort, 29500)};
  } else {
    return {};
  }
  e.node = r.number(rank_key, kRank), e.nodes = r.number(nodes_key, kSize);
  if (e.node >= e.nodes)
    fail(ExitCode::usage, "{}={} with {}={}: the node's number must be below the number of nodes", rank_key,
         e.node, nodes_key, e.nodes);
  e.kind = e.nodes > 1 ? LaunchEnvironment::Kind::node : LaunchEnvironment::Kind::single;
  e.token =
      derived_token(r, fmt::format("nodes {} {} {}", e.coordinator_host, e.coordinator_ports[0], e.nodes));
  return e;
}

std::optional<LaunchEnvironment> from_slurm(const Reader& r) {
  if (!r.has("SLURM_JOB_ID")) return {};
  LaunchEnvironment e;
  e.source = "Slurm";
  e.attempt = r.number("SLURM_RESTART_COUNT", kCount, 0);
  const bool step = r.has_all({"SLURM_PROCID", "SLURM_STEP_NODELIST"}) &&
                    (r.has("SLURM_STEP_NUM_TASKS") || r.has("SLURM_NTASKS"));
  if (!step) {
    // The batch script, or a shell of salloc: SLURM_PROCID is 0 or unset, and there is no step.
    if (r.number("SLURM_JOB_NUM_NODES", kSize, r.number("SLURM_NNODES", kSize, 1)) > 1)
      fail(ExitCode::usage,
           "Slurm job {} has {} nodes, but this is not a step of it: start with `srun ltrain run ...` (see "
           "`ltrain slurm`)",
           printable(r.text("SLURM_JOB_ID"), kShown), r.text("SLURM_JOB_NUM_NODES", r.text("SLURM_NNODES")));
    e.note = "inside a Slurm job but outside a step: ranks are started on this node only";
    return e;
  }
  const char* const world_key = r.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  e.rank = r.number("SLURM_PROCID", kRank), e.world_size = r.number(world_key, kSize);
  e.node = r.number("SLURM_NODEID", kRank, 0);
  e.local_rank = r.number("SLURM_LOCALID", kRank, 0);
  const auto hosts = parse_hostlist(r.text("SLURM_STEP_NODELIST"), "SLURM_STEP_NODELIST");
  e.nodes = static_cast<int>(hosts.size());
  e.local_size = e.nodes == 1 ? e.world_size : e.local_rank + 1;
  const char* const tasks_key =
      r.has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  if (r.has(tasks_key)) {
    const auto tasks = parse_tasks_per_node(r.text(tasks_key), tasks_key);
    if (e.node < static_cast<int>(tasks.size())) e.local_size = tasks[static_cast<size_t>(e.node)];
  }
  check_range(e, {"SLURM_PROCID", world_key, "SLURM_LOCALID", tasks_key});
  if (e.world_size == 1) {
    e.note = "a Slurm step of one task: this process starts the ranks of its node";
    return e;
  }
  e.kind = LaunchEnvironment::Kind::rank;
  e.coordinator_host = e.nodes == 1 ? "127.0.0.1" : hosts[0];
  e.token =
      derived_token(r, fmt::format("slurm {} {} {} {}", r.text("SLURM_CLUSTER_NAME"), r.text("SLURM_JOB_ID"),
                                   r.text("SLURM_STEP_ID", r.text("SLURM_STEPID")), e.attempt));
  e.coordinator_ports = derived_ports(e.token);
  return e;
}

/// Open MPI, MPICH and Intel MPI give the rank of this process but not the location of rank 0.
std::optional<LaunchEnvironment> from_mpi(const Reader& r) {
  LaunchEnvironment e;
  std::string job;
  Names names{};
  if (r.has_all({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})) {
    e.source = "Open MPI";
    names = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE"};
    job = r.text("PMIX_NAMESPACE", r.text("OMPI_MCA_ess_base_jobid", r.text("_PARENT")));
  } else if (r.has_all({"PMI_RANK", "PMI_SIZE"})) {
    e.source = "MPICH";
    names = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
    job = r.text("_PARENT");
  } else {
    return {};
  }
  e.rank = r.number(names.rank, kRank), e.world_size = r.number(names.world, kSize);
  e.local_rank = r.number(names.local_rank, kRank, e.rank);
  e.local_size = r.number(names.local_size, kSize, e.world_size);
  check_range(e, names);
  if (e.world_size == 1) return e;
  e.kind = LaunchEnvironment::Kind::rank;
  e.node = e.rank / e.local_size;
  if (r.has("MASTER_ADDR")) {
    e.coordinator_host = r.text("MASTER_ADDR");
    const int port = r.number("MASTER_PORT", kPort, 29500);
    e.token = derived_token(r, fmt::format("{} {} {}", e.source, e.coordinator_host, port));
    e.coordinator_ports = ports_after(port, e.token);
  } else if (r.has("LTRAIN_COORDINATOR")) {
    e.token = derived_token(
        r, fmt::format("{} {}", e.source, r.text("LTRAIN_COORDINATOR")));  // host and port below
  } else if (e.local_size == e.world_size) {
    e.coordinator_host = "127.0.0.1";
    e.token = derived_token(r, fmt::format("{} {}", e.source, job));
    e.coordinator_ports = derived_ports(e.token);
  } else {
    fail(ExitCode::usage,
         "{} started ranks on several nodes but does not say where rank 0 is: pass its host to all ranks, "
         "e.g. mpirun -x MASTER_ADDR=<first host> -x MASTER_PORT=29500",
         e.source);
  }
  return e;
}

LaunchEnvironment choose(const Reader& r) {
  if (auto e = from_ltrain(r)) return *e;
  if (auto e = from_torchrun(r)) return *e;
  if (auto e = from_nodes(r)) return *e;
  const bool mpi = r.has("OMPI_COMM_WORLD_RANK") || r.has("PMI_RANK");
  if (mpi) {
    // srun sets PMI_RANK too, and then both sets agree. mpirun starts its helpers with srun, one task per
    // node.
    const std::string rank = r.has("OMPI_COMM_WORLD_RANK") ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK";
    const std::string size = r.has("OMPI_COMM_WORLD_RANK") ? "OMPI_COMM_WORLD_SIZE" : "PMI_SIZE";
    const bool agree = r.has_all({"SLURM_PROCID", "SLURM_STEP_NODELIST"}) &&
                       r.text("SLURM_PROCID") == r.text(rank) &&
                       r.text("SLURM_STEP_NUM_TASKS", r.text("SLURM_NTASKS")) == r.text(size);
    if (!agree)
      if (auto e = from_mpi(r)) return *e;
  }
  if (auto e = from_slurm(r)) return *e;
  return {};
}

}  // namespace

LaunchEnvironment detect_environment(const Variables& variables) {
  const Reader r(variables);
  LaunchEnvironment e = choose(r);
  if (e.source == "ltrain" || e.kind == LaunchEnvironment::Kind::single) return e;
  // User settings override derived ones.
  if (r.has("LTRAIN_COORDINATOR")) {
    const auto [host, port] = split_host_port(r.text("LTRAIN_COORDINATOR"), "LTRAIN_COORDINATOR");
    e.coordinator_host = host;
    if (port)
      e.coordinator_ports = {port};
    else if (e.coordinator_ports.empty())
      e.coordinator_ports = derived_ports(e.token);
  }
  if (r.has("LTRAIN_TOKEN")) e.token = r.text("LTRAIN_TOKEN");
  return e;
}

Variables process_variables() {
  Variables v;
  for (char** p = environ; p && *p; ++p) {
    const std::string entry = *p;
    const size_t equals = entry.find('=');
    if (equals != std::string::npos) v[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  v["_PARENT"] = std::to_string(::getppid());
  v["_USER"] = std::to_string(::geteuid());
  return v;
}

double join_seconds(const Variables& variables, double otherwise) {
  const auto v = variables.find("LTRAIN_JOIN_TIMEOUT");
  if (v == variables.end() || v->second.empty()) return otherwise;
  const std::string& s = v->second;
  double value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc() || end != s.data() + s.size() || !(value > 0 && value <= kMostJoinSeconds))
    fail(ExitCode::usage,
         "environment variable LTRAIN_JOIN_TIMEOUT=\"{}\": must be a number of seconds above 0, at most {:g}",
         printable(s, kShown), kMostJoinSeconds);
  return value;
}

std::pair<std::string, int> split_host_port(const std::string& text, const std::string& what) {
  std::string host = text, port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string::npos)
      fail(ExitCode::usage, "{}=\"{}\": [ without ]", what, printable(text, kShown));
    host = text.substr(1, end - 1);
    if (end + 1 < text.size() && text[end + 1] == ':')
      port = text.substr(end + 2);
    else if (end + 1 < text.size())
      fail(ExitCode::usage, "{}=\"{}\": must be [address]:port", what, printable(text, kShown));
  } else if (const size_t colon = text.rfind(':'); colon != std::string::npos && text.find(':') == colon) {
    host = text.substr(0, colon), port = text.substr(colon + 1);
  }
  int number = 0;
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (error != std::errc() || end != port.data() + port.size() || number < 1 || number > 65535)
      fail(ExitCode::usage, "{}=\"{}\": the port must be from 1 to 65535", what, printable(text, kShown));
  }
  if (host.empty()) fail(ExitCode::usage, "{}=\"{}\": must be host:port", what, printable(text, kShown));
  return {host, number};
}

}  // namespace ltrain
