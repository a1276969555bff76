#include "runtime/tokenizer/tokenizer_kinds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

/// All kinds: NAME_kind() is in the file of the kind's class.
#define LT_TOKENIZER_KINDS(kind) kind(byte) kind(gpt2) kind(huggingface)

namespace ltrain::data {

#define LT_DECLARE_KIND(name) TokenizerKind name##_kind();
LT_TOKENIZER_KINDS(LT_DECLARE_KIND)
#undef LT_DECLARE_KIND

namespace {

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
#define LT_KIND(name) name##_kind(),
  static const std::vector<TokenizerKind> kinds{LT_TOKENIZER_KINDS(LT_KIND)};
#undef LT_KIND
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
