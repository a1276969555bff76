// Sparse upcycling of a dense model to a MoE model at load (arXiv:2212.05055). Every expert starts as a copy
// of the dense feed-forward, or of one of `shards` equal parts of it: shard i % shards for expert i. Routers
// keep their initialization from the seed; the experts that make up one feed-forward get the same row
// (virtual groups, arXiv:2410.07524), so that a token chooses all of them or none.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "parallel/zero/parameter_store.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Parts of a dense feed-forward that experts of the model have: its width over theirs.
int64_t feed_forward_shards(const ModelConfig& model);

/// Collective. Opens checkpoint.upcycle. Throws Error (usage) if it is not a dense model of dense_families()
/// and of the recipe's shape.
std::unique_ptr<CheckpointReader> open_dense(const Recipe& recipe, bool verify_hashes, Communicator& control,
                                             Stream& stream, std::vector<std::string>& notes);
/// Fills initialized parameters of the MoE model from the dense model. `seed`: of the initialization. Output
/// projections of parts are multiplied by their number, since the weights of a token's experts sum to one.
void load_dense(CheckpointReader& dense, const ModelConfig& moe, uint64_t seed, ParameterStore& parameters);

}  // namespace ltrain
