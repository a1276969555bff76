#include "app/cluster/job_request.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "app/profile_option.h"
#include "base/error.h"
#include "runtime/check/check_job.h"
#include "runtime/files/write_file.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/telemetry/metrics.h"

namespace ltrain::app {
namespace {

/// The divisor of `n` nearest to `near`; of two, the smaller one.
int64_t nearest_divisor(int64_t n, int64_t near) {
  int64_t best = 1;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0 && std::abs(d - near) < std::abs(best - near)) best = d;
  return best;
}

/// Ranks per node if the options do not give them: the recipe's value, one per GPU, or as many as fill whole
/// nodes of the machine in which its cards are sold.
int preferred_ranks(JobRequest& o, const Recipe& recipe) {
  if (recipe.launch.ranks_per_node > 0) return static_cast<int>(recipe.launch.ranks_per_node);
  if (o.gpus_per_node > 0) return o.gpus_per_node;
  if (recipe.device != DeviceChoice::cuda || recipe.parallel.data <= 0 || o.nodes > 0 || o.ranks_per_node > 0)
    return 0;
  const int64_t world = ranks(recipe);
  const AssumedNode node =
      assumed_node(profile_for({o.profile}, DeviceKind::cuda), static_cast<int>(world), gpus_for(recipe));
  if (node.cards == 0) return 0;
  o.notes.push_back(
      fmt::format("A node: {} {}, {}; --ranks-per-node says otherwise.", node.cards, node.card, node.source));
  int64_t most = node.cards;
  while (world % most != 0) --most;
  return static_cast<int>(most);
}

/// "1 rank a node", "8 ranks a node".
std::string ranks_of_node(const JobRequest& o) {
  return fmt::format("{} rank{} a node", o.ranks_per_node, o.ranks_per_node == 1 ? "" : "s");
}

/// Threads per rank from the cores of the job's nodes, and the line that explains them. 0: a CPU job without
/// a profile.
std::pair<int, std::string> threads_of_node(const JobRequest& o, const Recipe& recipe) {
  const bool cuda = recipe.device == DeviceChoice::cuda;
  if (!cuda && o.profile.empty()) return {};
  const MachineProfile p = profile_for({o.profile}, cuda ? DeviceKind::cuda : DeviceKind::cpu);
  const int cores = cuda || p.cores_per_node > 0 ? p.cores_per_node : p.cores;
  if (cores > 0)
    return {std::max(1, cores / o.ranks_per_node),
            fmt::format("Threads a rank: the {} cores of a node, by {}, over {}.", cores, p.source,
                        ranks_of_node(o))};
  // A rank on a GPU has a thread that launches work, one that reads data, and those of its transports.
  constexpr int kOfGpu = 4;
  return {
      kOfGpu,
      fmt::format("Threads a rank: {}, for {} does not say how many cores a node has; cores_per_node in a "
                  "cluster file, or --threads-per-rank, says it.",
                  kOfGpu, p.source)};
}

/// Sets memory and its note: the largest rank of the plan for each rank of a node, and a tenth more.
void take_memory(const JobRequest& o, const Plan& plan, PlannedRequest& planned) {
  int64_t largest = 0;
  for (const RankPlan& r : plan.ranks) largest = std::max(largest, r.host_bytes);
  const double mib = static_cast<double>(largest) / 1048576.0;
  planned.node_mib = static_cast<int64_t>(std::ceil(mib * o.ranks_per_node * 1.1));
  planned.memory_note =
      fmt::format("Memory: {} of {:.1f} MiB, planned, and a tenth more.", ranks_of_node(o), mib);
}

/// Sets the time and its note: that of the plan, and a margin by how its profile was made.
void take_time(const JobRequest& o, const Plan& plan, PlannedRequest& planned) {
  const double seconds = plan.total_seconds();
  const bool measured = plan.profile_measured && !plan.profile_built_in;
  planned.seconds = std::max(600.0, seconds * (measured ? 1.25 : 1.5));
  const std::string by = plan.profile_built_in    ? "the profile " + plan.profile
                         : !plan.profile_measured ? "a guess (`ltrain bench` measures)"
                         : o.profile.empty()      ? "the profile of the machine that made this"
                                                  : "the profile " + o.profile;
  planned.time_note =
      fmt::format("Time: {} planned for {} steps, by {}; and {} more, at least 10 min.",
                  format_duration(seconds), plan.train_steps, by, measured ? "a quarter" : "half");
  if (plan.network_bytes() > 0 && !plan.network_given)
    planned.network_note =
        fmt::format("The network between the nodes is not in that profile; {}.", plan.network_source);
}

/// Plans the recipe on the nodes of the request, and takes threads and GPUs that were not given from it.
/// device: auto is the CPU here, because the caller has set cuda if GPUs are requested.
PlannedRequest take_from_plan(JobRequest& o, Recipe recipe) {
  if (recipe.device == DeviceChoice::automatic) recipe.device = DeviceChoice::cpu;
  if (recipe.device == DeviceChoice::cuda && o.gpus_per_node == 0) o.gpus_per_node = o.ranks_per_node;
  if (o.threads_per_rank > 0) recipe.launch.threads_per_rank = o.threads_per_rank;
  const int64_t own_threads = recipe.launch.threads_per_rank;
  if (o.threads_per_rank == 0 && own_threads == 0) {
    const auto [threads, note] = threads_of_node(o, recipe);
    if (threads > 0) {
      recipe.launch.threads_per_rank = threads;
      o.notes.push_back(note);
    }
  }
  JobChecks checks;
  checks.part = JobChecks::Part::recipe;
  checks.prices.profile = o.profile;
  Plan plan = check_job(recipe, {o.nodes * o.ranks_per_node, o.ranks_per_node}, checks).plan;
  plan.for_this_machine = false;  // the scheduler knows the memory of the nodes
  if (!o.force) check_memory(plan);
  if (o.threads_per_rank == 0) {
    o.threads_per_rank = plan.threads_per_rank;
    if (own_threads == 0 && recipe.launch.threads_per_rank == 0)
      o.notes.push_back(
          fmt::format("Threads a rank: the cores of the machine that made this, over {}; "
                      "--threads-per-rank, or --profile with a profile of the nodes, says otherwise.",
                      ranks_of_node(o)));
  }
  PlannedRequest planned;
  take_memory(o, plan, planned);
  take_time(o, plan, planned);
  return planned;
}

}  // namespace

void place_ranks(JobRequest& o, int64_t world, int preferred) {
  const bool nodes_given = o.nodes > 0, ranks_given = o.ranks_per_node > 0;
  if (world <= 0) {
    if (!nodes_given) o.nodes = 1;
    if (!ranks_given) o.ranks_per_node = std::max(1, preferred);
    return;
  }
  const auto set = [&](int64_t nodes, int64_t ranks) {
    o.nodes = static_cast<int>(nodes), o.ranks_per_node = static_cast<int>(ranks);
  };
  if (nodes_given && ranks_given) {
    const int64_t have = static_cast<int64_t>(o.nodes) * o.ranks_per_node;
    if (have == world) return;
    const int64_t ranks = nearest_divisor(world, o.ranks_per_node), nodes = nearest_divisor(world, o.nodes);
    fail(ExitCode::usage,
         "--nodes={} --ranks-per-node={}: {} ranks, but the axes of {} make {}; what would work: --nodes={} "
         "--ranks-per-node={}, --nodes={} --ranks-per-node={}, or a parallel.data of its own that makes {}",
         o.nodes, o.ranks_per_node, have, o.recipe, world, world / ranks, ranks, nodes, world / nodes, have);
  }
  if (nodes_given) {
    if (world % o.nodes != 0)
      fail(ExitCode::usage,
           "--nodes={}: must divide the {} ranks that the axes of {} make; the nearest that does is {}",
           o.nodes, world, o.recipe, nearest_divisor(world, o.nodes));
    return set(o.nodes, world / o.nodes);
  }
  if (ranks_given) {
    if (world % o.ranks_per_node != 0)
      fail(ExitCode::usage,
           "--ranks-per-node={}: must divide the {} ranks that the axes of {} make; the nearest that does is "
           "{}",
           o.ranks_per_node, world, o.recipe, nearest_divisor(world, o.ranks_per_node));
    return set(world / o.ranks_per_node, o.ranks_per_node);
  }
  const int64_t ranks = preferred > 0 && world % preferred == 0 ? preferred : world;
  set(world / ranks, ranks);
}

PlannedRequest complete_request(JobRequest& o, Recipe recipe) {
  if (recipe.device == DeviceChoice::automatic && o.gpus_per_node > 0) recipe.device = DeviceChoice::cuda;
  take_cluster(o.profile, o.cluster, recipe);
  if (!o.profile.empty()) fit_device(recipe, o.profile);
  place_ranks(o, recipe.parallel.data > 0 ? ranks(recipe) : 0, preferred_ranks(o, recipe));
  PlannedRequest planned = take_from_plan(o, recipe);
  // Each rank sees only its own cores and would divide them by the ranks of the node again.
  if (recipe.launch.threads_per_rank != o.threads_per_rank)
    o.overrides.push_back(fmt::format("launch.threads_per_rank={}", o.threads_per_rank));
  planned.output_dir = recipe.output_dir;
  return planned;
}

void add_request_options(CLI::App& command, JobRequest& o) {
  command.add_option("recipe", o.recipe, "The recipe")->required();
  command.add_option("overrides", o.overrides, "key=value, as for ltrain run");
  command.add_option("--nodes", o.nodes, "Nodes; default: 1, or as many as the recipe's axes need")
      ->check(CLI::Range(1, 100000));
  command
      .add_option("--ranks-per-node", o.ranks_per_node,
                  "Ranks (tasks) a node; default: as the recipe says, else one a GPU, else 1")
      ->check(CLI::Range(1, 1024));
  command
      .add_option(
          "--threads-per-rank", o.threads_per_rank,
          "CPU cores a rank; default: as the recipe says, else the cores of a node over its ranks, by the "
          "profile or cluster file; without one, for CPUs, this machine's")
      ->check(CLI::Range(1, 1024));
  command
      .add_option("--gpus-per-node", o.gpus_per_node,
                  "GPUs a node; default: one a rank with device: cuda, else none")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  command.add_option("--profile", o.profile, kProfileHelp);
  command.add_option("--cluster", o.cluster, kClusterHelp);
  command.add_flag("--force", o.force, "Write the script although a rank needs more memory than a card has");
  command.allow_extras();  // --section.key=value
}

std::string job_name_of(const std::string& recipe, const std::string& also) {
  std::string name = std::filesystem::path(recipe).stem().string();
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && also.find(c) == std::string::npos) c = '-';
  return name;
}

void write_script(const std::string& text, const std::string& output) {
  if (output.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return;
  }
  write_file(output, text);
}

}  // namespace ltrain::app
