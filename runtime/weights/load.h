// The weights that a fresh run begins with, where they are not the seed's: checkpoint.load.path.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "parallel/zero/parameter_store.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Collective. Opens checkpoint.load.path: a folder of Hugging Face, or a checkpoint of ltrain under any
/// layout. Error (usage or storage) when it is not of the recipe's model. `notes`: what it is, and what of
/// the model is another here.
std::unique_ptr<PieceReader> open_weights(const Recipe& recipe, bool verify_hashes, Communicator& control,
                                          Stream& stream, std::vector<std::string>& notes);
/// Collective. The same where checkpoint.load.parts asks for more than weights, which no folder of Hugging
/// Face has: error (usage).
std::unique_ptr<CheckpointReader> open_loaded_checkpoint(const Recipe& recipe, bool verify_hashes,
                                                         Communicator& control, Stream& stream,
                                                         std::vector<std::string>& notes);
/// Collective. Fills initialised parameters; states of the optimizer stay as they are, averages begin with
/// the weights. Returns notes.
std::vector<std::string> load_weights(const Recipe& recipe, ParameterStore& parameters, Communicator& control,
                                      Stream& stream);

}  // namespace ltrain
