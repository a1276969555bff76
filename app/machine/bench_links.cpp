#include "app/machine/bench_links.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/tensor/device.h"
#include "runtime/bench/links.h"
#include "runtime/launch/job.h"
#include "runtime/program/take_device.h"

namespace ltrain::app {
namespace {

constexpr size_t kMostPrinted = 20;  // slow links

std::string level_text(int level) {
  if (level == 0) return "on one host";
  if (level == 1) return "between hosts below one switch";
  return fmt::format("between hosts with {} levels of switches", level);
}

std::string rank_text(int rank, const std::vector<RankLocation>& ranks) {
  return fmt::format("rank {} on host {}", rank, ranks[static_cast<size_t>(rank)].host);
}

void print_report(const LinkReport& report, const std::vector<RankLocation>& ranks) {
  std::printf("%-42s %8s %12s %12s\n", "links, all busy, one way", "measured", "median GB/s", "lowest GB/s");
  for (const LinkClass& c : report.classes)
    std::printf("%-42s %8lld %12.3f %12.3f\n", level_text(c.level).c_str(), static_cast<long long>(c.links),
                c.median * 1e-9, c.lowest * 1e-9);
  if (report.slow.empty()) {
    std::printf("no link is below %.0f %% of its class's median\n", kSlowLink * 100);
    return;
  }
  std::printf("%zu links are below %.0f %% of their class's median:\n", report.slow.size(), kSlowLink * 100);
  for (size_t i = 0; i < std::min(report.slow.size(), kMostPrinted); ++i) {
    const RankLink& l = report.slow[i];
    std::printf("  %8.3f GB/s  %s - %s\n", l.bytes_per_second * 1e-9, rank_text(l.from, ranks).c_str(),
                rank_text(l.to, ranks).c_str());
  }
  if (report.slow.size() > kMostPrinted)
    std::printf("  and %zu more (--json has all)\n", report.slow.size() - kMostPrinted);
  for (const LinkReport::Rank& r : report.suspects)
    std::printf("%s: %lld of its %lld links are slow; look at its network card, cable and switch port\n",
                rank_text(r.rank, ranks).c_str(), static_cast<long long>(r.slow),
                static_cast<long long>(r.links));
}

void print_json(const std::vector<RankLink>& links, const LinkReport& report,
                const std::vector<RankLocation>& ranks) {
  nlohmann::ordered_json j{{"schema", "ltrain.links.v1"}};
  for (const RankLocation& r : ranks) j["ranks"].push_back({{"host", r.host}, {"switches", r.switches}});
  for (const LinkClass& c : report.classes)
    j["classes"].push_back({{"level", c.level},
                            {"links", c.links},
                            {"median_bytes_per_second", c.median},
                            {"lowest_bytes_per_second", c.lowest}});
  const auto list = [](const std::vector<RankLink>& all) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const RankLink& l : all)
      out.push_back({{"from", l.from}, {"to", l.to}, {"bytes_per_second", l.bytes_per_second}});
    return out;
  };
  j["links"] = list(links), j["slow"] = list(report.slow), j["suspects"] = nlohmann::ordered_json::array();
  for (const LinkReport::Rank& r : report.suspects)
    j["suspects"].push_back({{"rank", r.rank}, {"slow", r.slow}, {"links", r.links}});
  std::printf("%s\n", j.dump().c_str());
}

}  // namespace

void bench_links(DeviceKind device, bool json) {
  if (detect_environment(process_variables()).kind != LaunchEnvironment::Kind::rank)
    fail(ExitCode::usage,
         "bench --links measures between the ranks of a job, and this process is not one of several ranks; "
         "start it as srun, torchrun or mpirun start ltrain run, e.g. srun --ntasks-per-node=8 ltrain bench "
         "--links");
  JobOptions options;
  options.by_distance = true;
  auto job = Job::join(options);
  try {
    if (const std::string missing = missing_for(device); !missing.empty())
      fail(ExitCode::usage, "bench --links --device cuda: {}", missing);
    take_device(device, job->info().local_rank);
    const std::vector<RankLocation> ranks = job->locations();
    const LinkOptions how{.device = device};
    const auto rounds = link_rounds(ranks, how.most_rounds, device != DeviceKind::cpu);
    if (rounds.empty())
      fail(ExitCode::usage,
           "bench --links: has {} rank{}, on host {} alone: start ranks on several hosts, or several ranks "
           "with --device cuda",
           ranks.size(), ranks.size() == 1 ? "" : "s", ranks[0].host);
    const std::vector<RankLink> links = time_links(*job, rounds, how);
    const LinkReport report = judge_links(links, ranks);
    if (job->info().rank == 0 && json) print_json(links, report, ranks);
    if (job->info().rank == 0 && !json) print_report(report, ranks);
    std::fflush(stdout);
  } catch (const std::exception& e) {
    job->fail(e);
  }
  job->finish();
}

}  // namespace ltrain::app
