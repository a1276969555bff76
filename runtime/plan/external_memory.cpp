// Memory of a rank outside its arenas: buffers of the data loader, checkpoints, groups and libraries.
#include <algorithm>
#include <map>
#include <optional>

#include "kernels/tensor/device.h"
#include "parallel/nccl/communicator_nccl.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/data/batch_loader.h"
#include "runtime/data/build.h"
#include "runtime/launch/transport.h"
#include "runtime/objects/upload.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/meta_rank.h"
#include "runtime/program/attention_report.h"

namespace ltrain {
namespace {

constexpr const char* kNotMeasured = "NOT MEASURED: assumed, until scripts/gpu-check.sh has run";

std::vector<ExternalMemory> external_memory(const Recipe& r, const MachineProfile& profile, const Mesh& mesh,
                                            int threads, int64_t panel_bytes) {
  std::vector<ExternalMemory> items;
  items.push_back(
      {"process", profile.process_bytes, profile.measured ? "measured by ltrain bench" : "built-in guess"});
  const data::LoaderOptions batches = loader_options(r, mesh);
  const ExternalMemory loader{"data loader", data::loader_buffer_bytes(batches),
                              fmt::format("formula: one thread, {} micro-batches ahead", batches.prefetch)};
  if (device_of(r) == DeviceKind::cuda) {
    // Driver, CUDA libraries and their host buffers: the maximum of ten runs on an H200 with CUDA 13.0, with
    // one rank, and with two ranks and NCCL (docs/measurements).
    constexpr int64_t kOneRank = int64_t{672} << 20, kWithNccl = int64_t{1344} << 20;
    return {{"CUDA process", ranks(r) == 1 ? kOneRank : kWithNccl, "measured on an H200"}, loader};
  }
  const ProgramOptions o = program_options(r);
  const ContextSharding cut = context_sharding(r, mesh);
  const Positions queries = cut.exchanged_rows_of(cut.rank);
  const Positions keys = cut.comm == ContextComm::all_gather ? Positions(cut.seq) : queries;
  items.push_back({"attention scratch",
                   attention_scratch_bytes(queries, keys, o.model.head_dim, o.precision.compute) * threads,
                   "formula"});
  if (panel_bytes > 0) items.push_back({"GEMM packing buffers", panel_bytes * threads, "formula"});
  items.push_back(loader);
  return items;
}

/// Memory to make token files while the run trains (data.shuffle_window), on the first rank of a node or its
/// launcher; nothing where all sources are known to be token files.
std::optional<ExternalMemory> token_file_memory(const Recipe& r, int rank) {
  const auto makes = [](const std::vector<DataSource>& list) {
    return std::any_of(list.begin(), list.end(),
                       [](const DataSource& s) { return s.files.empty() || s.named_by_content; });
  };
  const bool any = makes(r.data.train) || std::any_of(r.data.stages.begin(), r.data.stages.end(),
                                                      [&](const DataStage& s) { return makes(s.train); });
  if (r.data.shuffle_window == 0 || !any || rank % std::max<int64_t>(1, r.launch.ranks_on_host) != 0)
    return std::nullopt;
  data::BuildOptions options;
  options.workers = static_cast<int>(r.data.workers);
  return ExternalMemory{"making of token files", data::build_memory_bytes(options),
                        fmt::format("bound: {} threads, records up to 1 MiB", data::worker_count(options))};
}

/// Buffers of NCCL's groups: per channel some 6 MiB for each of its two ring neighbours, and more for trees
/// and pairs. If NCCL chooses the number of channels, 16 are assumed.
int64_t nccl_bytes(const Recipe& r, const Groups& groups) {
  constexpr int64_t kChannelBytes = int64_t{16} << 20;
  constexpr int kChosen = 16;
  int64_t channels = 0;
  for (const Communicator* c : groups.all()) {
    if (c->size() == 1) continue;
    const int most = most_nccl_channels(groups.asked_for.at(c));
    channels += std::min(most > 0 ? most : kChosen, r.debug.shared_gpu ? nccl::kSharedGpuChannels : kChosen);
  }
  return channels * kChannelBytes;
}

constexpr const char* kContext = "context, kernels";

/// Memory of a card outside the arena. Only the scratch was measured. The other figures are round numbers
/// with a margin.
std::vector<ExternalMemory> external_cuda(const Recipe& r, const Groups& groups) {
  constexpr auto gpu = DeviceKind::cuda;
  std::vector<ExternalMemory> items{
      {kContext, int64_t{600} << 20, kNotMeasured, gpu},
      {"stream scratch", stream_scratch_bytes(gpu), "exact: cuBLASLt's workspace is in it", gpu},
      {"cuBLASLt", int64_t{64} << 20, kNotMeasured, gpu},
  };
  // Its handle and kernels compiled for the shapes. The workspace of the backward is in the arena.
  if (r.attention_backend != AttentionBackend::own && cudnn_declines(r).empty())
    items.push_back({"cuDNN", int64_t{64} << 20, kNotMeasured, gpu});
  if (const int64_t bytes = nccl_bytes(r, groups)) items.push_back({"NCCL", bytes, kNotMeasured, gpu});
  return items;
}

/// Adds the communication buffers of groups of these ranks. A shared segment counts on each of its ranks, as
/// in the resident memory of a process.
void add_group_memory(RankPlan& plan, const std::vector<std::vector<int>>& groups, int ranks_on_host) {
  std::map<Transport, int64_t> bytes;
  for (const std::vector<int>& ranks : groups) {
    const Transport t = planned_transport(ranks, ranks_on_host);
    bytes[t] += transport_scratch_bytes(t, static_cast<int>(ranks.size()));
  }
  for (const auto& [t, n] : bytes)
    plan.outside.push_back(
        {t == Transport::shm ? "shared memory of groups" : "gloo parts in flight", n, "formula"});
}

}  // namespace

void add_external(RankPlan& plan, const Recipe& recipe, const MachineProfile& profile, MetaRank& meta,
                  int threads) {
  const bool cuda = device_of(recipe) == DeviceKind::cuda;
  const Mesh mesh = mesh_of(recipe, plan.rank);
  plan.outside = external_memory(recipe, profile, mesh, threads, meta.trace.panel_bytes());
  if (auto making = token_file_memory(recipe, plan.rank)) plan.outside.push_back(std::move(*making));
  if (saves_at_all(recipe)) {
    const int64_t bytes = CheckpointWriter::staging_bytes(state_slices(meta.program.parameters()));
    if (cuda) {
      checkpoint_staging(meta.host, bytes);
    } else {
      plan.outside.push_back({"checkpoint staging", bytes, "formula"});
    }
    if (recipe.checkpoint.remote && plan.rank == 0)
      plan.outside.push_back({"uploads of checkpoints",
                              std::min(objects::kUploadThreads * objects::part_bytes(bytes), bytes),
                              "formula"});
  }
  plan.offloaded = meta.program.offloaded();
  add_offloaded(plan, recipe);
  if (const int64_t open = meta.program.parameters().open_state_bytes(cuda))
    plan.outside.push_back({"8-bit moments as floats", open, "formula"});  // at a checkpoint
  if (recipe.train.router_replay)
    plan.outside.push_back({"choices of routers", meta.program.choices_bytes(), "formula"});
  for (const RegisteredBuffer& k : meta.program.parameters().kept(false))
    if (k.name ==
        kProbedChoices)  // 24 bytes a choice: two of this probe, two sums, and those of the one before
      plan.outside.push_back({"choices of a routing probe", 6 * k.tensor.bytes(), "formula"});
  std::vector<std::vector<int>> groups = meta.groups.members();
  if (cuda) {
    for (ExternalMemory& item : external_cuda(recipe, meta.groups.groups()))
      plan.outside.push_back(std::move(item));
    groups.clear();  // their buffers are on the card
  }
  const int ranks_on_host = static_cast<int>(recipe.launch.ranks_on_host);
  // Add the group of the checkpoints. It is a tree without buffers if its ranks are on several hosts.
  const std::vector<int> all = mesh.all_ranks();
  if (all.size() > 1 && planned_transport(all, ranks_on_host) == Transport::shm) groups.push_back(all);
  add_group_memory(plan, groups, ranks_on_host);
  plan.staging_bytes = meta.host.peak().arena_bytes;
  plan.total_bytes = plan.arena.arena_bytes;
  plan.host_bytes = plan.staging_bytes;
  for (const ExternalMemory& o : plan.outside) {
    if (!cuda || o.where == DeviceKind::cuda) plan.total_bytes += o.bytes;
    if (o.where == DeviceKind::cpu) plan.host_bytes += o.bytes;
  }
  if (!cuda) plan.host_bytes = plan.total_bytes;
}

int64_t context_bytes(const RankPlan& rank) {
  for (const ExternalMemory& o : rank.outside)
    if (o.name == kContext) return o.bytes;
  return 0;
}

}  // namespace ltrain
