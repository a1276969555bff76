// Which kernels attention of a run goes to.
#pragma once
#include <string>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// What of a recipe stands against cuDNN's attention; empty: nothing.
std::string cudnn_declines(const Recipe& recipe);
/// For a plan: which kernels a GPU of this compute capability has, and whether cuDNN's are tried before them.
std::string planned_attention(const Recipe& recipe, int capability);
/// For the log of a run on a GPU: "native kernels, on tensor cores; not cuDNN: ...". Where cuDNN may be used
/// it is compared with the kernels here first. Fails where attention_backend: cudnn cannot be had.
std::string attention_report(const Recipe& recipe, int capability, Stream& compute);

}  // namespace ltrain
