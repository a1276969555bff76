// The wgmma kernels tried in a process of its own: one that hangs, or that traps, which no process outlives
// that has a context on the GPU, costs a run a minute and not the run. What was found is kept in the cache
// folder, by card, driver and program.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor/dtype.h"

namespace ltrain {

/// Exit codes of the program that tries them, beside those of errors.
constexpr int kTrialAgrees = 0, kTrialDiffers = 3;

/// How it is started; type, head dim and the number of the GPU follow. Its output is the reason where it ends
/// with kTrialDiffers. Without one, nothing is tried. `seconds`: that it may take.
void set_attention_trial(std::vector<std::string> command, double seconds = 60);

/// Why the wgmma kernels of a type and head dim are not to be used on this thread's GPU, whose number among
/// those that the process sees is `gpu`; empty where they are. Nothing where no program was set. Takes
/// seconds, or what an earlier process found.
std::optional<std::string> try_attention(DType t, int64_t head_dim, int gpu);

}  // namespace ltrain
