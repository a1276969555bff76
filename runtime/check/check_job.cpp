#include "runtime/check/check_job.h"
#include "runtime/machines/trainer_profile.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "kernels/tensor/device.h"
#include "parallel/comm/peer_listener.h"
#include "runtime/bench/links_file.h"
#include "runtime/check/check_offload.h"
#include "runtime/check/data_sources.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/checkpoint/files.h"
#include "runtime/distillation/top_logits.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/offload_choice.h"
#include "runtime/plan/rank_map.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/weights/frozen_model.h"

namespace ltrain {

int gpus_for(const Recipe& recipe) {
  return recipe.device == DeviceChoice::cpu ? 0 : device_count(DeviceKind::cuda);
}

JobSize job_size(const Recipe& r, const LaunchEnvironment& e, int gpus) {
  if (e.kind == LaunchEnvironment::Kind::rank) return {e.world_size, std::max(1, e.local_size)};
  const auto on_all_nodes = [&](int64_t local) {
    return JobSize{static_cast<int>(local * e.nodes), static_cast<int>(local)};
  };
  if (e.kind == LaunchEnvironment::Kind::node && e.ranks_per_node > 0) return on_all_nodes(e.ranks_per_node);
  if (r.launch.ranks_per_node > 0) return on_all_nodes(r.launch.ranks_per_node);
  const int64_t others = r.parallel.tensor * r.parallel.pipeline * r.parallel.context;
  const int64_t product = others * std::max<int64_t>(1, r.parallel.data);
  if (product > kMaxRanks)
    fail(ExitCode::usage, "{} ranks: the axes of the recipe make more than the {} that a job can have",
         product, kMaxRanks);
  if (r.parallel.data > 0) {
    const int64_t all = r.parallel.data * others;
    if (all % e.nodes != 0)
      fail(ExitCode::usage,
           "{} ranks of the recipe do not divide over {} nodes ({}); set launch.ranks_per_node or "
           "parallel.data: {}",
           all, e.nodes, e.source, std::max<int64_t>(1, r.parallel.data / e.nodes) * e.nodes);
    return on_all_nodes(all / e.nodes);
  }
  // One rank per GPU. If they do not form full groups, no GPU is silently left idle: validate() names the
  // possible numbers of ranks.
  if (gpus >= others && !r.debug.shared_gpu) return on_all_nodes(gpus);
  return on_all_nodes(others);
}

void check_host_ranks(const Recipe& r, const JobSize& size) {
  constexpr int64_t kPerRank = 3, kOfLauncher = 16;  // descriptors: two pipes and the process
  rlimit files{}, processes{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  ::getrlimit(RLIMIT_NPROC, &processes);
  int64_t pids = INT64_MAX;
  std::ifstream("/proc/sys/kernel/pid_max") >> pids;
  struct Limit {
    int64_t ranks;
    std::string why;
  };
  std::vector<Limit> limits{{pids, fmt::format("the system has {} process ids (kernel.pid_max)", pids)}};
  if (files.rlim_max != RLIM_INFINITY)
    limits.push_back({(static_cast<int64_t>(files.rlim_max) - kOfLauncher) / kPerRank,
                      fmt::format("a launcher opens {} files for each and may open {} (ulimit -n)", kPerRank,
                                  files.rlim_max)});
  if (processes.rlim_max != RLIM_INFINITY)
    limits.push_back({static_cast<int64_t>(processes.rlim_max),
                      fmt::format("this user may have {} processes (ulimit -u)", processes.rlim_max)});
  const Limit& least = *std::min_element(limits.begin(), limits.end(),
                                         [](const Limit& a, const Limit& b) { return a.ranks < b.ranks; });
  if (size.ranks_per_node <= std::max<int64_t>(least.ranks, 1)) return;
  const bool data = r.origins && r.origins->has("parallel.data");
  const std::string place = r.origins ? r.origins->place("parallel.data").text() + ": " : "";
  fail(ExitCode::usage,
       "{}{}{} ranks on one host: this one can start at most {}: {}. Set launch.ranks_per_node to the ranks "
       "of a node of the cluster that it is for, or use fewer ranks",
       place, data ? fmt::format("parallel.data = {}: ", r.parallel.data) : "", size.ranks_per_node,
       least.ranks, least.why);
}

MachineProfile profile_for(const PlanPrices& prices, DeviceKind device, int ranks_on_host) {
  MachineProfile p = prices.profile.empty() ? default_profile(device) : find_profile(prices.profile);
  if (!prices.trainer.empty()) {
    const TrainerProfile trainer = find_trainer(prices.trainer);
    price_as(p, trainer);
    for (MachineProfile& site : p.site_profiles) price_as(site, trainer);
  }
  if (!prices.links.empty()) price_by_links(p, read_links(prices.links), device, ranks_on_host);
  p.expert_skew = prices.expert_skew;
  return p;
}

void check_cluster_file(const std::string& file) {
  const bool there = path_exists(file);
  if (there && find_profile(file).nodes > 0) return;
  fail(ExitCode::usage,
       "cluster {}: is no cluster file (format: ltrain.cluster.v1){}; --profile takes profiles of cards",
       file, there ? "" : ": there is no such file");
}

namespace {

/// Ranks of a plan on a cluster; all of its cards if nothing gives a number.
void check_cluster(const MachineProfile& p, const Recipe& r, JobSize& size, int world) {
  const int64_t cards = int64_t{p.nodes} * p.cards_per_node;
  if (world == 0 && r.parallel.data <= 0)
    size = {static_cast<int>(cards), p.cards_per_node, assumed_node(p, static_cast<int>(cards), 0)};
  if (size.world > cards)
    fail(ExitCode::usage, "{} ranks: {}, has {} card{}; nearest valid value: {} rank{}", size.world, p.source,
         cards, cards == 1 ? "" : "s", cards, cards == 1 ? "" : "s");
  if (r.launch.ranks_per_node > p.cards_per_node)
    fail(ExitCode::usage, "launch.ranks_per_node = {}: {} has {} card{} a node; nearest valid value: {}",
         r.launch.ranks_per_node, p.source, p.cards_per_node, p.cards_per_node == 1 ? "" : "s",
         p.cards_per_node);
}

/// Refuses a site of DiLoCo on several sites of the cluster, which would sum gradients over the links between
/// them in every step.
void check_sites(const Recipe& r, const MachineProfile& p) {
  const int64_t sites = r.diloco.sites, nodes = ranks(r) / std::max<int64_t>(1, r.launch.ranks_on_host);
  if (sites <= 1) {
    if (!p.site_profiles.empty())
      fail(ExitCode::usage,
           "{} has site_profiles, and without diloco.sites all ranks make each step together; set "
           "diloco.sites, or "
           "give the cluster one profile",
           p.source);
    return;
  }
  if (sites % p.sites == 0) return;
  const auto fits = [&](int64_t n) { return n % p.sites == 0 && nodes % n == 0 && r.parallel.data % n == 0; };
  int64_t nearest = 0;
  for (int64_t n = p.sites; n <= nodes; n += p.sites)
    if (fits(n) && (nearest == 0 || std::abs(n - sites) < std::abs(nearest - sites))) nearest = n;
  fail(ExitCode::usage,
       "diloco.sites = {}: {}, has sites: {}, and a site of DiLoCo is within one of them; nearest valid "
       "value: {}",
       sites, p.source, p.sites, nearest > 0 ? std::to_string(nearest) : "none with these ranks");
}

}  // namespace

JobSize planned_size(const Recipe& r, const LaunchEnvironment& e, int gpus, int world,
                     const std::string& profile) {
  JobSize size;
  if (world == 0 && (e.kind != LaunchEnvironment::Kind::single || r.parallel.data <= 0)) {
    size = job_size(r, e, gpus);
  } else {
    if (world == 0) world = static_cast<int>(ranks(r));
    size = {world, ranks_per_node(r, world, e)};
  }
  const bool cuda = r.device == DeviceChoice::cuda;
  if (profile.empty() && !cuda) return size;  // all ranks are on this host
  const MachineProfile p = profile_for({profile}, cuda ? DeviceKind::cuda : DeviceKind::cpu);
  if (p.nodes > 0) check_cluster(p, r, size, world);
  const bool laid_out = r.launch.ranks_per_node > 0 || size.ranks_per_node != size.world;
  if (laid_out || (!cuda && p.nodes == 0)) return size;
  size.node = assumed_node(p, size.world, gpus);
  if (size.node.cards > 0) size.ranks_per_node = size.node.cards;
  return size;
}

CheckedJob check_job(const Recipe& given, const JobSize& size, const JobChecks& checks) {
  using Part = JobChecks::Part;
  CheckedJob job{.recipe = resolve(given, size.world, size.ranks_per_node), .profile = {}, .plan = {}};
  const Recipe& recipe = job.recipe;
  if (checks.data) check_data_given(recipe);
  read_frozen_model(job.recipe);
  resolve_sources(job.recipe, checks.part != Part::recipe);
  if (checks.part != Part::recipe) {
    check_device(recipe, checks.gpus_seen > 0 ? checks.gpus_seen : size.ranks_per_node);
    check_data(recipe);
    if (!has_pending_sources(recipe)) check_top_logits(recipe);
    for (std::string& note : data_notes(recipe)) job.recipe.notes.push_back(std::move(note));
    if (recipe.launch.interface && size.world > 1) check_interface(*recipe.launch.interface);
  }
  if (checks.part == Part::rank) return job;
  if (recipe.cluster) check_cluster_file(*recipe.cluster);
  job.profile = profile_for(checks.prices, device_of(recipe), size.ranks_per_node);
  check_skew(recipe, checks.prices.expert_skew);
  check_sites(recipe, job.profile);
  if (const auto choice = take_offload_choice(job.recipe, job.profile)) job.offload = choice->text;
  job.plan = make_plan(recipe, job.profile);
  job.plan.node = size.node;
  if (!fits(job.plan)) job.plan.enough = enough_settings(recipe, job.profile, job.plan);
  if (checks.part == Part::recipe) return job;
  if (checks.part == Part::job) {
    if (checks.memory) check_memory(job.plan);
    if (!has_pending_sources(recipe)) check_resume(recipe, job.plan);
  }
  check_offload(recipe, job.plan, size.ranks_per_node);
  return job;
}

}  // namespace ltrain
