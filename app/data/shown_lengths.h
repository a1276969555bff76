// Lengths of documents as a histogram, and token ids beside their text.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::app {

/// Prints the range of the lengths and a bar for each power of two. `unit`: "tokens a document", for example.
void print_lengths(const data::LengthStats& lengths, const std::string& unit);

/// A list of {"from": least length, `counted`: number of documents or records at least as long and less than
/// twice as long}.
nlohmann::ordered_json histogram_json(const data::LengthStats& lengths, const std::string& counted);

/// Each id with its text, such as `5962 "First"  22307 " Citizen"`, in lines of at most 100 characters, or
/// of one token if that is longer.
std::string tokens_with_text(const data::Tokenizer& tokenizer, const std::vector<int32_t>& ids);

}  // namespace ltrain::app
