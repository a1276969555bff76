// Data sources of a recipe: patterns for several files, and notes on surprising effects of a mix.
#pragma once
#include <string>
#include <vector>

#include "runtime/eval/held_out.h"
#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Replaces each source whose path is a pattern (*, ? or [) by the matching token files, sorted by name, and
/// each source of text or records by its token files. They share its weight in proportion to their samples,
/// so that all of them end together. A source that is not tokenised yet becomes DataSource::pending, with a
/// note. Throws Error (data) if no file matches a pattern and `here` is set; else the files may be on another
/// machine. Weights by data.temperature are set once all training sources are tokenised. Throws Error (usage)
/// for more sources than a mix can have.
void resolve_sources(Recipe& recipe, bool here);

/// Returns whether a resolved recipe has sources that are not tokenised yet; with data.shuffle_window, whose
/// first window is not.
bool has_pending_sources(const Recipe& recipe);

/// Returns whether all token files of the training sources of a resolved recipe exist.
bool training_files_exist(const Recipe& recipe);

/// A note on a set that ends with its smallest source before `wanted` samples are evaluated; else "". The
/// files must exist.
std::string cut_note(const EvalSet& set, const Data& data, int64_t wanted);

/// Notes on sources that are read many times during training, unless some of their files are made later, and
/// on held-out sets of several sources that end when the first one is used up. The other files must exist.
/// Throws Error (usage) if training would read a source more often than its max_epochs.
std::vector<std::string> data_notes(const Recipe& recipe);

}  // namespace ltrain
