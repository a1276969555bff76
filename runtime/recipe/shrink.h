// A recipe for a laptop's CPU in the shape of a large one: ltrain run --shrink, ltrain plan --shrink.
#pragma once
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// Overrides of `recipe` for at most `most_ranks` CPU ranks and three steps. Kept: the family, kinds of
/// layers, grouped queries, experts, tied weights, recomputation, precision, optimizer, task, and each
/// parallel axis with two ranks while `most_ranks` allows it. Shrunk: layers, widths, vocabulary (bytes),
/// sequences, batch. Dropped: evaluation, saves at intervals, initial weights, offload, and settings of
/// machines. The recipe may be unresolved. load_recipe with these overrides gives the shrunk recipe, whose
/// run reads data.jsonl and, unless it pretrains, chat.jinja in shrunk_folder().
std::vector<std::string> shrink_settings(const Recipe& recipe, int64_t most_ranks);

/// Folder of everything that a run of the shrunk recipe reads and writes.
std::string shrunk_folder(const Recipe& recipe);
/// JSONL of some hundred made-up records for the task: texts, conversations, or pairs. About 60 kB.
std::string shrunk_data(Task task);
/// A chat template for the byte tokenizer.
std::string shrunk_chat_template();

/// "key: before -> after" for each key whose value differs, in the order of the schema.
std::vector<std::string> changed_keys(const Recipe& before, const Recipe& after);

}  // namespace ltrain
