// Initial weights of a fresh run from checkpoint.load.path.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "parallel/zero/parameter_store.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Collective. Opens checkpoint.load.path: a Hugging Face folder, or an ltrain checkpoint of any layout.
/// Throws Error (usage or storage) if it does not fit the recipe's model. `notes`: its type, and differences
/// from the model.
std::unique_ptr<PieceReader> open_weights(const Recipe& recipe, bool verify_hashes, Communicator& control,
                                          Stream& stream, std::vector<std::string>& notes);
/// Collective. Opens checkpoint.load.path if checkpoint.load.parts asks for more than weights. Throws Error
/// (usage) for a Hugging Face folder, which has only weights.
std::unique_ptr<CheckpointReader> open_loaded_checkpoint(const Recipe& recipe, bool verify_hashes,
                                                         Communicator& control, Stream& stream,
                                                         std::vector<std::string>& notes);
/// Collective. Fills initialized parameters. Optimizer states do not change, and EMA weights start from the
/// loaded weights. Returns notes.
std::vector<std::string> load_weights(const Recipe& recipe, ParameterStore& parameters, Communicator& control,
                                      Stream& stream);

}  // namespace ltrain
