// Parts of the schema table with a source file of their own.
#pragma once
#include <vector>

#include "runtime/recipe/schema/schema.h"

namespace ltrain::recipe {

inline constexpr double kMaxSteps = 1e15;
inline constexpr double kMaxDim = 1 << 20;
inline constexpr double kMaxIds = 2147483647;  // token ids are 32-bit

/// Bytes of "12 GiB", "800 MiB" or "1000000"; -1 for other text.
double read_bytes(const std::string& text);

void add_model_keys(std::vector<Key>& table);
void add_offload_keys(std::vector<Key>& table);
void add_recompute_keys(std::vector<Key>& table);
/// Extends `precision` to accept a list of phases (phases.cpp).
Key with_precision_schedule(Key key);
void add_fp8_keys(std::vector<Key>& table);
void add_precision_keys(std::vector<Key>& table);
void add_optimizer_keys(std::vector<Key>& table);
void add_telemetry_keys(std::vector<Key>& table);
void add_profile_keys(std::vector<Key>& table);
void add_sparsity_keys(std::vector<Key>& table);
void add_diloco_keys(std::vector<Key>& table);
void add_replica_keys(std::vector<Key>& table);
void add_quantization_keys(std::vector<Key>& table);
void add_lora_keys(std::vector<Key>& table);
void add_preference_keys(std::vector<Key>& table);
void add_distillation_keys(std::vector<Key>& table);
void add_schedule_keys(std::vector<Key>& table);
/// Adds the keys of checkpoints, launch and logs.
void add_job_keys(std::vector<Key>& table);

}  // namespace ltrain::recipe
