#include "runtime/tokenizer/tokenizer_kinds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace ltrain::data {
namespace {

std::vector<TokenizerKind> make_kinds() {
  return {
      {.name = "byte",
       .help = "bytes and an end mark, 257 ids.",
       .vocab_size = 257,
       .text_bytes = 1,
       .make = [](const std::string&, const DocumentTokens&) { return make_byte_tokenizer(); }},
      {.name = "gpt2",
       .help = "a tiktoken rank file, 50257 ids.",
       .file = "tiktoken file of merge ranks (lines of `base64 rank`)",
       .file_example = "RANKS.tiktoken",
       .file_option = "--ranks or LTRAIN_GPT2_RANKS",
       .file_variable = "LTRAIN_GPT2_RANKS",
       .vocab_size = 50257,
       .make = [](const std::string& path, const DocumentTokens&) { return make_gpt2_tokenizer(path); }},
      {.name = "huggingface",
       .help = "a tokenizer.json, or SentencePiece's tokenizer.model; also the default if model.from names a "
               "folder with one.",
       .file = "tokenizer.json, tokenizer.model or tekken.json, or the folder that has it",
       .file_example = "FOLDER",
       .file_option = "--tokenizer PATH",
       .folder = true,
       .make = make_huggingface_tokenizer},
  };
}

void check_file(const TokenizerKind& kind, const std::string& path) {
  if (path.empty() == !kind.takes_file()) return;
  if (kind.takes_file())
    fail(ExitCode::usage, "tokenizer {} needs its {}: name it with {}", kind.name, kind.file,
         kind.file_option);
  std::vector<std::string> others;
  for (const TokenizerKind& k : tokenizer_kinds())
    if (k.takes_file()) others.push_back(k.name);
  fail(ExitCode::usage, "tokenizer {} takes no file, but {} is given; leave it out, or use {}", kind.name,
       path, fmt::join(others, " or "));
}

}  // namespace

const std::vector<TokenizerKind>& tokenizer_kinds() {
  static const std::vector<TokenizerKind> kinds = make_kinds();
  return kinds;
}

const TokenizerKind* find_tokenizer_kind(std::string_view name) {
  for (const TokenizerKind& k : tokenizer_kinds())
    if (k.name == name) return &k;
  return nullptr;
}

const TokenizerKind& byte_tokenizer_kind() { return *find_tokenizer_kind("byte"); }
const TokenizerKind& file_tokenizer_kind() { return *find_tokenizer_kind("huggingface"); }

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& path,
                                          const DocumentTokens& tokens) {
  const TokenizerKind* kind = find_tokenizer_kind(name);
  if (!kind) {
    std::vector<std::string> names;
    for (const TokenizerKind& k : tokenizer_kinds()) names.push_back(k.name);
    fail(ExitCode::usage, "tokenizer {}: expected {}, or the path of a {}", name, fmt::join(names, ", "),
         file_tokenizer_kind().file);
  }
  if (!kind->folder)
    for (const std::string* token : {&tokens.bos, &tokens.eos})
      if (!token->empty())
        fail(ExitCode::usage,
             "tokenizer {}: which token begins or ends a document is not a setting of it, but {} is given",
             name, *token);
  check_file(*kind, path);
  return kind->make(path, tokens);
}

}  // namespace ltrain::data
