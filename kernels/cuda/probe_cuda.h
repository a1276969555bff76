// Check if a GPU can run the kernels of this build.
#pragma once

namespace ltrain::cuda {

/// Loads a small kernel on this thread's GPU, number `index`. Throws Error (usage) if it cannot run, with
/// CUDA's message.
void check_card(int index);

}  // namespace ltrain::cuda
