// Matrices in NF4 in a checkpoint: NAME has the codes, two weights a byte, and NAME.absmax the magnitudes of
// their blocks (kernels/matmul/nf4.h).
#pragma once
#include <map>
#include <string>

#include "runtime/checkpoint/manifest.h"

namespace ltrain {

inline constexpr const char* kNf4Absmax = ".absmax";

/// Joins the codes and magnitudes of each matrix in NF4 to one tensor of f32, which readers dequantise.
/// Throws Error (storage) if they do not belong together. `path`: for messages.
std::map<std::string, TensorParts> join_nf4(std::map<std::string, TensorParts> tensors,
                                            const std::string& path);

/// True for a tensor that join_nf4 has joined.
bool is_nf4(const TensorParts& tensor);

}  // namespace ltrain
