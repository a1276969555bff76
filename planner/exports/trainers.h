// Recipes as the configurations of torchtitan, NeMo and DeepSpeed. Names: docs/coming-from.md.
#pragma once
#include "planner/exports/unsaid.h"

namespace ltrain::exports {

/// A TOML file of torchtitan 0.2.2. The model's shape is a flavor there, and is named as unsaid.
Exported to_torchtitan(const Recipe& recipe);
/// Overrides in YAML of NeMo's Megatron-Bridge, of August 2026. Throws Error (usage) where Megatron-LM has no
/// flags for the family.
Exported to_nemo(const Recipe& recipe);
/// ds_config in JSON. What the client's program sets itself (model, data, pipeline stages) is named as
/// unsaid.
Exported to_deepspeed(const Recipe& recipe);

/// "a model of 4 layers of 128, ...": what torchtitan and DeepSpeed leave to the program.
std::string model_shape(const Recipe& recipe);

}  // namespace ltrain::exports
