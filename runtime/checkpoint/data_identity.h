// Data and tokenizer of a recipe, and checks that they agree.
#pragma once
#include <memory>

#include "runtime/data/identity.h"
#include "runtime/recipe/recipe.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain {

/// Identity of the training data, whose files must exist. Reads at most a few megabytes.
data::DataIdentity data_identity(const Recipe& recipe);

/// Loads the recipe's tokenizer, whose files must exist. Throws Error (data) with the reason.
std::unique_ptr<data::Tokenizer> load_tokenizer(const Recipe& recipe);

/// Token that ends a document in data without a sidecar: data.tokenizer.eod, else the tokenizer's; -1: none.
/// The recipe must pass check_data.
int64_t end_of_document(const Recipe& recipe);

/// Checks the data before processes are started: files exist, are complete and long enough, and have no token
/// outside the vocabulary. Throws Error (usage or data).
void check_data(const Recipe& recipe);

}  // namespace ltrain
