// Export of recipes as configurations of torchtitan, NeMo and DeepSpeed. Names: docs/coming-from.md.
#pragma once
#include "planner/exports/unsaid.h"

namespace ltrain::exports {

/// A TOML file of torchtitan 0.2.2. There, the model's shape is a flavor, so it is reported as unsaid.
Exported to_torchtitan(const Recipe& recipe);
/// YAML overrides for NeMo's Megatron-Bridge of August 2026. Throws Error (usage) if Megatron-LM has no flags
/// for the family.
Exported to_nemo(const Recipe& recipe);
/// A ds_config in JSON. Settings made by the client's program (model, data, pipeline stages) are reported as
/// unsaid.
Exported to_deepspeed(const Recipe& recipe);

/// "a model of 4 layers of 128, ...": settings that torchtitan and DeepSpeed leave to the program.
std::string model_shape(const Recipe& recipe);

}  // namespace ltrain::exports
