// A folder of Hugging Face: config.json beside safetensors files, one or several with an index. It comes from
// outside: every name, size and type is checked before a byte of a tensor is read.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/families/hf_tensors.h"
#include "models/layers/model_config.h"
#include "runtime/checkpoint/piece_reader.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

struct HfTensor {
  int file = 0;
  std::string dtype;  ///< "BF16"
  std::vector<int64_t> shape;
};

struct HfFolder {
  std::string path;
  std::vector<std::string> files;  ///< names in the folder
  std::map<std::string, HfTensor> tensors;
  std::vector<std::string> notes;  ///< files that are not read, though they look like weights
};

/// Whether a path is such a folder: it has a config.json and no manifest of ltrain.
bool is_hf_folder(const std::string& path);
/// Reads headers: of model.safetensors where it is there, as transformers does, else of the files that an
/// index names. Error (storage) that names file, tensor and rule; `key` is what the path was
/// given as.
HfFolder open_hf_folder(const std::string& path, const std::string& key);

/// A recipe of the folder's model, with sequences as long as the model reads, 2,048 tokens at most, and with
/// so many modules of multi-token prediction. `ignore`: model.from_ignore.
Recipe hf_recipe(const std::string& path, int64_t modules = 0, const std::vector<std::string>& ignore = {});
/// The number of the layer that a tensor is of; -1: of none.
int64_t layer_of(const ModelConfig& model, const std::string& name);
/// Modules of multi-token prediction that the folder has tensors of.
int64_t modules_in(const HfFolder& folder, const ModelConfig& model);
/// Modules have the embedding and the output layer once more in files: Error (usage) where those are others
/// than the model's own.
void check_copies(const HfFolder& folder, const ModelConfig& model);
/// Names of those copies, and of what each is a copy of.
std::vector<std::pair<std::string, std::string>> module_copies(const ModelConfig& model);

/// Parameters of a model with their shapes, in the order of the forward pass.
std::vector<std::pair<std::string, Shape>> parameter_shapes(const ModelConfig& model);
/// What a model has beside them and is not trained by gradients: biases that experts are chosen by.
std::vector<std::pair<std::string, Shape>> buffer_shapes(const ModelConfig& model);

/// A shape as safetensors files have it.
inline std::vector<int64_t> dims_of(const Shape& s) { return {s.dims.begin(), s.dims.begin() + s.rank}; }

/// Of Hugging Face's tensor of all experts (TensorName::stacked), from ltrain's.
std::vector<int64_t> stacked_shape(const Shape& shape, bool transposed);

/// One matrix of a stack of experts, as a part of the stack.
Slice expert_slice(const Shape& stack, const TensorName& matrix);

/// The folder's tensors as parameters of `model`. Error (usage) where one is missing, is of another shape or
/// type, or has no place in the model. `notes`: what is passed over, and why that changes nothing.
std::unique_ptr<PieceReader> hf_weights(const HfFolder& folder, const ModelConfig& model,
                                        std::vector<std::string>& notes);

}  // namespace ltrain
