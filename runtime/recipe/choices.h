// Values of the recipe's keys that are one of several words: enums, and the words of each in one table.
#pragma once
#include <cstdint>

#include "base/enum_names.h"

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

enum class TokenizerKind : uint8_t { byte, gpt2, huggingface };
LT_ENUM_NAMES(TokenizerKind, {TokenizerKind::byte, "byte"}, {TokenizerKind::gpt2, "gpt2"},
              {TokenizerKind::huggingface, "huggingface"});

enum class LogFormat : uint8_t { text, megatron };
LT_ENUM_NAMES(LogFormat, {LogFormat::text, "text"}, {LogFormat::megatron, "megatron"});

/// two_and_half_d: tensor_depth grids of two_d.
enum class TensorModeChoice : uint8_t { one_d, two_d, two_and_half_d, three_d };
LT_ENUM_NAMES(TensorModeChoice, {TensorModeChoice::one_d, "1d"}, {TensorModeChoice::two_d, "2d"},
              {TensorModeChoice::two_and_half_d, "2.5d"}, {TensorModeChoice::three_d, "3d"});

enum class ExpertDispatch : uint8_t { all_to_all, all_gather };
LT_ENUM_NAMES(ExpertDispatch, {ExpertDispatch::all_to_all, "all_to_all"},
              {ExpertDispatch::all_gather, "all_gather"});

/// Of what hides collectives. Whether a micro-batch's backward and the next one's forward run by turns:
/// automatic: where a forward waits for collectives and nothing speaks against it. Whether tensor-parallel
/// products run in parts: automatic: on a GPU with sequence parallelism where no micro-batches run by turns.
enum class OverlapChoice : uint8_t { automatic, off, on };
LT_ENUM_NAMES(OverlapChoice, {OverlapChoice::automatic, "auto"}, {OverlapChoice::on, "on"},
              {OverlapChoice::off, "off"});

/// What gradients are rounded to before they are summed over ranks.
enum class GradReduceDtype : uint8_t { fp32, bf16, int8 };
LT_ENUM_NAMES(GradReduceDtype, {GradReduceDtype::fp32, "fp32"}, {GradReduceDtype::bf16, "bf16"},
              {GradReduceDtype::int8, "int8"});

/// What moments and gradients are kept in.
enum class StorageDtype : uint8_t { fp32, bf16 };
LT_ENUM_NAMES(StorageDtype, {StorageDtype::fp32, "fp32"}, {StorageDtype::bf16, "bf16"});

enum class RecomputeGranularity : uint8_t { none, full, selective, automatic };
LT_ENUM_NAMES(RecomputeGranularity, {RecomputeGranularity::none, "none"},
              {RecomputeGranularity::full, "full"}, {RecomputeGranularity::selective, "selective"},
              {RecomputeGranularity::automatic, "auto"});

enum class RecomputeMethod : uint8_t { uniform, block };
LT_ENUM_NAMES(RecomputeMethod, {RecomputeMethod::uniform, "uniform"}, {RecomputeMethod::block, "block"});

/// Parts of a layer. core_attn: attention without its projections; layernorm: both norms; mlp: up to the last
/// projection; mlp_act: its activation; moe, moe_act: the same of experts, from their rows.
enum class RecomputeModule : uint8_t { core_attn, layernorm, mlp, mlp_act, moe, moe_act };
LT_ENUM_NAMES(RecomputeModule, {RecomputeModule::core_attn, "core_attn"},
              {RecomputeModule::layernorm, "layernorm"}, {RecomputeModule::mlp, "mlp"},
              {RecomputeModule::mlp_act, "mlp_act"}, {RecomputeModule::moe, "moe"},
              {RecomputeModule::moe_act, "moe_act"});

/// What becomes of a tensor that a layer's backward reads.
enum class SavePolicy : uint8_t { keep, recompute, offload };
LT_ENUM_NAMES(SavePolicy, {SavePolicy::keep, "keep"}, {SavePolicy::recompute, "recompute"},
              {SavePolicy::offload, "offload"});

enum class OffloadDevice : uint8_t { none, cpu, nvme };
LT_ENUM_NAMES(OffloadDevice, {OffloadDevice::none, "none"}, {OffloadDevice::cpu, "cpu"},
              {OffloadDevice::nvme, "nvme"});

/// What a resume does where data are not the checkpoint's.
enum class ResumeData : uint8_t { same, go_on, restart };
LT_ENUM_NAMES(ResumeData, {ResumeData::same, "same"}, {ResumeData::go_on, "continue"},
              {ResumeData::restart, "restart"});

/// What of a checkpoint a fresh run begins with. states: the weights and the optimizer's states. all: those,
/// and the step, the place in the data and the loss scale.
enum class LoadParts : uint8_t { weights, states, all };
LT_ENUM_NAMES(LoadParts, {LoadParts::weights, "weights"}, {LoadParts::states, "weights+optimizer"},
              {LoadParts::all, "all"});

/// Ranks of the first of two levels, of keys whose value is a word or a number of ranks.
inline constexpr int64_t kOneLevel = 0;  ///< "none", "all"
inline constexpr int64_t kNode = -1;     ///< "node": those of a node

}  // namespace ltrain
