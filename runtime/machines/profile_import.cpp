#include "runtime/machines/profile_import.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/machines/device_cost.h"
#include "runtime/machines/machine_profile.h"
#include "runtime/machines/profile_file.h"
#include "runtime/machines/traced_products.h"

namespace ltrain {
namespace {

/// Results of nccl-tests: ranks by host, the card, and bus bandwidth by size.
struct NcclTest {
  std::map<std::string, int> hosts;
  std::string card;
  int ranks = 0;
  std::vector<std::pair<double, double>> seconds;  ///< key: bytes

  /// Bus bandwidth by bytes: the program's busbw, without rounding to two digits.
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
  // Use the shorter time of out of place and in place.
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
  // Between nodes: rate of each rank's link, and time of a tree step.
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

/// All matmul calls of one shape and type.
struct ShapeTimes {
  TracedProduct product;  ///< `seconds` is the median of one call
  int64_t calls = 0;
  double planned = 0;  ///< seconds of one call
};

std::vector<ShapeTimes> by_shape(const std::vector<TracedProduct>& products) {
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t, int64_t>, std::vector<double>> times;
  for (const TracedProduct& p : products) times[{p.type, p.batch, p.m, p.n, p.k}].push_back(p.seconds);
  std::vector<ShapeTimes> out;
  for (auto& [shape, seconds] : times) {
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    ShapeTimes s;
    std::tie(s.product.type, s.product.batch, s.product.m, s.product.n, s.product.k) = shape;
    s.product.seconds = seconds[seconds.size() / 2];
    s.calls = static_cast<int64_t>(seconds.size());
    out.push_back(s);
  }
  return out;
}

/// Minimum of rows, columns and contraction for a large matmul. Smaller ones say little about a card's rate
/// of large matmuls, which is the figure in a profile.
constexpr int64_t kLargeProduct = 512;

bool is_large(const TracedProduct& p) { return std::min({p.m, p.n, p.k}) >= kLargeProduct; }

DeviceHandle card_of(const TracedProducts& traced, const std::string& file, const std::string& option) {
  const DeviceHandle known = option.empty() ? device_of_driver(traced.card) : find_builtin_device(option);
  if (known) return known;
  std::string what = "does not say of which card it is";
  if (!option.empty())
    what = fmt::format("no profile of the card {} is built in", printable(option, 80));
  else if (!traced.card.empty())
    what = fmt::format("no profile of the card \"{}\" is built in", printable(traced.card, 80));
  fail(ExitCode::usage, "{}: {}; --card must be one of {}", printable(file), what,
       fmt::join(built_in_cards(), ", "));
}

void check_types(TracedProducts& traced, const DeviceProfile& card, const std::string& file,
                 const std::string& option) {
  for (TracedProduct& p : traced.products) {
    if (p.type.empty()) p.type = option;
    if (!p.type.empty() && card.matmul.peak.count(p.type)) continue;
    std::vector<std::string> types;
    for (const auto& [type, peak] : card.matmul.peak) types.push_back(type);
    fail(ExitCode::usage, "{}: {}; --type must be one of {}, of which {} has rates", printable(file),
         p.type.empty() ? "does not say of which type the products are"
                        : fmt::format("products of type {}", printable(p.type, 40)),
         fmt::join(types, ", "), card.name);
  }
}

/// Rows for the shapes that take most of the time. `measured`: total seconds.
std::string table_of(const std::vector<ShapeTimes>& shapes, double measured) {
  constexpr size_t kRows = 20;
  std::string out = "  type  batch x rows x columns x contraction    calls   of time   measured    planned\n";
  for (size_t i = 0; i < std::min(kRows, shapes.size()); ++i) {
    const ShapeTimes& s = shapes[i];
    const TracedProduct& p = s.product;
    out += fmt::format(
        "{} {:<5} {:<39} {:>6}  {:>6.1f} %  {:>9.1f}  {:>9.1f} TFLOP/s\n", is_large(p) ? ' ' : '-', p.type,
        fmt::format("{} x {} x {} x {}", p.batch, p.m, p.n, p.k), s.calls,
        100 * s.calls * p.seconds / measured, p.flops() / p.seconds / 1e12, p.flops() / s.planned / 1e12);
  }
  if (shapes.size() > kRows) out += fmt::format("  ... {} shapes more\n", shapes.size() - kRows);
  out += fmt::format("  (with -: a size below {}, not in the rate)\n", kLargeProduct);
  return out;
}

/// Profile with the rate of large matmuls that reproduces their total time in the trace.
ImportedProfile of_traced(TracedProducts traced, const std::string& file, const ImportOptions& options) {
  if (traced.products.empty())
    fail(ExitCode::usage, "{}: has no matrix product with its sizes{}", printable(file),
         traced.without_shapes > 0
             ? fmt::format(", and {} without; record_shapes=True records them", traced.without_shapes)
             : "");
  const DeviceHandle known = card_of(traced, file, options.card);
  check_types(traced, *known, file, options.type);
  DeviceProfile d = *known;
  d.matmul.sustained.value = 1;
  const DeviceCost at_peak(d, {});
  std::vector<ShapeTimes> shapes = by_shape(traced.products);
  double all = 0, large = 0, fastest = 0;  // seconds
  int64_t calls = 0;
  for (ShapeTimes& s : shapes) {
    const TracedProduct& p = s.product;
    s.planned = at_peak.matmul_seconds(p.type, p.flops(), p.m, p.n, p.k, p.batch > 1);
    const double seconds = static_cast<double>(s.calls) * p.seconds;
    all += seconds;
    if (is_large(p)) large += seconds, fastest += static_cast<double>(s.calls) * s.planned, calls += s.calls;
    const double rate = p.flops() / p.seconds, peak = d.matmul.peak.at(p.type).value;
    if (rate > 1.05 * peak)
      fail(ExitCode::usage,
           "{}: a product of {} x {} x {} in {} at {:.1f} TFLOP/s, and the peak of {} is {:.1f}: is it "
           "another card (--card) or type (--type)?",
           printable(file), p.m, p.n, p.k, p.type, rate / 1e12, known->name, peak / 1e12);
  }
  if (calls == 0)
    fail(ExitCode::usage,
         "{}: none of its {} products has {} and more rows, columns and contraction, which the "
         "rate of large products is taken from",
         printable(file), traced.products.size(), kLargeProduct);
  const double sustained = std::clamp(fastest / large, 0.01, 1.0);
  std::vector<double> errors;
  for (ShapeTimes& s : shapes) {
    s.planned /= sustained;
    if (is_large(s.product)) errors.push_back(std::abs(s.planned / s.product.seconds - 1));
  }
  std::sort(shapes.begin(), shapes.end(), [](const ShapeTimes& a, const ShapeTimes& b) {
    return static_cast<double>(a.calls) * a.product.seconds >
           static_cast<double>(b.calls) * b.product.seconds;
  });
  std::nth_element(errors.begin(), errors.begin() + errors.size() / 2, errors.end());
  const std::string what = fmt::format(
      "{} large matrix products of {} shapes, {:.0f} % of the time of all {}; the median shape is "
      "planned within {:.0f} %",
      calls, errors.size(), 100 * large / all, traced.products.size(), 100 * errors[errors.size() / 2]);
  ImportedProfile out;
  out.report =
      table_of(shapes, all) +
      fmt::format("matmul.sustained = {:.3f} (built in: {:.3f}), by {}{}\n", sustained,
                  known->matmul.sustained.value, what,
                  traced.without_shapes > 0 ? fmt::format("; {} have no sizes", traced.without_shapes) : "");
  d.name += "-measured";
  d.matmul.sustained = {sustained, FigureSource::measured, fmt::format("{}: {}", printable(file), what),
                        true};
  out.yaml = device_profile_yaml(d);
  return out;
}

}  // namespace

ImportedProfile import_profile(const std::string& text, const std::string& file,
                               const ImportOptions& options) {
  if (text.rfind("\x1f\x8b", 0) == 0)
    fail(ExitCode::usage, "{}: is compressed; gunzip it first", printable(file));
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') {
    if (text.find("\"traceEvents\"") == std::string::npos) return {of_bench(file), ""};
    return of_traced(products_of_pytorch_trace(text, file), file, options);
  }
  if (is_nsight_report(text)) return of_traced(products_of_nsight(text, file), file, options);
  if (text.find("nccl-tests") != std::string::npos || text.find("nThread") != std::string::npos)
    return {of_nccl_tests(text, file), ""};
  fail(ExitCode::usage,
       "{}: is neither output of nccl-tests (all_reduce_perf), nor a file of `ltrain bench`, nor a trace of "
       "PyTorch, nor a report nvtx_kern_sum of Nsight Systems in CSV",
       printable(file));
}

}  // namespace ltrain
