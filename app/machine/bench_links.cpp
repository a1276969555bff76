#include "app/machine/bench_links.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/printable.h"
#include "kernels/tensor/device.h"
#include "runtime/bench/links_file.h"
#include "runtime/files/write_file.h"
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

/// Refuses a file that could not be written after the measurement.
void check_output(const std::string& output) {
  const std::filesystem::path parent = std::filesystem::path(output).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    fail(ExitCode::usage, "bench --links: --output {}: cannot write in folder {}: {}", printable(output),
         printable(folder), std::strerror(errno));
}

}  // namespace

void bench_links(DeviceKind device, const std::string& output, bool json) {
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
    if (job->info().rank == 0 && !output.empty()) check_output(output);
    take_device(device, job->info().local_rank);
    const std::vector<RankLocation> ranks = job->locations();
    const LinkOptions how{.device = device};
    // On the CPU, ranks of one host share memory unless the job has other hosts, too.
    const bool one_host = std::ranges::all_of(ranks, [&](const auto& r) { return r.host == ranks[0].host; });
    const auto rounds = link_rounds(ranks, how.most_rounds, one_host || device != DeviceKind::cpu);
    if (rounds.empty())
      fail(ExitCode::usage,
           "bench --links: has one rank, on host {}; start several, e.g. srun --ntasks-per-node=8",
           printable(ranks[0].host));
    const std::vector<RankLink> links = time_links(*job, rounds, how);
    const LinkReport report = judge_links(links, ranks);
    if (job->info().rank == 0) {
      const std::string text = links_file_json(links, report, ranks, device) + "\n";
      if (!output.empty()) replace_file(output, text);
      if (json)
        std::fputs(text.c_str(), stdout);
      else
        print_report(report, ranks);
      if (!output.empty() && !json) std::printf("written to %s\n", printable(output).c_str());
    }
    std::fflush(stdout);
  } catch (const std::exception& e) {
    job->fail(e);
  }
  job->finish();
}

}  // namespace ltrain::app
