// What a machine does in a second: measured by `ltrain bench`, or a built-in guess. Prices a plan.
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

/// Attention of whole sequences, and of the blocks that context parallelism makes of them.
inline constexpr const char* kAttentionOps[] = {"attention_forward", "attention_backward",
                                                "attention_block_forward", "attention_block_backward"};

/// One op of one size, timed.
struct OpSample {
  double bytes = 0, flops = 0, seconds = 0;
  int64_t m = 0, n = 0, k = 0;  ///< matmul, attention
};

/// One collective of one size among `ranks` processes of this machine.
struct CollectiveSample {
  std::string op;
  int ranks = 2;
  double bytes = 0, seconds = 0;
  double cpu_seconds = 0;  ///< of a core, on each rank
};

/// Timings of a rank with `threads` threads while the other cores run ranks of their own.
struct RankProfile {
  int threads = 1;
  std::map<std::string, std::vector<OpSample>> ops;  ///< by "name/dtype"
  std::map<std::string, double> peak_flops;  ///< by dtype: the fastest matmul seen, operations a second
};

struct MachineProfile {
  std::string machine = "built-in guess";
  std::string source = "built in";  ///< the file it was read from
  int cores = 1;
  bool measured = false;
  bool built_in = false;     ///< of a card that was not measured here: published and assumed figures
  int64_t device_bytes = 0;  ///< memory of a card; 0: ranks run on the CPU
  std::string card;          ///< which of built_in_cards() it is; empty: none
  int cards_per_node = 0;    ///< in the machine that such cards are sold in; 0: not known
  int cores_per_node = 0;    ///< of the CPUs of that machine, or of a node of the cluster; 0: not known
  int nodes = 0;             ///< of a cluster; 0: not said
  std::string node_source = "assumed";  ///< who says how many cards a node has
  bool of_this_machine = false;         ///< of the CPU, or a card, that is here
  std::vector<RankProfile> ranks;       ///< by threads, ascending
  std::vector<CollectiveSample> collectives;
  /// What a card and its links can do, for what was not measured; null: not known.
  DeviceHandle device;
  std::vector<NetworkLevel> levels;  ///< the device's links, then the network; empty: as the figures below
  /// Between hosts, of one host, both ways at once. `ltrain bench` sees one host: an assumption unless the
  /// file has it.
  double network_bytes_per_second = 1.25e9, network_seconds = 30e-6;
  double adapter_bytes_per_second =
      0;  ///< of each rank's own network adapter; 0: a host's ranks share its network
  bool network_given = false;
  std::string network_source = "assumed: 10 Gbit/s Ethernet a node";
  /// Of a collective that has no samples: what a rank sends in a second, and what a call takes. Of a card
  /// that was measured alone: as its built-in profile.
  double link_bytes_per_second = 1.5e9, link_seconds = 20e-6;
  /// What is offloaded, one rank at a time: to and from files (`ltrain bench` writes and reads one), or
  /// between a card and its host.
  double offload_read_bytes_per_second = 1e9, offload_write_bytes_per_second = 1e9;
  bool offload_measured = false;
  /// What files give and take of what leaves a card; never more than the above. Not measured.
  static constexpr double kFileBytesPerSecond = 1e9;
  std::string transport;             ///< over which they were measured ("shm", "gloo"); empty: not said
  int64_t process_bytes = 48 << 20;  ///< resident memory of a rank before its arena
  /// What a plan assumes of routing: the rows of each rank's experts over those of even routing
  /// (DispatchOptions::skew). Not of the machine, but of what is priced.
  double expert_skew = 1;

  const RankProfile& for_threads(int threads) const;
  /// Ops are priced by the device's figures.
  bool priced_by_device() const {
    return device && device_bytes > 0 && ranks.size() == 1 && ranks[0].ops.empty();
  }
};

/// Prices ops by the samples nearest in size.
class ProfileCost final : public CostModel {
 public:
  /// An op of a rank with `threads` threads. `cores_full`: ranks times threads is at least the number of
  /// cores, so that collectives compete with compute. `ranks_on_host`: ranks that share a host's network and
  /// disk.
  ProfileCost(const MachineProfile& profile, int threads, bool cores_full, int ranks_on_host = 1,
              int world = 0)
      : profile_(profile),
        rank_(profile.for_threads(threads)),
        cores_full_(cores_full),
        ranks_on_host_(ranks_on_host),
        crowding_(std::max(1.0, static_cast<double>(ranks_on_host) * threads / profile.cores)) {
    if (profile.device && profile.device_bytes > 0 && !profile.levels.empty() && profile.collectives.empty())
      device_.emplace(*profile.device, levels_of(profile.levels, ranks_on_host, world));
  }
  double seconds(const OpCost& op) const override;
  double stolen_seconds(const OpCost& op) const override;
  /// DeviceCost::levels_met; 0 where no device prices.
  uint64_t levels_met(int a, int b) const { return device_ ? device_->levels_met(a, b) : 0; }
  /// Figures of the device that prices were made with.
  std::set<FigureUse> figures() const { return device_ ? device_->used() : std::set<FigureUse>(); }
  /// Ranks of each level for this job: a node's, those of a part of all.
  static std::vector<NetworkLevel> levels_of(std::vector<NetworkLevel> levels, int ranks_on_host, int world);

 private:
  double network_seconds(const OpCost& op) const;
  double collective_seconds(const OpCost& op, double CollectiveSample::*what) const;
  const MachineProfile& profile_;
  const RankProfile& rank_;
  bool cores_full_;
  int ranks_on_host_;
  std::optional<DeviceCost> device_;
  double crowding_;  ///< threads of the host's ranks over its cores: how much slower each is
};

MachineProfile builtin_profile(int cores);
/// By the figures of a card; its network is that of the machine that it is sold in.
MachineProfile profile_of_device(const DeviceHandle& device);
/// Prices what leaves a node by these levels.
void set_network(MachineProfile& profile, const std::vector<NetworkLevel>& network,
                 const std::string& source);
/// Of a card by its name ("h200", "NVIDIA H100 80GB HBM3"); no machine, `built_in` false, when none of that
/// name is built in.
MachineProfile card_profile(const std::string& card);
/// The cards that are built in.
std::vector<std::string> built_in_cards();
/// A file of `ltrain bench`, a profile file (docs/machines.md), or the name of a card that is built in, as
/// built_in_cards has it. Throws Error (usage) where it is none of them.
MachineProfile find_profile(const std::string& path_or_card);
/// Throws Error (usage) with the path when the file is not a profile.
MachineProfile load_profile(const std::string& path);
void save_profile(const MachineProfile& profile, const std::string& path);
/// LTRAIN_PROFILE, else ltrain/profile.json in the user's cache folder.
std::string default_profile_path();
/// Of a card that `ltrain bench` measured: beside it, named after the card.
std::string card_profile_path(const std::string& card);
/// For the CPU the default file when it is there, else the built-in guess, whose source says why where the
/// file must not be read. A file that is there and no profile is an error. For cuda that of the card that is
/// here, else its built-in profile; where none is, that of an H200.
MachineProfile default_profile(DeviceKind device = DeviceKind::cpu);

}  // namespace ltrain
