// Kernels that are compared with others before a GPU uses them, in a process of its own: one that hangs, or
// that traps, which no process outlives that has a context on the GPU, costs a run a minute and not the run.
// What was found is kept in the cache folder, by card, driver and program.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/tensor/stream.h"

namespace ltrain {

/// Exit codes of the program that tries them, beside those of errors.
constexpr int kTrialAgrees = 0, kTrialDiffers = 3;

/// How it is started; words of TriedKernels and the number of the GPU follow. Its output is the reason where
/// it ends with kTrialDiffers. Without one, the process compares them itself. `seconds`: that it may take.
void set_kernel_trial(std::vector<std::string> command, double seconds = 60);

struct TriedKernels {
  std::vector<std::string> words;                 ///< {"attention", "bf16", "64"}: what, and of which kind
  std::string against;                            ///< "the mma kernels"
  std::function<std::string(Stream& s)> compare;  ///< here; empty where they agree, else what does not
};

/// Why such kernels are not to be used on this thread's GPU; empty where they are. When first asked in a
/// process for these words: what an earlier process has found, or what one that is started for it finds, in
/// seconds; where no program was set, what `compare` says. A question while `s` records a graph, before any
/// other, is answered by a reason that is not kept. `news`: whether nobody was given the answer before.
std::string why_unusable(Stream& s, const TriedKernels& kernels, bool* news = nullptr);
/// For tests: the next question is the first one.
void forget_kernel_trials();

}  // namespace ltrain
