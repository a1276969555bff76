// Attention kernels that a run uses.
#pragma once
#include <string>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Returns why cuDNN's attention cannot run this recipe; empty: it can.
std::string cudnn_declines(const Recipe& recipe);
/// For a plan: native attention kernels of a GPU of this compute capability, and whether cuDNN's are tried
/// first.
std::string planned_attention(const Recipe& recipe, int capability);
/// Compares the wgmma attention kernels with the mma ones in a child process, if the run would use them
/// (attention_check.h). Call it before the run allocates the GPU's memory, because the child process needs
/// some.
void try_attention_kernels(const Recipe& recipe, int capability, Stream& compute);
/// For the log of a run on a GPU: "native kernels, on tensor cores; not cuDNN: ...". Compares cuDNN with the
/// native kernels if cuDNN may be used. Fails if attention_backend: cudnn is not possible.
std::string attention_report(const Recipe& recipe, int capability, Stream& compute);

}  // namespace ltrain
