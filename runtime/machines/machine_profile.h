// Machine profiles, which price a plan: rates of a machine, measured by `ltrain bench` or built in.
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/meta/meta.h"
#include "kernels/tensor/tensor.h"
#include "runtime/machines/builtin_profiles.h"
#include "runtime/machines/device_cost.h"

namespace ltrain {

/// Attention of full sequences, and of context parallelism's blocks.
inline constexpr const char* kAttentionOps[] = {"attention_forward", "attention_backward",
                                                "attention_block_forward", "attention_block_backward"};

/// Timing of one op of one size.
struct OpSample {
  double bytes = 0, flops = 0, seconds = 0;
  int64_t m = 0, n = 0, k = 0;  ///< for matmul and attention
};

/// Timing of one collective of one size among `ranks` processes of this machine.
struct CollectiveSample {
  std::string op;
  int ranks = 2;
  double bytes = 0, seconds = 0;
  double cpu_seconds = 0;  ///< core time on each rank
};

/// Timings of a rank with `threads` threads while other ranks use the other cores.
struct RankProfile {
  int threads = 1;
  std::map<std::string, std::vector<OpSample>> ops;  ///< key: "name/dtype"
  std::map<std::string, double> peak_flops;          ///< key: dtype; fastest matmul measured, FLOP/s
};

/// Rate of one level of links from `ltrain bench --links`, in place of a profile's.
struct MeasuredLevel {
  std::string name;                         ///< NetworkLevel::name, or a description
  double bytes_per_second = 0, lowest = 0;  ///< median and lowest
  int64_t links = 0, slow = 0;              ///< measured links, and those of them that LinkReport::slow has
};

struct MeasuredLinks {
  std::string file;                   ///< empty: none
  std::vector<MeasuredLevel> levels;  ///< innermost first
  std::string slowest;                ///< rate, ranks and hosts of the slowest slow link; empty: no slow link
};

/// MachineProfile::host_memory_source of a rate that `ltrain bench` measured.
inline constexpr const char* kMeasured = "measured";

struct MachineProfile {
  std::string machine = "built-in guess";
  std::string source = "built in";  ///< file it was read from
  int cores = 1;
  bool measured = false;
  /// Profile of a card that was not measured here, with published and assumed figures.
  bool built_in = false;
  int64_t device_bytes = 0;  ///< memory of a card; 0: ranks run on the CPU
  std::string card;          ///< name in built_in_cards(); empty: none
  int cards_per_node = 0;    ///< cards in the machine in which they are sold; 0: unknown
  int cores_per_node = 0;    ///< CPU cores of that machine, or of a node of the cluster; 0: unknown
  int nodes = 0;             ///< nodes of a cluster; 0: not given
  std::string node_source = "assumed";  ///< source of cards_per_node
  bool of_this_machine = false;         ///< profile of the CPU, or a card, of this machine
  std::vector<RankProfile> ranks;       ///< ascending by threads
  std::vector<CollectiveSample> collectives;
  /// Figures of a card and its links, for ops that were not measured; null: unknown.
  DeviceHandle device;
  std::vector<NetworkLevel> levels;  ///< the device's links, then the network; empty: use the figures below
  /// Network between hosts: rate of one host in each direction. `ltrain bench` sees one host, so these are
  /// assumptions unless the file has them.
  double network_bytes_per_second = 1.25e9, network_seconds = 30e-6;
  double adapter_bytes_per_second =
      0;  ///< rate of each rank's own network adapter; 0: the ranks of a host share its network
  bool network_given = false;
  MeasuredLinks links;  ///< replaced figures of `levels`, or of the network and the links below
  std::string network_source = "assumed: 10 Gbit/s Ethernet a node";
  /// For a collective without samples: send rate of a rank, and time of a call. For a card that was measured
  /// alone: from its built-in profile.
  double link_bytes_per_second = 1.5e9, link_seconds = 20e-6;
  /// Offload rates, one rank at a time: to and from files (measured by `ltrain bench`), or between a card and
  /// its host.
  double offload_read_bytes_per_second = 1e9, offload_write_bytes_per_second = 1e9;
  bool offload_measured = false;
  /// File rate for data offloaded from a card, also limited by the rates above. Not measured.
  static constexpr double kFileBytesPerSecond = 1e9;
  /// Rate at which a node's cores read and write its memory, which its ranks share, and the source of it.
  double host_memory_bytes_per_second = 100e9;
  std::string host_memory_source = "assumed";
  /// Speed of an fp32 matmul on the CPU that skips the zeros of a 2:4 sparse operand, over the dense one; 0:
  /// not measured, priced as dense.
  double sparse_matmul_speedup = 0;
  std::string transport;             ///< transport of the measurements ("shm", "gloo"); empty: unknown
  int64_t process_bytes = 48 << 20;  ///< resident memory of a rank without its arena
  /// Assumed imbalance of routing: rows of each rank's experts relative to even routing
  /// (DispatchOptions::skew). A property of the priced job, not of the machine.
  double expert_skew = 1;
  int sites = 1;  ///< equal parts of a cluster's nodes, which site_links join
  /// Profiles of the sites, with the networks of the cluster; empty: all have this one.
  std::vector<MachineProfile> site_profiles;

  /// Profile of a rank of `world`, which are laid out over the sites in order.
  const MachineProfile& at(int rank, int world) const {
    if (site_profiles.empty()) return *this;
    const auto site = static_cast<size_t>(int64_t{rank} * sites / world);
    return site_profiles[std::min(site, site_profiles.size() - 1)];
  }
  const RankProfile& for_threads(int threads) const;
  /// Returns whether ops are priced by the device's figures.
  bool priced_by_device() const {
    return device && device_bytes > 0 && ranks.size() == 1 && ranks[0].ops.empty();
  }
};

/// Range of sparse_matmul_speedup in files.
inline constexpr double kLeastSparseSpeedup = 0.1, kMostSparseSpeedup = 100;
/// Speed of a matmul that skips zeros over the dense one, by the share of nonzeros and the speed with half of
/// the values. The time is proportional to the share plus 1/8: the search for nonzeros, packing and storing
/// take as long as an eighth of the multiply-adds (docs/optimizers.md#sparse-matmuls).
inline double sparse_speedup(double with_half, double nonzeros) {
  constexpr double kOverhead = 0.125;
  return with_half * (0.5 + kOverhead) / (nonzeros + kOverhead);
}

/// Prices ops from the samples of similar size.
class ProfileCost final : public CostModel {
 public:
  /// Prices for a rank with `threads` threads. `cores_full`: ranks times threads is at least the number of
  /// cores, so collectives compete with compute. `ranks_on_host`: ranks that share a host's network and disk.
  /// `zeros`: weights have the zeros that matmuls may skip; false prices steps before and after such ones.
  ProfileCost(const MachineProfile& profile, int threads, bool cores_full, int ranks_on_host = 1,
              int world = 0, bool zeros = true)
      : profile_(profile),
        rank_(profile.for_threads(threads)),
        cores_full_(cores_full),
        ranks_on_host_(ranks_on_host),
        zeros_(zeros),
        crowding_(std::max(1.0, static_cast<double>(ranks_on_host) * threads / profile.cores)) {
    if (profile.device && profile.device_bytes > 0 && !profile.levels.empty() && profile.collectives.empty())
      device_.emplace(*profile.device, levels_of(profile.levels, ranks_on_host, world));
  }
  double seconds(const OpCost& op) const override;
  double stolen_seconds(const OpCost& op) const override;
  /// DeviceCost::levels_met; 0 without device prices.
  uint64_t levels_met(int a, int b) const { return device_ ? device_->levels_met(a, b) : 0; }
  /// Device figures used in prices.
  std::set<FigureUse> figures() const { return device_ ? device_->used() : std::set<FigureUse>(); }
  /// Levels with their number of ranks for this job: the ranks of a node, or of a part of all.
  static std::vector<NetworkLevel> levels_of(std::vector<NetworkLevel> levels, int ranks_on_host, int world);

 private:
  double network_seconds(const OpCost& op) const;
  /// Speed of the op over that of the sample without zeros.
  double speedup(const OpCost& op) const;
  double collective_seconds(const OpCost& op, double CollectiveSample::*what) const;
  const MachineProfile& profile_;
  const RankProfile& rank_;
  bool cores_full_;
  int ranks_on_host_;
  bool zeros_;
  std::optional<DeviceCost> device_;
  double crowding_;  ///< threads of the host's ranks per core, by which each is slowed down
};

MachineProfile builtin_profile(int cores);
/// Machine profile from the figures of a card. The network is that of the machine in which it is sold.
MachineProfile profile_of_device(const DeviceHandle& device);
/// Sets the levels of the network between nodes.
void set_network(MachineProfile& profile, const std::vector<NetworkLevel>& network,
                 const std::string& source);
/// Profile of a built-in card by its name ("h200", "NVIDIA H100 80GB HBM3"). With an unknown name, `built_in`
/// is false.
MachineProfile card_profile(const std::string& card);
/// Names of the built-in cards.
std::vector<std::string> built_in_cards();
/// Reads a file of `ltrain bench` or a profile file (docs/machines.md), or finds a card named in
/// built_in_cards. Throws Error (usage) for anything else.
MachineProfile find_profile(const std::string& path_or_card);
/// Throws Error (usage) with the path if the file is not a profile.
MachineProfile load_profile(const std::string& path);
void save_profile(const MachineProfile& profile, const std::string& path);
/// LTRAIN_PROFILE, else ltrain/profile.json in the user's cache folder.
std::string default_profile_path();
/// Profile path of a card measured by `ltrain bench`: next to the default path, named after the card.
std::string card_profile_path(const std::string& card);
/// For the CPU: the default file if it exists, else the built-in profile, whose source gives the reason if
/// the file is not readable. An invalid file is an error. For cuda: the file of the card in this machine,
/// else its built-in profile; without a card, that of an H200.
MachineProfile default_profile(DeviceKind device = DeviceKind::cpu);

}  // namespace ltrain
