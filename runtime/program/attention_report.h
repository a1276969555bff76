// Which kernels attention of a run goes to.
#pragma once
#include <string>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// What of a recipe stands against cuDNN's attention; empty: nothing.
std::string cudnn_declines(const Recipe& recipe);
/// For a plan: which kernels a GPU of this compute capability has, and whether cuDNN's are tried before them.
std::string planned_attention(const Recipe& recipe, int capability);
/// Where a GPU's attention is to be by kernels that are compared with others before their first use
/// (attention_check.h): does that. Before the run has taken the GPU's memory, of which a process that is
/// started for it needs some.
void try_attention_kernels(const Recipe& recipe, int capability, Stream& compute);
/// For the log of a run on a GPU: "native kernels, on tensor cores; not cuDNN: ...". Where cuDNN may be used
/// it is compared with the kernels here first. Fails where attention_backend: cudnn cannot be had.
std::string attention_report(const Recipe& recipe, int capability, Stream& compute);

}  // namespace ltrain
