// Decisions that follow from a recipe. Rules, the plan and the program call the same functions.
#pragma once
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain::recipe {

/// A setting that prevents something.
struct Hindrance {
  std::string why;
  std::string key;
};

std::vector<Hindrance> overlap_hindrances(const Recipe& recipe);  ///< against overlaps_micro_batches
std::vector<Hindrance> chunk_hindrances(const Recipe& recipe);    ///< against async_tensor_parallel
std::vector<Hindrance> graph_hindrances(const Recipe& recipe);    ///< against captures_steps

/// Returns whether the steps of `resolved` are captured as CUDA graphs. Its device must be resolved.
bool captures_steps(const Recipe& resolved);
/// Returns whether a micro-batch's backward overlaps another's forward. In a pipeline, the schedule decides.
bool overlaps_micro_batches(const Recipe& recipe);
/// Returns whether tensor-parallel matmuls run in chunks. The device of `resolved` must be resolved.
bool async_tensor_parallel(const Recipe& resolved);
/// Describes the overlap that hides a layer's collectives, with its key; empty: no overlap. `beside`: a
/// forward and a backward of two micro-batches overlap.
std::string overlap_text(const Recipe& resolved, bool beside);
/// The same recipe without overlapped micro-batches and chunked matmuls. Overlapped pairs are priced against
/// it.
Recipe micro_batches_apart(Recipe resolved);

}  // namespace ltrain::recipe
