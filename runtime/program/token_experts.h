// Experts of token ids on the ranks of a pipeline.
#pragma once
#include "runtime/program/train_program.h"

namespace ltrain {

/// After routers are frozen: every rank gets the experts of token ids in layers of other stages. `table`:
/// TokenExperts::table. A collective call of all ranks.
void share_token_experts(const Device& device, const ProgramOptions& options, const Tensor& table);

}  // namespace ltrain
