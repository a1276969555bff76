// Conversations to tokens with a loss mask, for `data build --chat` and runs with task: sft.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/chat/chat_tokens.h"

namespace ltrain::data {

struct ChatBuild {
  std::string chat_template;  ///< name of a built-in template, or a file; "": that of the tokenizer's folder
  chat::MaskOptions mask;
  chat::RowOptions rows;
  std::string date = chat::kTemplateDate;
  int64_t pack = 0;         ///< tokens of a sample that holds whole conversations; 0: they are not packed
  bool preference = false;  ///< rows are pairs of a chosen and a rejected text, which stay in one sample
  bool unpaired = false;    ///< rows are prompts and completions with a label
};

/// Text that differs where two builds could render conversations differently: options, and content of the
/// template's files.
std::string chat_identity(const ChatBuild& options, const std::string& tokenizer_path);

/// Tokens of a row of JSON. Not thread-safe.
class ChatEncoder {
 public:
  ChatEncoder(const ChatBuild& options, std::shared_ptr<const chat::ChatTemplate> chat_template)
      : options_(options), template_(std::move(chat_template)) {}

  /// Throws Error (data), with `where` in front, for a row that cannot be trained on, and for one longer than
  /// a sample.
  chat::ChatTokens operator()(const std::string& row, Tokenizer& tokenizer, const std::string& where) const;

  struct Pair {
    chat::ChatTokens chosen, rejected;
    double margin = 0;  ///< key margin of the row
  };
  /// The same for a preference pair: prompt, chosen and rejected. Refuses equal texts, prompts with different
  /// tokens, and pairs longer than a sample.
  Pair pair(const std::string& row, Tokenizer& tokenizer, const std::string& where) const;

  struct Example {
    chat::ChatTokens text;
    bool desirable = false;
  };
  /// The same for a labelled example: prompt, completion and label. Refuses one that does not fit into a
  /// sample together with its prompt and a token of another completion.
  Example example(const std::string& row, Tokenizer& tokenizer, const std::string& where) const;

 private:
  chat::ChatTokens encode(const chat::ChatRow& row, Tokenizer& tokenizer, const std::string& where) const;

  const ChatBuild& options_;
  std::shared_ptr<const chat::ChatTemplate> template_;  // null: only rows with plain texts
};

/// Template of a build; null if the tokenizer has no folder and none is named.
std::shared_ptr<const chat::ChatTemplate> load_template(const ChatBuild& options,
                                                        const std::string& tokenizer_path);

}  // namespace ltrain::data
