// Options of a step program: the model, its precision and layout, and the settings of a step.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "models/decoder/decoder.h"
#include "parallel/optim/loss_scale.h"
#include "parallel/pipeline/lowering.h"
#include "runtime/recipe/step_settings.h"

namespace ltrain {

/// Precision of matmuls.
enum class MatmulPrecision : uint8_t {
  plain,  ///< the storage type
  tf32,   ///< f32 operands with a 10-bit mantissa
  fp8     ///< FP8 operands in linear layers
};

struct ProgramOptions : StepSettings {
  ModelConfig model;
  PrecisionPolicy precision;
  ShardingPolicy sharding;
  int64_t bucket_elements = 4 << 20;
  int64_t micro_batch = 1, seq_length = 1, accumulation = 1;
  uint64_t seed = 1234;
  std::optional<LossScaleSettings> loss_scale;  ///< dynamic loss scaling, for fp16
  bool decay_embeddings = true;                 ///< weight decay applies to embeddings too
  OptimizerSettings optimizer;
  OffloadSettings offload;
  bool reduce_bf16 = false;         ///< all-reduce gradients in bf16
  std::optional<Code> reduce_code;  ///< all-reduce gradients as codes, with error feedback
  RecomputeOptions recompute;
  ActivationOffloadOptions activations;  ///< activations offloaded between forward and backward
  bool sequence_parallel = false;
  bool expert_tensor = true;                    ///< tensor ranks shard each expert
  DispatchOptions dispatch;                     ///< token dispatch to experts
  int intra_node_experts = 0;                   ///< ranks of the intra-node EP group; 0: one-level all-to-all
  ContextComm context_comm = ContextComm::p2p;  ///< with several context ranks
  int context_inner = 1;                        ///< a2a+p2p: ranks of the inner all-to-all
  bool documents = false;                       ///< batches have document boundaries for attention
  bool position_ids = false;                    ///< batches have position ids
  std::optional<PreferenceSettings> preference;  ///< batches have preference pairs, and these are the loss
  std::shared_ptr<const ModelConfig> teacher;    ///< model that training distils from; null: none
  std::shared_ptr<const ModelConfig> reference;  ///< preference: model of a resident reference; null: none
  DistillationLoss distillation;
  int64_t top_logits =
      0;  ///< recorded logits of a teacher for each token, in the place of `teacher`; 0: none
  /// Schedule of the pipeline axis; with no stages: one stage with all layers.
  pipeline::Schedule schedule;
  pipeline::Programs programs;                        ///< programs of `schedule`, if already lowered
  std::vector<int> stage_layers;                      ///< layers of each stage of `schedule`
  std::optional<Fp8Settings> fp8;                     ///< set if any phase uses MatmulPrecision::fp8
  MatmulPrecision products = MatmulPrecision::plain;  ///< initial precision
  LogitsChunk logits_chunk;
  /// Without a pipeline: a micro-batch's backward overlaps the next one's forward. With a pipeline, the
  /// schedule itself has such pairs.
  bool interleaved = false;
  /// Tensor-parallel matmuls run in chunks, overlapped with their collectives.
  bool async_tensor_parallel = false;
  bool cuda_graphs = false;  ///< passes are captured in the second step and replayed from then on
  AttentionBackend attention_backend = AttentionBackend::own;  ///< used on a GPU
  bool deterministic =
      true;  ///< kernels are deterministic; attention's backward then uses cuDNN only on request
  bool for_training = true;
  /// Use of RouterChoices. record: evaluations hand them over (TrainProgram::take_choices), train steps keep
  /// them (read_choices). replay: train steps take them (give_choices).
  enum class Choices : uint8_t { none, record, replay } choices = Choices::none;
  /// In training: evaluations hand over choices too, and the program keeps those of so many sequences
  /// (TrainProgram::probed_choices); 0: neither.
  int64_t probe_samples = 0;

  bool distils() const { return teacher || top_logits > 0; }
  /// The model runs in stages of a pipeline.
  bool staged() const { return stage_layers.size() > 1; }
  bool keeps_choices() const { return choices != Choices::none || probe_samples > 0; }
  /// Multi-token prediction modules that the program runs.
  int64_t mtp_modules() const { return for_training ? model.num_nextn_predict_layers : 0; }
};

}  // namespace ltrain
