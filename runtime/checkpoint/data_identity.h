// Which data and which tokenizer a recipe names, and whether they agree.
#pragma once
#include <memory>

#include "runtime/data/identity.h"
#include "runtime/recipe/recipe.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain {

/// Of the training data, which must be there. Reads a few megabytes whatever its size.
data::DataIdentity data_identity(const Recipe& recipe);

/// The recipe's tokenizer, whose files must be there. Error (data) that names what is wrong with them.
std::unique_ptr<data::Tokenizer> load_tokenizer(const Recipe& recipe);

/// The token that ends a document of data without a sidecar: data.tokenizer.eod, else the tokenizer's; -1:
/// none. Of a recipe that check_data takes.
int64_t end_of_document(const Recipe& recipe);

/// Everything about data that can be known before processes are started: the files are there, whole, long
/// enough, and hold no token outside the vocabulary. Throws Error (usage or data).
void check_data(const Recipe& recipe);

}  // namespace ltrain
