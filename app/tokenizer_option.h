// --tokenizer and related options.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/error.h"
#include "runtime/files/file.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain::app {

inline void add_split_special_tokens(CLI::App& command, bool& split) {
  command.add_flag("--split-special-tokens", split,
                   "special tokens in text are text, as with transformers' split_special_tokens");
}

/// --tokenizer, --ranks, --bos-token and --eos-token.
struct TokenizerOption {
  std::string name = "byte", ranks;  ///< name: byte, gpt2, or a path
  data::DocumentTokens tokens;

  void add_to(CLI::App& command) {
    command
        .add_option(
            "--tokenizer", name,
            "byte, gpt2, or a tokenizer.json, tokenizer.model or tekken.json, or the folder that has it")
        ->capture_default_str();
    command.add_option("--ranks", ranks, "gpt2: merge ranks, a tiktoken file; else $LTRAIN_GPT2_RANKS");
    command.add_option(
        "--bos-token", tokens.bos,
        "of a file: token that begins a document; else that of tokenizer_config.json or the model");
    command.add_option(
        "--eos-token", tokens.eos,
        "of a file: token that ends a document; else that of tokenizer_config.json or the model");
  }
  bool is_path() const {
    return !data::find_tokenizer_kind(name) && (name.find('/') != name.npos || data::file_exists(name));
  }
  std::string kind() const { return is_path() ? data::file_tokenizer_kind().name : name; }
  std::string path() const {
    if (!is_path()) return ranks.empty() ? file_of_environment() : ranks;
    if (!ranks.empty())
      fail(ExitCode::usage, "--ranks {}: of gpt2 alone, and --tokenizer names a file or folder: {}", ranks,
           name);
    return name;
  }
  std::unique_ptr<data::Tokenizer> make() const { return data::make_tokenizer(kind(), path(), tokens); }

 private:
  std::string file_of_environment() const {
    const data::TokenizerKind* kind = data::find_tokenizer_kind(name);
    if (!kind || kind->file_variable.empty()) return "";
    const char* file = std::getenv(kind->file_variable.c_str());
    return file ? file : "";
  }
};

}  // namespace ltrain::app
