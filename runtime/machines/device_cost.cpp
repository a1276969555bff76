#include "runtime/machines/device_cost.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "kernels/attention/attention.h"
#include "kernels/matmul/grouped/grouped_gemm.h"
#include "kernels/tensor/fp8.h"

namespace ltrain {
namespace {

/// Split-K: if there are fewer tiles than units, the contraction is split and several units sum the parts.
constexpr int kMostSplits = 16;
constexpr int64_t kLeastSplit = 512;

double tiles_of(int64_t rows, int64_t tile) {
  return std::ceil(static_cast<double>(rows) / static_cast<double>(tile));
}

}  // namespace

GroupSpan span_of(const std::vector<int>& ranks, const std::vector<NetworkLevel>& levels) {
  GroupSpan span;
  span.size = static_cast<int>(ranks.size());
  int domains = span.size;  // domains of the inner level; initially each rank is a domain
  for (const NetworkLevel& level : levels) {
    std::vector<int64_t> domain_of;
    for (int r : ranks) domain_of.push_back(level.ranks > 0 ? r / level.ranks : 0);
    if (!std::is_sorted(domain_of.begin(), domain_of.end())) std::sort(domain_of.begin(), domain_of.end());
    int most = 0, met = 0;
    for (size_t i = 0, begin = 0; i < domain_of.size(); ++i) {
      if (i > 0 && domain_of[i] != domain_of[i - 1]) begin = i;
      most = std::max(most, static_cast<int>(i - begin) + 1);
      met += begin == i;
    }
    span.inside.push_back(most);
    span.steps.push_back(domains - met);
    domains = met;
  }
  return span;
}

uint64_t DeviceCost::levels_met(int a, int b) const {
  LT_CHECK(levels_.size() < 63, "expected fewer than 63 levels of links, got {}", levels_.size());
  uint64_t bits = a == b ? 1 : 0;
  for (const NetworkLevel& level : levels_)
    bits = 2 * bits + (level.ranks <= 0 || a / level.ranks == b / level.ranks ? 1 : 0);
  return bits;
}

double DeviceCost::use(std::string_view name, const Figure& f) const {
  if (f.given && seen_.insert(&f).second) used_.insert({std::string(name), f.source, f.reference});
  return f.value;
}

double DeviceCost::use(std::string_view name, const Curve& c, double x) const {
  if (c.given() && seen_.insert(&c).second) used_.insert({std::string(name), c.source, c.reference});
  return c.at(x);
}

std::string DeviceCost::type_with_rate(const std::string& type) const {
  if (device_.matmul.peak.count(type)) return type;
  return device_.matmul.peak.count("f32") ? "f32" : device_.matmul.peak.begin()->first;
}

double DeviceCost::memory_seconds(double bytes) const {
  if (bytes <= 0) return 0;
  const double rate = use("memory.bytes_per_second", device_.memory_bytes_per_second) *
                      use("memory.sustained", device_.memory_sustained);
  return (bytes + use("memory.half_access_bytes", device_.half_access_bytes)) / rate;
}

double DeviceCost::matmul_seconds(const std::string& type, double flops, int64_t m, int64_t n, int64_t k,
                                  bool at_once) const {
  const std::string peak = type_with_rate(type);
  const MatmulRates& rates = device_.matmul;
  const double rate = use("matmul.peak." + peak, rates.peak.at(peak)) *
                      use("matmul.sustained", rates.sustained) * under_load() * trainer_matmul();
  if (!rates.units.given || m <= 0 || n <= 0 || k <= 0) return flops / rate;
  const double units = use("matmul.units", rates.units), fill = use("matmul.tile_fill", rates.tile_fill);
  const double whole = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const double together = at_once ? flops / whole : 1;
  double best = 0;
  for (const MatmulTile& tile : rates.tiles) {
    const double tiles = together * tiles_of(m, tile.rows) * tiles_of(n, tile.columns);
    const double products = 2.0 * static_cast<double>(tile.rows * tile.columns);
    for (int split = 1; split <= (at_once ? 1 : kMostSplits); split *= 2) {
      if (split > 1 && (tiles * split > units || k / split < kLeastSplit)) break;
      const double waves = std::ceil(tiles * split / units);
      const double seconds =
          waves * products * (static_cast<double>(k) / split + fill) / (rate * tile.share / units);
      if (best == 0 || seconds < best) best = seconds;
    }
  }
  return best * flops / (whole * together);  // several matmuls of these sizes
}

double DeviceCost::attention_seconds(const OpCost& op) const {
  const AttentionRates& rates = device_.attention;
  const std::string peak = type_with_rate(std::string(dtype_name(op.dtype)));
  const double peak_rate = use("matmul.peak." + peak, device_.matmul.peak.at(peak)) * under_load();
  const double head = static_cast<double>(op.k), tokens = std::max(1.0, static_cast<double>(op.n));
  const bool own = device_.trainer.empty();
  if (own && op.name == kDeterministicBackwardByCudnn && rates.deterministic_backward.given()) {
    const double share = use("attention.deterministic_backward", rates.deterministic_backward, head);
    const double half =
        use("attention.deterministic_backward_half_length", rates.deterministic_backward_half_length);
    return op.flops / (peak_rate * share) * (1 + half / tokens);
  }
  const double share = op.name.find("backward") == std::string_view::npos
                           ? use("attention.forward", rates.forward, head)
                           : use("attention.backward", rates.backward, head);
  const double half = use("attention.half_length", rates.half_length);
  // The rates are of kernels without the matmuls that ltrain's own recompute.
  const double flops = op.flops + (own ? op.recomputed_flops : 0);
  return flops / (peak_rate * share) * (1 + half / tokens);
}

bool DeviceCost::grouped_at_once(const OpCost& op) const {
  const bool gradient = op.name == "grouped_matmul_dw";
  GroupedGemmTraits traits;
  traits.type = op.dtype;
  traits.n = gradient ? op.m : op.n, traits.k = gradient ? op.n : op.k;
  const bool other = device_.compute_capability == 0;  // not NVIDIA's: treated like their newest
  return (other || device_.compute_capability >= 80) &&
         grouped_gemm_obstacle(GroupedGemm::mma, traits).empty();
}

double DeviceCost::op_seconds(const OpCost& op) const {
  if (op.flops <= 0 && op.bytes <= 0) return 0;
  const bool memory_bound = op.flops <= 0 || (op.cls != OpClass::matmul && op.cls != OpClass::attention);
  const double traffic =
      memory_bound && device_.trainer_traffic.given ? use("trainer.traffic", device_.trainer_traffic) : 1;
  double seconds = memory_seconds(op.bytes * traffic), launches = 1;
  std::string type(dtype_name(op.dtype));
  if (op.cls == OpClass::matmul && op.flops > 0) {
    if (op.name == "matmul_tf32") type = "tf32";
    // Matmuls with blockwise scales use a kernel that converts FP8 to fp16.
    if (is_fp8(op.dtype)) type = op.name.ends_with("_blocks") ? dtype_name(DType::f16) : "fp8";
    const bool grouped = op.name.starts_with("grouped_matmul"), at_once = grouped && grouped_at_once(op);
    if (grouped && !at_once && op.m > 0 && op.k > 0)
      launches = op.flops /
                 (2.0 * static_cast<double>(op.m) * static_cast<double>(op.n) * static_cast<double>(op.k));
    seconds = std::max(seconds, matmul_seconds(type, op.flops, op.m, op.n, op.k, at_once));
  } else if (op.cls == OpClass::attention && op.flops > 0) {
    seconds = std::max(seconds, attention_seconds(op));
  }
  return seconds + launches * use("launch_seconds", device_.launch_seconds);
}

double DeviceCost::trainer_matmul() const {
  return device_.trainer_matmul.given ? use("trainer.matmul", device_.trainer_matmul) : 1;
}

double DeviceCost::under_load() const { return use("under_load", device_.under_load); }

const GroupSpan& DeviceCost::span(const OpCost& op) const {
  const auto [it, fresh] = spans_.try_emplace(op.ranks);
  if (fresh) it->second = span_of(*op.ranks, levels_);
  return it->second;
}

double DeviceCost::level_rate(size_t i) const {
  const NetworkLevel& level = levels_[i];
  const double rate = use(level.name + ".bytes_per_second", level.bytes_per_second) *
                      use(level.name + ".sustained", level.sustained);
  int64_t sharing = level.ranks_a_link;
  if (sharing == 0) sharing = i > 0 ? levels_[i - 1].ranks : 1;
  return rate / static_cast<double>(std::max<int64_t>(1, sharing));
}

/// Ring time. Every byte that a rank sends crosses each level that the group spans. The ranks of a domain
/// send over their links at the same time, with one ring for each of them, as in NCCL.
double DeviceCost::ring_seconds(const OpCost& op, const GroupSpan& span) const {
  const bool all_reduce = op.collective == "all_reduce";
  const bool rooted = op.collective == "broadcast" || op.collective == "reduce";
  const double sent = rooted ? op.bytes : op.wire_bytes;
  double seconds = 0, ring = 0, tree = 0;
  for (size_t i = 0; i < levels_.size(); ++i) {
    if (span.steps[i] == 0) continue;
    const NetworkLevel& level = levels_[i];
    const double beside = i == 0 ? 1 : span.inside[i - 1];
    const bool whole = i == 0 && all_reduce && level.all_reduce.given() && span.inside[0] == span.size;
    const double step = use(level.name + ".seconds", level.seconds);
    if (whole)  // definition of the bus bandwidth; ltrain sends more for small sums
      return 2.0 * op.bytes * (span.size - 1) / span.size /
             use(level.name + ".all_reduce", level.all_reduce, op.bytes);
    seconds = std::max(seconds, sent / (level_rate(i) * beside));
    ring += span.steps[i] * step;
    const int domains = i == 0 ? span.inside[0] : span.steps[i] + 1;
    tree += std::ceil(std::log2(std::max(2, domains))) * step;
  }
  // A ring passes all other ranks in turn. A tree, which NCCL has for sums, takes as many steps as its depth.
  return seconds + (all_reduce ? 2 * std::min(ring, tree) : ring) +
         use("launch_seconds", device_.launch_seconds);
}

/// Time of exchanges between pairs of ranks, each over the level on which they meet, in both directions at
/// once.
double DeviceCost::exchange_seconds(const OpCost& op, const GroupSpan& span) const {
  double seconds = 0, latency = 0;
  int inside = 1;
  for (size_t i = 0; i < levels_.size(); ++i) {
    const int met = span.inside[i] - inside;
    inside = span.inside[i];
    if (met <= 0 || span.size <= 1) continue;
    const double bytes = std::max(op.wire_bytes, op.received_bytes);
    seconds = std::max(seconds, bytes * met / (span.size - 1) / level_rate(i));
    latency = use(levels_[i].name + ".seconds", levels_[i].seconds);
  }
  return seconds + latency + use("launch_seconds", device_.launch_seconds);
}

double DeviceCost::collective_seconds(const OpCost& op) const {
  if (op.group_size <= 1 || !op.ranks) return 0;
  const GroupSpan& group = span(op);
  const bool pairs = op.collective == "all_to_all" || op.collective == "send" || op.collective == "recv" ||
                     op.collective == "send_recv";
  return pairs ? exchange_seconds(op, group) : ring_seconds(op, group);
}

double DeviceCost::overlap_seconds(const OpCost& op) const {
  return use("overlap", device_.overlap) * collective_seconds(op);
}

}  // namespace ltrain
