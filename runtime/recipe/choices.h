// Enums of recipe keys with named choices, each with a table of its names.
#pragma once
#include <cstdint>

#include "base/enum_names.h"
#include "kernels/loss/preference_loss.h"

namespace ltrain {

enum class DeviceChoice : uint8_t { automatic, cpu, cuda };
LT_ENUM_NAMES(DeviceChoice, {DeviceChoice::automatic, "auto"}, {DeviceChoice::cuda, "cuda"},
              {DeviceChoice::cpu, "cpu"});

enum class Precision : uint8_t { fp32, tf32, bf16, fp8, fp16, fp64 };  ///< fp64: for parity tests
LT_ENUM_NAMES(Precision, {Precision::fp32, "fp32"}, {Precision::tf32, "tf32"}, {Precision::bf16, "bf16"},
              {Precision::fp8, "fp8"}, {Precision::fp16, "fp16"}, {Precision::fp64, "fp64"});

enum class LrDecayStyle : uint8_t { constant, linear, cosine, inverse_square_root, wsd };
LT_ENUM_NAMES(LrDecayStyle, {LrDecayStyle::constant, "constant"}, {LrDecayStyle::linear, "linear"},
              {LrDecayStyle::cosine, "cosine"}, {LrDecayStyle::inverse_square_root, "inverse-square-root"},
              {LrDecayStyle::wsd, "WSD"});

enum class WeightDecayStyle : uint8_t { constant, linear, cosine };
LT_ENUM_NAMES(WeightDecayStyle, {WeightDecayStyle::constant, "constant"},
              {WeightDecayStyle::linear, "linear"}, {WeightDecayStyle::cosine, "cosine"});

/// sft: supervised fine-tuning on conversations, where only some tokens count in the loss.
/// dpo: preference training on pairs of a chosen and a rejected text.
/// kto: preference training on single texts with a label.
/// reward: a model that scores texts, trained on the pairs of dpo.
enum class Task : uint8_t { pretrain, sft, dpo, kto, reward };
LT_ENUM_NAMES(Task, {Task::pretrain, "pretrain"}, {Task::sft, "sft"}, {Task::dpo, "dpo"}, {Task::kto, "kto"},
              {Task::reward, "reward"});
/// Data are pairs of a chosen and a rejected text.
constexpr bool reads_pairs(Task task) { return task == Task::dpo || task == Task::reward; }
/// The loss compares texts: their sums of log-probabilities, or their scores.
constexpr bool trains_preferences(Task task) { return reads_pairs(task) || task == Task::kto; }

LT_ENUM_NAMES(PreferenceKind, {PreferenceKind::sigmoid, "sigmoid"}, {PreferenceKind::ipo, "ipo"},
              {PreferenceKind::hinge, "hinge"}, {PreferenceKind::robust, "robust"},
              {PreferenceKind::sigmoid_norm, "sigmoid_norm"}, {PreferenceKind::simpo, "simpo"},
              {PreferenceKind::apo_zero, "apo_zero"}, {PreferenceKind::orpo, "orpo"},
              {PreferenceKind::kto, "kto"}, {PreferenceKind::apo_zero_unpaired, "apo_zero_unpaired"});

LT_ENUM_NAMES(PreferenceReference, {PreferenceReference::precomputed, "precomputed"},
              {PreferenceReference::adapters_off, "adapters_off"},
              {PreferenceReference::resident, "resident"});

/// Copies of documents that are left out when token files are made. exact: those with the same text.
enum class Deduplicate : uint8_t { none, exact };
LT_ENUM_NAMES(Deduplicate, {Deduplicate::none, "none"}, {Deduplicate::exact, "exact"});

/// Messages whose tokens count in the loss.
enum class TrainOn : uint8_t { assistant, last_turn, all };
LT_ENUM_NAMES(TrainOn, {TrainOn::assistant, "assistant"}, {TrainOn::last_turn, "last_turn"},
              {TrainOn::all, "all"});

enum class LogFormat : uint8_t { text, megatron, json };
LT_ENUM_NAMES(LogFormat, {LogFormat::text, "text"}, {LogFormat::megatron, "megatron"},
              {LogFormat::json, "json"});

/// topology: ranks whose hosts are near each other are neighbours; launcher: as the launcher numbered them.
enum class RankOrder : uint8_t { topology, launcher };
LT_ENUM_NAMES(RankOrder, {RankOrder::topology, "topology"}, {RankOrder::launcher, "launcher"});

/// two_and_half_d: tensor_depth grids of two_d.
enum class TensorModeChoice : uint8_t { one_d, two_d, two_and_half_d, three_d };
LT_ENUM_NAMES(TensorModeChoice, {TensorModeChoice::one_d, "1d"}, {TensorModeChoice::two_d, "2d"},
              {TensorModeChoice::two_and_half_d, "2.5d"}, {TensorModeChoice::three_d, "3d"});

enum class ExpertDispatch : uint8_t { all_to_all, all_gather };
LT_ENUM_NAMES(ExpertDispatch, {ExpertDispatch::all_to_all, "all_to_all"},
              {ExpertDispatch::all_gather, "all_gather"});

/// Choice for two ways to hide collectives. Overlap of micro-batches: automatic enables it if a forward waits
/// for collectives and the recipe allows it. Chunked tensor-parallel matmuls: automatic enables them on a GPU
/// with sequence parallelism and without overlap of micro-batches.
enum class OverlapChoice : uint8_t { automatic, off, on };
LT_ENUM_NAMES(OverlapChoice, {OverlapChoice::automatic, "auto"}, {OverlapChoice::on, "on"},
              {OverlapChoice::off, "off"});

/// Type to which gradients are rounded before they are summed over ranks.
enum class GradReduceDtype : uint8_t { fp32, bf16, int8, sign };
LT_ENUM_NAMES(GradReduceDtype, {GradReduceDtype::fp32, "fp32"}, {GradReduceDtype::bf16, "bf16"},
              {GradReduceDtype::int8, "int8"}, {GradReduceDtype::sign, "sign"});
/// Returns whether gradients are summed as codes, whose rounding errors each rank keeps.
constexpr bool keeps_errors(GradReduceDtype t) {
  return t == GradReduceDtype::int8 || t == GradReduceDtype::sign;
}

/// Storage type of optimizer moments and gradients.
enum class StorageDtype : uint8_t { fp32, bf16 };
LT_ENUM_NAMES(StorageDtype, {StorageDtype::fp32, "fp32"}, {StorageDtype::bf16, "bf16"});

enum class RecomputeGranularity : uint8_t { none, full, selective, automatic };
LT_ENUM_NAMES(RecomputeGranularity, {RecomputeGranularity::none, "none"},
              {RecomputeGranularity::full, "full"}, {RecomputeGranularity::selective, "selective"},
              {RecomputeGranularity::automatic, "auto"});

enum class RecomputeMethod : uint8_t { uniform, block };
LT_ENUM_NAMES(RecomputeMethod, {RecomputeMethod::uniform, "uniform"}, {RecomputeMethod::block, "block"});

/// Parts of a layer that can be recomputed. core_attn: attention without its projections. layernorm: both
/// norms. mlp: the feed-forward up to its last projection. mlp_act: its activation. moe, moe_act: the same
/// for experts, from their token rows.
enum class RecomputeModule : uint8_t { core_attn, layernorm, mlp, mlp_act, moe, moe_act };
LT_ENUM_NAMES(RecomputeModule, {RecomputeModule::core_attn, "core_attn"},
              {RecomputeModule::layernorm, "layernorm"}, {RecomputeModule::mlp, "mlp"},
              {RecomputeModule::mlp_act, "mlp_act"}, {RecomputeModule::moe, "moe"},
              {RecomputeModule::moe_act, "moe_act"});

/// Treatment of a tensor that a layer's backward reads.
enum class SavePolicy : uint8_t { keep, recompute, offload, int8, fp8 };
LT_ENUM_NAMES(SavePolicy, {SavePolicy::keep, "keep"}, {SavePolicy::recompute, "recompute"},
              {SavePolicy::offload, "offload"}, {SavePolicy::int8, "int8"}, {SavePolicy::fp8, "fp8"});

enum class OffloadDevice : uint8_t { none, cpu, nvme, automatic };
LT_ENUM_NAMES(OffloadDevice, {OffloadDevice::none, "none"}, {OffloadDevice::cpu, "cpu"},
              {OffloadDevice::nvme, "nvme"}, {OffloadDevice::automatic, "auto"});

/// Cores that update offloaded optimizer states.
enum class OffloadUpdate : uint8_t { device, cpu, automatic };
LT_ENUM_NAMES(OffloadUpdate, {OffloadUpdate::device, "device"}, {OffloadUpdate::cpu, "cpu"},
              {OffloadUpdate::automatic, "auto"});

/// Behaviour of a resume if the data differ from the checkpoint's.
enum class ResumeData : uint8_t { same, go_on, restart };
LT_ENUM_NAMES(ResumeData, {ResumeData::same, "same"}, {ResumeData::go_on, "continue"},
              {ResumeData::restart, "restart"});

/// Parts of a checkpoint that a fresh run loads. states: weights and optimizer state. all: also the step, the
/// data position and the loss scale.
enum class LoadParts : uint8_t { weights, states, all };
LT_ENUM_NAMES(LoadParts, {LoadParts::weights, "weights"}, {LoadParts::states, "weights+optimizer"},
              {LoadParts::all, "all"});

/// Special values of keys that take a word or the number of ranks in the first of two levels.
inline constexpr int64_t kOneLevel = 0;  ///< "none", "all"
inline constexpr int64_t kNode = -1;     ///< "node": the ranks of a node

}  // namespace ltrain
