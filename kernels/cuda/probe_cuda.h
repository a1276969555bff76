// Whether a GPU can run what this build compiled.
#pragma once

namespace ltrain::cuda {

/// Asks this thread's GPU, number `index`, about a small kernel. Throws Error (usage) where it cannot run it,
/// with what CUDA says.
void check_card(int index);

}  // namespace ltrain::cuda
