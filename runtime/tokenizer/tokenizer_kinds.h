// Kinds of tokenizers, by the names that data.tokenizer.kind, --tokenizer and sidecars of token files use. A
// new kind is a file with a class (tokenizer.h) and NAME_kind(), and NAME in the list of tokenizer_kinds.cpp.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::data {

struct TokenizerKind {
  std::string name;
  std::string help;                ///< a sentence for the key
  std::string file = {};           ///< description of its file; empty: built in, no file
  std::string file_example = {};   ///< path in examples, "RANKS.tiktoken"
  std::string file_option = {};    ///< how a command takes the file: "--ranks or LTRAIN_GPT2_RANKS"
  std::string file_variable = {};  ///< environment variable of commands with the file; empty: none
  bool folder = false;     ///< the path may be a folder, whose other files name the tokens of documents
  int64_t vocab_size = 0;  ///< number of ids; 0: known from the file only
  int64_t text_bytes = 4;  ///< approximate bytes of English text per token
  std::unique_ptr<Tokenizer> (*make)(const std::string& path, const DocumentTokens& tokens) = nullptr;

  bool takes_file() const { return !file.empty(); }
};

const std::vector<TokenizerKind>& tokenizer_kinds();
/// Returns the kind of that name; null if none has it.
const TokenizerKind* find_tokenizer_kind(std::string_view name);
/// Kind of the built-in byte tokenizer, the default.
const TokenizerKind& byte_tokenizer_kind();
/// Kind of the files of other projects, for a tokenizer given by its path.
const TokenizerKind& file_tokenizer_kind();

/// Makes a tokenizer of a kind. `path`: its file, or the folder with it. Throws Error (usage) for an unknown
/// name, a missing or superfluous file, and tokens that the kind does not take.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& path,
                                          const DocumentTokens& tokens = {});

}  // namespace ltrain::data
