// Held-out data: sets of a recipe, and bytes of text of their tokens.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/batch_loader.h"
#include "runtime/recipe/recipe.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain {

/// Sources that are evaluated together and have one loss.
struct EvalSet {
  std::string name;  ///< "": the only set, without a name
  std::vector<data::SourceSpec> sources;
};

/// Sets of data.eval. Sources of one name form a set. Sets are in the order of their first source.
std::vector<EvalSet> eval_sets(const Recipe& recipe);

/// Returns whether all sources have a sidecar, which names the tokenizer.
bool has_sidecars(const EvalSet& set);
/// Returns whether the sidecars name `tokenizer`.
bool is_of_tokenizer(const EvalSet& set, const data::Tokenizer& tokenizer);

/// Bytes of text of each token id.
std::vector<int32_t> text_bytes(const data::Tokenizer& tokenizer);

}  // namespace ltrain
