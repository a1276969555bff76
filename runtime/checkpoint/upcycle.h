// Dense to MoE at load (sparse upcycling, arXiv:2212.05055): every expert begins as a copy of the dense
// model's feed-forward, routers as the seed has them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "parallel/zero/parameter_store.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Collective. Opens checkpoint.upcycle. Error (usage) when it is not of a dense llama of the recipe's shape.
std::unique_ptr<CheckpointReader> open_dense(const Recipe& recipe, bool verify_hashes, Communicator& control,
                                             Stream& stream, std::vector<std::string>& notes);
/// Fills initialised parameters of the MoE model from the dense model's.
void load_dense(CheckpointReader& dense, const ModelConfig& moe, ParameterStore& parameters);

}  // namespace ltrain
