#include "runtime/plan/profile_import.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "kernels/base/error.h"
#include "kernels/base/printable.h"
#include "runtime/plan/machine_profile.h"
#include "runtime/plan/profile_file.h"

namespace ltrain {
namespace {

/// Of nccl-tests: ranks by host, the card, and bus bandwidth by size.
struct NcclTest {
  std::map<std::string, int> hosts;
  std::string card;
  int ranks = 0;
  std::vector<std::pair<double, double>> seconds;  ///< by bytes

  /// By bytes: what the program prints as busbw, without its two digits.
  std::vector<std::pair<double, double>> bus() const {
    std::vector<std::pair<double, double>> out;
    for (const auto& [bytes, s] : seconds) out.emplace_back(bytes, 2.0 * bytes * (ranks - 1) / ranks / s);
    return out;
  }
};

/// "#  Rank  0 Group  0 Pid 12 on node1 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3"
void read_rank(const std::string& line, int number, const std::string& file, NcclTest& test) {
  const size_t on = line.find(" on "), bracket = line.find("] ");
  if (on == std::string::npos || bracket == std::string::npos) return;
  std::istringstream words(line.substr(on + 4));
  std::string host;
  words >> host;
  ++test.hosts[host];
  ++test.ranks;
  std::string card = line.substr(bracket + 2);
  card.erase(card.find_last_not_of(" \t\r") + 1);
  if (!test.card.empty() && card != test.card)
    fail(ExitCode::usage, "{}:{}: ranks on {} and on {}: must be of one kind of card", printable(file),
         number, printable(test.card, 80), printable(card, 80));
  test.card = card;
}

/// size, count, type, redop, root, time in us, algbw and busbw in GB/s (out of place), ...
void read_row(const std::string& line, int number, const std::string& file, NcclTest& test) {
  std::istringstream words(line);
  double size = 0, count = 0, us = 0, alg = 0, bus = 0, again = 0;
  std::string type, redop, root, wrong;
  if (!(words >> size >> count >> type >> redop >> root >> us >> alg >> bus))
    fail(ExitCode::usage,
         "{}:{}: a line of nccl-tests must be size, count, type, redop, root, time, algbw, busbw, got {}",
         printable(file), number, printable(line, 80));
  // The shorter one of out of place and in place.
  if (words >> wrong >> again && again > 0) us = std::min(us, again);
  const bool sane = size >= 1 && size <= 1e15 && us > 0 && us <= 1e9 && bus >= 0 && bus <= 1e6;
  if (!sane)
    fail(ExitCode::usage, "{}:{}: size {}, time {} us, busbw {} GB/s: out of any machine's range",
         printable(file), number, size, us, bus);
  if (!test.seconds.empty() && size <= test.seconds.back().first)
    fail(ExitCode::usage, "{}:{}: size {} does not rise from row to row", printable(file), number, size);
  test.seconds.emplace_back(size, us * 1e-6);
}

std::string of_nccl_tests(const std::string& text, const std::string& file) {
  NcclTest test;
  std::istringstream lines(text);
  std::string line;
  bool sums = true;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find("Collective test starting:") != std::string::npos)
      sums = line.find("all_reduce") != std::string::npos;
    if (line.rfind("#", 0) == 0) {
      if (line.find(" Rank ") != std::string::npos) read_rank(line, number, file, test);
    } else if (line.find_first_not_of(" \t\r") != std::string::npos) {
      read_row(line, number, file, test);
    }
  }
  if (!sums) fail(ExitCode::usage, "{}: is not of all_reduce_perf, which is what is read", printable(file));
  if (test.ranks < 2)
    fail(ExitCode::usage, "{}: names {} ranks; nccl-tests lists each as \"#  Rank ...\"", printable(file),
         test.ranks);
  if (test.seconds.empty()) fail(ExitCode::usage, "{}: has no row of sizes and times", printable(file));
  const DeviceHandle known = device_of_driver(test.card);
  if (!known)
    fail(ExitCode::usage, "{}: no profile of the card \"{}\" is built in ({})", printable(file),
         printable(test.card, 80), fmt::join(built_in_cards(), ", "));
  const std::string reference = fmt::format("{}: all_reduce_perf of {} ranks on {} hosts", printable(file),
                                            test.ranks, test.hosts.size());
  const auto measured = [&](double value) { return Figure{value, FigureSource::measured, reference, true}; };
  const int hosts = static_cast<int>(test.hosts.size());
  if (hosts == 1) {  // the links of a node
    DeviceProfile d = *known;
    d.name += "-measured";
    if (d.links.empty())
      fail(ExitCode::usage, "{}: the profile {} has no links", printable(file), known->name);
    d.links[0].all_reduce = {test.bus(), FigureSource::measured, reference};
    return device_profile_yaml(d);
  }
  // Between nodes: what each rank's link carries, and a step of a tree.
  double best = 0;
  for (const auto& [bytes, rate] : test.bus()) best = std::max(best, rate);
  const int a_node = test.ranks / hosts;
  NetworkLevel level;
  level.name = "Network";
  level.bytes_per_second = measured(best / a_node);
  level.sustained = measured(1);
  level.seconds = measured(test.seconds.front().second / (2 * std::ceil(std::log2(test.ranks))));
  return cluster_yaml("measured", known->name, hosts, a_node, {level});
}

std::string of_bench(const std::string& file) {
  const MachineProfile p = load_profile(file);
  const DeviceHandle known = device_of_driver(p.machine);
  if (!known || p.ranks.empty())
    fail(ExitCode::usage,
         "{}: is of {}, and no card of that name is built in ({}); plans read the file as it is",
         printable(file), printable(p.machine, 80), fmt::join(built_in_cards(), ", "));
  DeviceProfile d = *known;
  d.name += "-measured";
  const std::string reference =
      fmt::format("{}: ltrain bench of {}", printable(file), printable(p.machine, 80));
  const auto best = [&](const std::string& op, bool flops) {
    double rate = 0;
    if (const auto it = p.ranks[0].ops.find(op); it != p.ranks[0].ops.end())
      for (const OpSample& s : it->second)
        if (s.seconds > 0) rate = std::max(rate, (flops ? s.flops : s.bytes) / s.seconds);
    return rate;
  };
  const auto set = [&](Figure& figure, double share) {
    if (share > 0) figure = {std::min(1.0, share), FigureSource::measured, reference, true};
  };
  const std::string type = d.matmul.peak.count("bf16") ? "bf16" : "f32";
  set(d.matmul.sustained, best("matmul_nt/" + type, true) / d.matmul.peak.at(type).value);
  set(d.memory_sustained, best("adamw/f32", false) / d.memory_bytes_per_second.value);
  d.memory_bytes = {static_cast<double>(p.device_bytes), FigureSource::measured, reference, true};
  return device_profile_yaml(d);
}

}  // namespace

std::string import_profile(const std::string& text, const std::string& file) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') return of_bench(file);
  if (text.find("nccl-tests") != std::string::npos || text.find("nThread") != std::string::npos)
    return of_nccl_tests(text, file);
  fail(ExitCode::usage, "{}: is neither output of nccl-tests (all_reduce_perf) nor a file of `ltrain bench`",
       printable(file));
}

}  // namespace ltrain
