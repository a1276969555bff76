// A plan: memory, communication and time of one step of a recipe, run on the meta device.
#pragma once
#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/machines/machine_profile.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {

/// All calls of one collective on one axis in a step.
struct CollectivePlan {
  std::string axis, op;
  std::string group;  ///< comm_axis of the group: "dp", "tp", "ep", ...
  int64_t calls = 0;
  int64_t bytes = 0;          ///< payload
  int64_t wire_bytes = 0;     ///< sent by this rank
  int64_t network_bytes = 0;  ///< part of wire_bytes sent to other hosts
  double seconds = 0;
};

struct OpPlan {
  std::string name;
  int64_t calls = 0;
  double flops = 0, bytes = 0, seconds = 0;
};

/// Memory of a rank outside its arena, with the source of the figure.
struct ExternalMemory {
  std::string name;
  int64_t bytes = 0;
  std::string source;
  DeviceKind where = DeviceKind::cpu;  ///< memory in which it is
};

/// Steps of a recipe with sparse matrices, and the prices of their matmuls.
struct SparsePrice {
  int64_t steps = 0;         ///< steps whose weights have zeros (SparsitySettings::sparse_steps)
  bool usual = true;         ///< most steps do, and RankPlan::step_seconds is of these
  bool skips_zeros = false;  ///< their matmuls skip zeros
  /// Speed of matmuls of such weights over dense ones; 0: unknown, priced as dense.
  double speedup = 0;
  double other_step_seconds = 0;  ///< a step of the other kind; 0: none, or the same price
};

struct RankPlan {
  int rank = 0;
  MemoryUse arena;  ///< peak over the train and eval steps
  /// MoE models: arena with even routing, and bytes sent between experts with the worst routing. 0: the same.
  int64_t even_arena_bytes = 0, worst_expert_bytes = 0;
  double row_budget = 0;      ///< model.moe.row_budget, if it limits the rows of a rank
  int64_t staging_bytes = 0;  ///< host memory for copies to the device; 0 on the CPU
  std::vector<ExternalMemory> outside;
  OffloadedBytes offloaded;                           ///< in files or host memory
  int64_t total_bytes = 0;                            ///< total of device memory
  int64_t host_bytes = 0;                             ///< total of host memory; on the CPU the same
  int64_t train_wire_bytes = 0, eval_wire_bytes = 0;  ///< a train step; an eval pass over all its batches
  std::vector<CollectivePlan> collectives;            ///< collectives of a train step
  std::set<FigureUse> figures;                        ///< figures of a card's profile used for times
  std::vector<OpPlan> ops;                            ///< ops of a train step, longest first
  bool skips_zeros = false;                           ///< matmuls of weights with zeros skip them
  /// Model FLOPs of a train step on this rank (OpCost::model_flops).
  double model_flops = 0;
  double step_seconds = 0;
  std::string frozen_model;   ///< "teacher" or "reference" that stays in memory; empty: none
  int64_t frozen_bytes = 0;   ///< its weights, part of `arena`
  double frozen_seconds = 0;  ///< its forward passes, part of step_seconds
  /// Time that compute waits for communication, by axis as in metrics ("dp", "tp", ...), longest first.
  std::vector<std::pair<std::string, double>> exposed;
  double exposed_comm_seconds() const;  ///< total of all axes
  double exposed_offload_seconds = 0;   ///< time that compute waits for offload
  /// offload.optimizer in a train step: bytes that leave the device and that come back, and time of the
  /// host's cores.
  double states_out_bytes = 0, states_in_bytes = 0, host_update_seconds = 0;
  double eval_seconds = 0;  ///< one evaluation
  /// A step of another kind (StepKinds).
  struct OtherStep {
    int64_t wire_bytes = 0;
    double seconds = 0;
    int passes = 0;  ///< passes over its micro-batches
  };
  std::vector<OtherStep> others;  ///< in the order of StepKinds::other_steps
  /// Bytes that a step of a kind (StepKinds::kind_of) sends.
  int64_t wire_bytes(size_t kind) const {
    return kind == 0 ? train_wire_bytes : others.at(kind - 1).wire_bytes;
  }
  OtherStep largest_other() const;  ///< the one with most bytes and time, each of any kind
  int64_t placement_ops = 0;        ///< ops and collectives with checked placements
  /// With a pipeline: times of each action in the rank's pass, one after the other without bubbles. The first
  /// action of a pair has the time of both.
  std::vector<ActionTime> actions;
};

/// Limit of a memory: of a card or of this host.
struct MemoryLimit {
  DeviceKind of = DeviceKind::cuda;  ///< cuda: a card's memory; cpu: this host's
  int ranks = 1;                     ///< ranks that share it
  int64_t rank_bytes = 0;            ///< bytes of the largest rank
  int64_t available_bytes = 0;
  int64_t needed_bytes() const { return ranks * rank_bytes; }
  bool fits() const { return needed_bytes() <= available_bytes; }
};

/// Assumed cards per node, if neither the recipe nor the environment assigns ranks to nodes.
struct AssumedNode {
  int cards = 0;     ///< 0: no assumption
  std::string card;  ///< "H100"
  std::string source = "assumed";
  /// "a node: 8 H100, assumed". A rank of a CPU counts as a card without a name.
  std::string text() const {
    return fmt::format("a node: {} {}, {}", cards, card.empty() ? "CPU ranks" : card, source);
  }
};

/// Step of a site of DiLoCo, where sites have shares or machines of their own.
struct SitePlan {
  int64_t micros = 0;  ///< micro-batches of each of its data ranks
  double seconds = 0;  ///< step time of its slowest rank, without a wait for other sites
};

/// Shares of the batch with which sites would take about as long as one another.
struct BetterShares {
  std::vector<int64_t> shares;  ///< diloco.shares; empty: there are none that are faster
  double step_seconds = 0;
};

struct Plan {
  std::string recipe_name;
  DeviceKind device = DeviceKind::cpu;
  int64_t device_bytes = 0;  ///< memory of a card; 0 on the CPU
  int world = 1;
  int threads_per_rank = 1;
  int ranks_on_host = 1;  ///< ranks that `run` would start here
  AssumedNode node;
  int64_t parameters = 0;
  /// Parameters in sparse matrices, and the step from which they are sparse.
  int64_t sparse_parameters = 0, sparse_from = 0;
  SparsePrice sparse;
  int64_t quantized_parameters = 0;  ///< parameters in quantized matrices
  int64_t tokens_per_step = 0, accumulation = 1;
  int64_t train_steps = 0;
  StepKinds kinds;
  int64_t evaluations = 0;  ///< passes over the held-out data until train_steps
  std::string profile;      ///< source of the profile
  bool profile_measured = false;
  bool profile_built_in = false;  ///< priced by a card's figures, not by samples of this machine
  double network_bytes_per_second =
      /// Network rate of a host with ranks_on_host ranks, which prices bytes between hosts.
      0;
  bool network_given = false;               ///< network rate from the profile; else it is assumed
  std::string network_source;               ///< "by the profile", "assumed: ..."
  MeasuredLinks links;                      ///< MachineProfile's
  double host_memory_bytes_per_second = 0;  ///< MachineProfile's, with its source
  std::string host_memory_source;
  double peak_flops = 0;  ///< peak of one rank for MFU: the profile's fastest matmul of the dtype
  std::string attention;  ///< attention kernels of a GPU; empty: on the CPU, or unknown
  std::string experts;    ///< kernels of expert matmuls; empty: a dense model
  std::string overlap;    ///< overlap that hides the collectives of layers, as text; empty: none
  std::optional<UpdateChoice> update;  ///< prices of offload.optimizer.update, where both values would work
  std::string recompute;               ///< choice of granularity: auto, as text; else empty
  /// MachineProfile::expert_skew; all values below include it, except model FLOPs.
  double expert_skew = 1;
  /// Weights, gradients and optimizer state on cards, per parameter; 0 if the plan fits.
  double state_bytes = 0;
  /// Step time of the slowest rank with even routing, if expert_skew is above 1.
  double even_step_seconds = 0;
  /// Schedule of a pipeline, also if chosen by `auto`; path of a schedule file; else empty.
  std::string schedule;
  int pipeline_chunks = 1;    ///< stages per pipeline rank
  double bubble_share = 0;    ///< Timing::bubble_share of a pipeline
  double action_seconds = 0;  ///< Timing::makespan of a pipeline
  int64_t placement_ops = 0;  ///< ops and collectives with checked placements
  std::vector<RankPlan>
      ranks;  ///< the distinct ones: the first of each stage of each kind of site, and the last
  std::vector<SitePlan> sites;  ///< steps of the sites; empty: sites are alike
  BetterShares better;
  double first_share = 1;  ///< share of the batch of the first rank's site, over the mean share
  int stages = 0;          ///< number of stages in `ranks`; 0: other ranks were requested
  int64_t host_bytes = 0;  ///< memory of this host, or the cgroup limit if lower
  /// Ranks would run on hosts like this one, so their memory is compared with this host's.
  bool for_this_machine = true;
  std::vector<std::string> smaller;  ///< settings that would need less memory
  std::vector<std::string> enough;   ///< enough_settings(), if requested

  double step_seconds() const;  ///< time of the slowest rank
  /// Model FLOPs of all ranks, relative to their matmul peaks over a step. Pipeline stages differ, ranks of a
  /// stage do not.
  double mfu() const;
  /// Returns whether peak_flops is a card's figure or was measured. Otherwise MFU would be relative to a
  /// guess, and is not shown.
  bool peak_known() const { return profile_measured || profile_built_in; }
  double model_flops() const;  ///< total of all ranks in a step
  /// Steps of the kind of which SparsePrice::other_step_seconds is.
  int64_t other_sparse_steps() const { return sparse.usual ? train_steps - sparse.steps : sparse.steps; }
  double total_seconds() const;   ///< all steps and evaluations of the slowest rank
  int64_t network_bytes() const;  ///< bytes that the first rank sends to other hosts in a step
  double tokens_per_second() const { return step_seconds() > 0 ? tokens_per_step / step_seconds() : 0; }
};

}  // namespace ltrain
