// Names of a family's tensors both ways: ltrain's, and those of Hugging Face's files. They differ in experts,
// which ltrain has in one tensor of each kind, and in weights that GPT-2's Conv1D has transposed.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "models/families/family.h"

namespace ltrain {

/// A tensor, or with `expert` one matrix of a stack of experts.
struct TensorName {
  std::string name;
  bool transposed = false;  ///< rows on one side are columns on the other, of each matrix of a stack
  /// One tensor of all experts on both sides. Hugging Face's has (experts, H, 2 F) and (experts, F, H) with
  /// `transposed`, and gate and up of a hidden unit beside each other: of biases (experts, 2 F).
  bool stacked = false;
  int64_t expert = -1;  ///< ltrain's side: name[expert] of down_proj, name[expert][matrix] of gate_up_proj
  int64_t matrix = 0;   ///< gate 0, up 1
};

/// Hugging Face's tensors that ltrain's `name` is made of, with their places in it; one but for a stack of
/// `experts`. Empty: the family has none of that name in Hugging Face's files, such as experts of a llama.
std::vector<TensorName> hf_tensors(const Family& family, const std::string& name, int64_t experts);
/// Where Hugging Face's `name` goes; none where no tensor of ltrain has a place for it.
std::optional<TensorName> ltrain_tensor(const Family& family, const std::string& name);

}  // namespace ltrain
