// Sparse upcycling of a dense model to a MoE model at load (arXiv:2212.05055). Every expert starts as a copy
// of the dense feed-forward. Routers keep their initialization from the seed.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "parallel/zero/parameter_store.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Collective. Opens checkpoint.upcycle. Throws Error (usage) if it is not a dense llama of the recipe's
/// shape.
std::unique_ptr<CheckpointReader> open_dense(const Recipe& recipe, bool verify_hashes, Communicator& control,
                                             Stream& stream, std::vector<std::string>& notes);
/// Fills initialized parameters of the MoE model from the dense model.
void load_dense(CheckpointReader& dense, const ModelConfig& moe, ParameterStore& parameters);

}  // namespace ltrain
