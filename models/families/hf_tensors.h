// Conversion of tensor names between ltrain and Hugging Face's files, both ways. They differ in experts,
// which are one tensor of each kind in ltrain, and in the transposed weights of GPT-2's Conv1D.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "models/families/family.h"

namespace ltrain {

/// A tensor, or with `expert` one matrix of a stack of experts.
struct TensorName {
  std::string name;
  bool transposed = false;  ///< rows of one side are columns of the other, in each matrix of a stack
  /// One tensor of all experts on both sides. Hugging Face's is (experts, H, 2 F) and (experts, F, H) with
  /// `transposed`, with gate and up of a hidden unit interleaved; biases are (experts, 2 F).
  bool stacked = false;
  int64_t expert = -1;  ///< ltrain's side: name[expert] of down_proj, name[expert][matrix] of gate_up_proj
  int64_t matrix = 0;   ///< gate 0, up 1
};

/// Hugging Face's tensors for ltrain's `name`, with their positions in it; one, except for a stack of
/// `experts`. Empty if the family has none in Hugging Face's files, such as experts of a llama.
std::vector<TensorName> hf_tensors(const Family& family, const std::string& name, int64_t experts);
/// Tensor of ltrain for Hugging Face's `name`; none if there is no such tensor.
std::optional<TensorName> ltrain_tensor(const Family& family, const std::string& name);

}  // namespace ltrain
