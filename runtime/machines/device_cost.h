// Prices of ops and collectives from the figures of a card and its networks.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "kernels/meta/meta.h"
#include "runtime/machines/device_profile.h"

namespace ltrain {

/// Position of a group of ranks on the levels of links: the levels that a ring over the group passes.
struct GroupSpan {
  int size = 1;
  std::vector<int> inside;  ///< per level: the group's members in one domain, for the domain with most
  std::vector<int> steps;   ///< per level: ring steps from one rank to the next that pass this level
};
/// Span of a group. Rank r is in domain r / level.ranks of each level. With ranks of 0, it is in domain 0.
GroupSpan span_of(const std::vector<int>& ranks, const std::vector<NetworkLevel>& levels);

/// A figure used in a price.
struct FigureUse {
  std::string name;  ///< its key in the profile
  FigureSource source = FigureSource::assumed;
  std::string reference;
  bool operator<(const FigureUse& other) const { return name < other.name; }
};

class DeviceCost {
 public:
  DeviceCost(const DeviceProfile& device, std::vector<NetworkLevel> levels)
      : device_(device), levels_(std::move(levels)) {}

  /// Seconds of any op except collectives and offload.
  double op_seconds(const OpCost& op) const;
  double collective_seconds(const OpCost& op) const;
  /// Compute time that a concurrent collective takes away.
  double overlap_seconds(const OpCost& op) const;

  /// Figures used so far.
  const std::set<FigureUse>& used() const { return used_; }

  /// Seconds of matmuls of m x k and k x n, as many as give `flops`. `at_once`: in one launch, which fills
  /// the card's units with tiles of all; else in separate launches.
  double matmul_seconds(const std::string& type, double flops, int64_t m, int64_t n, int64_t k,
                        bool at_once = false) const;
  double attention_seconds(const OpCost& op) const;
  double memory_seconds(double bytes) const;
  const std::vector<NetworkLevel>& levels() const { return levels_; }
  /// One bit per level on which the two ranks are in one domain. Pairs with the same bits have the same
  /// price.
  uint64_t levels_met(int a, int b) const;

 private:
  double use(std::string_view name, const Figure& figure) const;
  double use(std::string_view name, const Curve& curve, double x) const;
  /// `type`, or the type of the units that multiply it: fp32 if the card has none of its own.
  std::string type_with_rate(const std::string& type) const;
  double under_load() const;
  double trainer_matmul() const;
  /// Returns whether one kernel runs all matmuls of a grouped op on this card.
  bool grouped_at_once(const OpCost& op) const;
  const GroupSpan& span(const OpCost& op) const;
  double level_rate(size_t level) const;  ///< rate of one rank's share of its link
  double ring_seconds(const OpCost& op, const GroupSpan& span) const;
  double exchange_seconds(const OpCost& op, const GroupSpan& span) const;
  const DeviceProfile& device_;
  std::vector<NetworkLevel> levels_;
  /// Spans of groups, which must outlive this object.
  mutable std::map<const std::vector<int>*, GroupSpan> spans_;
  mutable std::set<FigureUse> used_;
  mutable std::unordered_set<const void*> seen_;  ///< figures and curves in used_
};

}  // namespace ltrain
