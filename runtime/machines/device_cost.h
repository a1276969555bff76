// Prices ops and collectives by what a kind of card and its networks can do.
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

/// How a group of ranks lies on levels of links: what a ring over it passes.
struct GroupSpan {
  int size = 1;
  std::vector<int> inside;  ///< by level: members in one of its domains, those of the rank with most
  std::vector<int> steps;   ///< by level: steps of a ring from one rank to the next that pass it
};
/// Rank r is in domain r / level.ranks of each level; of one whose ranks are 0 in domain 0.
GroupSpan span_of(const std::vector<int>& ranks, const std::vector<NetworkLevel>& levels);

/// A figure that a price was made with.
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

  /// Of anything but collectives and offload.
  double op_seconds(const OpCost& op) const;
  double collective_seconds(const OpCost& op) const;
  /// What a collective takes from compute that runs beside it.
  double overlap_seconds(const OpCost& op) const;

  /// What it has been asked for so far.
  const std::set<FigureUse>& used() const { return used_; }

  /// Of products of m x k and k x n, as many as make the flops. `at_once`: in one launch, which fills the
  /// card's units with the tiles of all; else each by itself.
  double matmul_seconds(const std::string& type, double flops, int64_t m, int64_t n, int64_t k,
                        bool at_once = false) const;
  double attention_seconds(const OpCost& op) const;
  double memory_seconds(double bytes) const;
  const std::vector<NetworkLevel>& levels() const { return levels_; }
  /// A bit for each level of which two ranks are in one domain: pairs with the same bits are priced alike.
  uint64_t levels_met(int a, int b) const;

 private:
  double use(std::string_view name, const Figure& figure) const;
  double use(std::string_view name, const Curve& curve, double x) const;
  /// Itself, or the type whose units multiply it: fp32, where the card has none of its own.
  std::string type_with_rate(const std::string& type) const;
  double under_load() const;
  double trainer_matmul() const;
  /// Whether one kernel makes all products of a grouped op on this card.
  bool grouped_at_once(const OpCost& op) const;
  const GroupSpan& span(const OpCost& op) const;
  double level_rate(size_t level) const;  ///< of one rank's share of its link
  double ring_seconds(const OpCost& op, const GroupSpan& span) const;
  double exchange_seconds(const OpCost& op, const GroupSpan& span) const;
  const DeviceProfile& device_;
  std::vector<NetworkLevel> levels_;
  mutable std::map<const std::vector<int>*, GroupSpan> spans_;  ///< of groups, which outlive this
  mutable std::set<FigureUse> used_;
  mutable std::unordered_set<const void*> seen_;  ///< figures and curves that are in used_
};

}  // namespace ltrain
