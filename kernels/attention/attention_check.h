// Kernels of attention against each other, on the GPU that is to run them.
#pragma once
#include <string>

#include "kernels/attention/attention.h"

namespace ltrain {

/// A small random problem through the wgmma kernels and the mma kernels: empty where all that they write
/// agrees, else what does not and by how much. Waits for the stream, and uses its scratch.
std::string compare_attention_kernels(Stream& s, DType t, int64_t head_dim);

/// The same once a process for each type and head dim; what does not agree is told on stderr. False also
/// while the stream records a graph and nothing has been compared yet.
bool wgmma_agrees(Stream& s, DType t, int64_t head_dim);

}  // namespace ltrain
