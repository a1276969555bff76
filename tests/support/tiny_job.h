// A tiny training job on in-process ranks: threads, each with its streams, arena and communicators, on any
// mesh.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/meta/meta.h"
#include "kernels/meta/meta_memory.h"
#include "runtime/program/offload_memories.h"
#include "runtime/program/train_program.h"

namespace ltrain::test {

struct TinyOptions {
  std::string architecture = "llama";
  const Family* family = nullptr;  ///< instead of architecture's
  std::string precision = "fp64";
  bool tied = false, untied = false;  ///< neither: as the architecture has it
  double dropout = 0;
  int ranks = 1;  ///< data-parallel, of a site
  int tensor = 1;
  std::string tensor_mode = "1d";
  int tensor_depth = 1;
  bool sequence_parallel = false;
  int context = 1;
  std::string context_comm = "p2p";
  int context_inner = 2;
  int heads = 4, kv_heads = 0;  ///< kv_heads 0: as many (gpt2), or half
  /// No two samples of a step begin with the same token. Equal ones have equal values but for rounding, and
  /// an expert that chooses takes one or another.
  bool distinct_starts = false;
  bool packed = false;  ///< documents that see themselves alone, with positions of their own
  int pipeline = 1;
  std::string schedule = "1f1b";
  int chunks = 1;
  int64_t layers = 2;
  int64_t window = 0;              ///< keys that a query sees in layers 0, 2, ..; 0: all before it
  bool no_query_latent = false;    ///< latent attention without a latent of queries
  bool without_positions = false;  ///< layers 0, 2, .. do not rotate
  int64_t modules = 0;             ///< modules of multi-token prediction
  double modules_scale = 0.3;      ///< factor of their loss
  MoeConfig moe;                   ///< num_experts 0: dense
  int expert = 1;
  bool expert_tensor = true;
  DispatchOptions dispatch;
  int intra_node_experts = 0;
  int zero_stage = 0;
  bool reshard = true;  ///< ZeRO-3 only, after forward
  int zero_layers = 0;  ///< ZeRO-3 only: layers of ZeRO-2
  int shard = 0;        ///< ranks of the first level of gradients, where there are two; else 0
  int64_t micro_batch = 1, global_batch = 8, seq = 24, vocab = 61;
  int64_t hidden = 32, intermediate = 0;  ///< intermediate 0: 4 * hidden (gpt2), or 40
  int64_t steps = 3;
  int64_t bucket_elements = 3000;  ///< several buckets even for a tiny model
  bool padded_targets = false;     ///< some targets do not count
  /// Documents are preference pairs, and these are the loss; needs `packed`.
  std::optional<PreferenceSettings> preference;
  double clip = 0.5;
  double z_loss_coeff = 0;
  double skip_grad_norm = 0;
  LossScaleSettings loss_scale;    ///< fp16 only
  std::optional<Fp8Settings> fp8;  ///< linear layers of FP8, in whatever precision is around them
  std::vector<MatmulPrecision>
      products;                ///< precision of each step, where it changes; empty: always the same
  bool read_gradients = true;  ///< false: those of the first step may overflow
  int64_t gradients_of = 1;    ///< step of TinyResult::gradients
  OptimizerSettings optimizer;
  LoraConfig lora;
  OffloadSettings offload;
  bool offload_to_files = false;  ///< on a GPU too; on the CPU, offloaded tensors always go there
  double ema_decay = 0;
  bool reduce_bf16 = false;
  std::optional<Code> reduce_code;
  int64_t micros = 0;        ///< micro-batches of each step, fewer than the batch has; 0: all
  bool bf16_states = false;  ///< moments
  bool bf16_gradients = false;
  bool master_weights = true;  ///< 16-bit types only
  RecomputeOptions recompute;
  ActivationOffloadOptions activations;
  DeviceKind device = DeviceKind::cpu;
  LogitsChunk logits_chunk;
  bool interleaved = false;
  bool async_tensor_parallel = false;
  bool cuda_graphs = false;
  bool late_start = false;  ///< on a GPU: the compute stream is busy for 0.3 s before set-up writes anything
  AttentionBackend attention_backend = AttentionBackend::own;
  bool deterministic = true;
  ProgramOptions::Choices choices = ProgramOptions::Choices::none;  ///< use by StepRouting
  bool timeline = false;                                            ///< tells what runs in the last step
  bool nccl = false;  ///< groups of NCCL, on the network of tests/support/fake_nccl.h
};

/// Whole named tensors, row-major.
using NamedTensors = std::map<std::string, std::vector<double>>;

struct TinyResult {
  std::vector<double> losses, norms, balance_losses, mtp_losses, z_losses;
  std::vector<double> loss_scales;        ///< loss scale by step, and after the last; fp16 only
  std::vector<ExpertStatistics> experts;  ///< indexed by step
  std::vector<double> moved_mib;          ///< offloaded states moved by the first rank, likewise
  NamedTensors parameters;                ///< after all steps, put together from what the ranks own
  std::vector<NamedTensors> sites;        ///< parameters of each site of DiLoCo; the first is `parameters`
  NamedTensors averages;                  ///< averages of weights, put together likewise
  NamedTensors gradients;                 ///< gradients of one step, before clipping, put together likewise
  std::vector<int64_t> plan_bytes, used_bytes;  ///< arena by rank: planned; reached
  std::vector<int64_t> plan_host, used_host;    ///< host memory that copies go through, likewise
  std::vector<int64_t> offload_bytes;           ///< bytes of offloaded states, by rank
  std::vector<OffloadedBytes> plan_offloaded,
      used_offloaded;                         ///< all that is offloaded, by rank: planned; reached
  std::vector<int64_t> plan_wire, used_wire;  ///< bytes sent by rank
  /// Bytes sent by the last rank in all train steps, by group: planned; counted.
  std::map<std::string, int64_t> plan_groups, used_groups;
  double eval_loss = 0;
  /// With TinyOptions::timeline, by rank: "stream: layer: op" in the order of a step, planned; as run.
  std::vector<std::vector<std::string>> plan_ops, used_ops;
};

/// The model of the options.
ModelConfig tiny_model(const TinyOptions& options);
Mesh tiny_mesh(const TinyOptions& options, int rank);
int tiny_world(const TinyOptions& options);
/// Row `sample` of the data: seq + 1 tokens, a function of the sample alone.
std::vector<int32_t> tiny_sample(const TinyOptions& options, int64_t sample);
/// Its documents, when packed: where that of each of its seq positions begins.
std::vector<int32_t> tiny_documents(const TinyOptions& options, int64_t sample);
/// With pairs: which of its tokens count.
std::vector<uint8_t> tiny_counted(const TinyOptions& options, int64_t sample);
/// The micro-batches of one step for the ranks at these coordinates.
std::vector<HostBatch> tiny_batches(const TinyOptions& options, int64_t step, int data_coordinate,
                                    int context_coordinate = 0);

/// Puts another communicator in the place of a rank's own, to break it on purpose.
using GroupWrapper =
    std::function<std::unique_ptr<Communicator>(const GroupRequest&, std::unique_ptr<Communicator>)>;

/// A rank between its set-up and its steps, or after them.
struct TinyRank {
  int rank;
  TrainProgram& program;
  Communicator& control;  ///< group of all ranks, used by nobody else
};
/// Work of a test on each rank beside training.
struct TinyHooks {
  std::function<int64_t(const TinyRank&)> begin;  ///< loads a state; returns the steps that it has done
  std::function<void(const TinyRank&)> end;
  /// Around each step, from 1, on each rank.
  using OfStep = std::function<void(const TinyRank&, int64_t step, const std::vector<HostBatch>&)>;
  OfStep before_step = {}, after_step = {};
};

/// Trains. `wrap` replaces groups of each rank (negative controls); the plan is made with whole ones.
TinyResult train_tiny(const TinyOptions& options, const GroupWrapper& wrap = {}, const TinyHooks& hooks = {});

/// One rank's program on the meta device; `wrap` replaces its recording groups.
struct MetaJob {
  MetaTrace trace;
  GroupSet groups;
  std::unique_ptr<Stream> compute;
  MetaMemory memory, host;
  OffloadMemories slow;
  TrainProgram program;
  MetaJob(const TinyOptions& options, int rank, const GroupWrapper& wrap = {});
};

ProgramOptions tiny_program(const TinyOptions& options);
/// The optimizer's settings at `step`, from 1.
OptimizerStep tiny_adamw(int64_t step);

}  // namespace ltrain::test
