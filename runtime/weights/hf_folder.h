// A Hugging Face folder: config.json and one safetensors file, or several with an index. It is untrusted:
// every name, size and type is checked before any tensor data is read.
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
  std::vector<std::string> notes;  ///< notes on ignored files that look like weights
};

/// Returns whether `path` is a Hugging Face folder: it has a config.json and no manifest of ltrain.
bool is_hf_folder(const std::string& path);
/// Reads the headers of model.safetensors, like transformers, or without it of the files named in an index.
/// Throws Error (storage) with file, tensor and rule. `key`: recipe key of the path, for messages.
HfFolder open_hf_folder(const std::string& path, const std::string& key);

/// A recipe of the folder's model, with the longest sequences that the model supports, up to 2,048 tokens,
/// and with `modules` modules of multi-token prediction. `ignore`: model.from_ignore.
Recipe hf_recipe(const std::string& path, int64_t modules = 0, const std::vector<std::string>& ignore = {});
/// Number of the layer of a tensor; -1: not in a layer.
int64_t layer_of(const ModelConfig& model, const std::string& name);
/// Number of multi-token prediction modules with tensors in the folder.
int64_t modules_in(const HfFolder& folder, const ModelConfig& model);
/// Checks the copies of embedding and output layer that files contain for modules. Throws Error (usage) if
/// they differ from the model's own.
void check_copies(const HfFolder& folder, const ModelConfig& model);
/// Names of those copies and of their originals.
std::vector<std::pair<std::string, std::string>> module_copies(const ModelConfig& model);

/// Parameters of a model with their shapes, in the order of the forward pass, without adapters.
std::vector<std::pair<std::string, Shape>> parameter_shapes(const ModelConfig& model);
/// Factors of the model's adapters.
std::vector<std::pair<std::string, Shape>> adapter_shapes(const ModelConfig& model);
/// Tensors of a model that are not trained by gradients: router correction biases.
std::vector<std::pair<std::string, Shape>> buffer_shapes(const ModelConfig& model);

/// A shape in the form of safetensors files.
inline std::vector<int64_t> dims_of(const Shape& s) { return {s.dims.begin(), s.dims.begin() + s.rank}; }

/// Shape of Hugging Face's tensor of all experts (TensorName::stacked), from ltrain's shape.
std::vector<int64_t> stacked_shape(const Shape& shape, bool transposed);

/// Slice of one matrix in a stack of experts.
Slice expert_slice(const Shape& stack, const TensorName& matrix);

/// Maps the folder's tensors to parameters of `model`. Throws Error (usage) for a missing tensor, a wrong
/// shape or type, or a tensor that does not belong to the model. `notes`: ignored tensors, and why they do
/// not matter.
std::unique_ptr<PieceReader> hf_weights(const HfFolder& folder, const ModelConfig& model,
                                        std::vector<std::string>& notes);

}  // namespace ltrain
