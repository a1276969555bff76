// Kernels that are compared with other kernels before a GPU uses them. The comparison runs in its own
// process: a kernel that hangs or traps kills every process with a context on the GPU, and then costs a
// minute instead of the run. The cache folder keeps the result by card, driver and program.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/tensor/stream.h"

namespace ltrain {

/// Exit codes of the trial program, beside the codes of errors.
constexpr int kTrialAgrees = 0, kTrialDiffers = 3;

/// Sets the trial program. TriedKernels::words and the GPU index are appended to `command`. Its output is the
/// reason if it exits with kTrialDiffers. Without a program the process compares the kernels itself.
/// `seconds`: time limit.
void set_kernel_trial(std::vector<std::string> command, double seconds = 60);

struct TriedKernels {
  std::vector<std::string> words;  ///< kernel and kind: {"attention", "bf16", "64"}
  std::string against;             ///< "the mma kernels"
  /// compares in this process; empty if they agree, else the difference
  std::function<std::string(Stream& s)> compare;
};

/// Reason why such kernels are not used on this thread's GPU; empty if they are. The first call of a process
/// for these words returns the kept result of an earlier process, or starts the trial program, which takes
/// seconds; without a program it calls `compare`. A first call during graph capture on `s` returns a reason
/// that is not kept. `news`: set to true if this answer is given for the first time.
std::string why_unusable(Stream& s, const TriedKernels& kernels, bool* news = nullptr);
/// For tests: the next call is a first call.
void forget_kernel_trials();

}  // namespace ltrain
