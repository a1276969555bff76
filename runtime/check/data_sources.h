// Sources of a recipe's data: patterns that name several files, and what a mix does that nobody may expect.
#pragma once
#include <string>
#include <vector>

#include "runtime/eval/held_out.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Replaces each source whose path is a pattern (*, ? or [) by the token files that match, in the order of
/// their names. They share its weight in proportion to their samples, so that all of them end together. Error
/// (data) where no file matches, if `must_match`: the files may be on another machine; error (usage) for more
/// sources than a mix can have.
void expand_patterns(Recipe& recipe, bool must_match);

/// A sentence on a set that ends, with its smallest source, before `wanted` samples are evaluated; else "".
/// The files are there.
std::string cut_note(const EvalSet& set, int64_t seq_length, int64_t wanted);

/// Sentences on sources that are read many times in a training, and on held-out sets of several sources that
/// end when the first of them is used up. The files are there.
std::vector<std::string> data_notes(const Recipe& recipe);

}  // namespace ltrain
