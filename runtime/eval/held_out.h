// Held-out data: which sets a recipe names, and the bytes of text that their tokens stand for.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/batch_loader.h"
#include "runtime/recipe/recipe.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain {

/// What has one loss.
struct EvalSet {
  std::string name;  ///< "": the only one, and it has none
  std::vector<data::SourceSpec> sources;
};

/// data.eval: the sources of one name are one set, in the order in which names come first.
std::vector<EvalSet> eval_sets(const Recipe& recipe);

/// Whether all sources have one, which says which tokenizer made them.
bool has_sidecars(const EvalSet& set);
/// Whether they say that it was `tokenizer`.
bool is_of_tokenizer(const EvalSet& set, const data::Tokenizer& tokenizer);

/// Bytes of text of each id.
std::vector<int32_t> text_bytes(const data::Tokenizer& tokenizer);

}  // namespace ltrain
