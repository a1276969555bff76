// A rank's step on the meta device, from which plans are made.
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/meta/meta_memory.h"
#include "runtime/plan/plan_types.h"
#include "runtime/program/action_repeats.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {

/// Program of a rank on the meta device.
struct MetaRank {
  ProfileCost cost;
  MetaTrace trace;
  GroupSet groups;
  std::unique_ptr<Stream> compute;
  MetaMemory memory, host;
  OffloadMemories offload;
  TrainProgram program;
  std::vector<HostBatch> batches;  ///< one for each micro-batch of a site with fewer than others; else empty

  MetaRank(const Recipe& recipe, const MachineProfile& profile, const PipelineLayout& layout,
           const Mesh& mesh, int threads, int ranks_on_host = 0)
      : MetaRank(program_options(recipe, layout), recipe, profile, mesh, threads, ranks_on_host) {}
  MetaRank(const ProgramOptions& options, const Recipe& recipe, const MachineProfile& profile,
           const Mesh& mesh, int threads, int ranks_on_host)
      : cost(profile.at(mesh.rank, mesh.world()), threads, mesh.world() * threads >= profile.cores,
             ranks_on_host, mesh.world(), options.optimizer.sparsity.mostly_sparse()),
        trace(&cost),
        groups(make_meta_groups(mesh, trace, group_options(options), ranks_on_host)),
        compute(make_meta_stream("compute", trace)),
        memory(trace),
        host(trace),
        offload(trace, device_of(recipe), offload_folders(recipe)),
        program(at_skew(options, profile.expert_skew),
                {*compute, memory, groups.groups(), device_of(recipe) == DeviceKind::cpu ? nullptr : &host,
                 offload.places()}) {
    trace.clear_entries();
    trace.set_compute(compute.get());
    const int64_t micros = micro_batches_of_site(recipe, mesh.site());
    if (micros < options.accumulation) batches.resize(static_cast<size_t>(micros));
  }

  static ProgramOptions at_skew(ProgramOptions options, double skew) {
    options.dispatch.skew = options.dispatch.balanced ? 1 : skew;
    return options;
  }
  /// Evaluates one batch.
  void evaluate_once() {
    int64_t batches = 1;
    const HostBatch any;
    program.evaluate([&] { return batches-- > 0 ? &any : nullptr; });
  }
  /// Runs a step of the kind that most steps of the run are.
  void train_step() { train_step(step_kinds(program.options().optimizer).usual_step); }
  void train_step(int64_t step) {
    OptimizerStep args;
    args.step = step;
    program.train_step(batches, args);
  }
  double end() const { return std::max(compute->clock, groups.clock()); }
  /// Bytes that the rank has sent, also in repeated actions.
  int64_t wire_bytes() const {
    return groups.groups().wire_bytes() + std::llround(trace.repeated_wire_bytes());
  }
};

/// Returns work(meta) of a rank that replays repeated actions (ActionRepeats). If they cannot be replayed,
/// `work` is called again, with a rank that runs every action.
template <class Work>
auto with_repeats(const Recipe& recipe, const MachineProfile& profile, const PipelineLayout& layout, int rank,
                  int threads, const Work& work) {
  const auto run = [&](bool repeats) {
    MetaRank meta(recipe, profile, layout, mesh_of(recipe, rank), threads,
                  static_cast<int>(recipe.launch.ranks_on_host));
    if (repeats) meta.program.repeat_actions(meta.memory);
    return work(meta);
  };
  try {
    return run(true);
  } catch (const ActionRepeats::Impossible&) {
    return run(false);
  }
}

/// Adds the ops and collectives of the first `count` entries of a trace, with their repetitions, and whether
/// matmuls among them skip zeros (op_totals.cpp).
void add_ops(RankPlan& plan, const MetaTrace& trace, size_t count);
/// Adds the items in external memory, and the totals (external_memory.cpp).
void add_external(RankPlan& plan, const Recipe& recipe, const MachineProfile& profile, MetaRank& meta,
                  int threads);

}  // namespace ltrain
