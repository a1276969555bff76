// Token ids of a conversation with a loss mask: what the model is trained to write.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/chat/chat_template.h"
#include "runtime/tokenizer/tokenizer.h"

namespace ltrain::chat {

struct MaskOptions {
  std::vector<std::string> roles = {"assistant"};  ///< roles whose messages are trained
  bool last_turn = false;                          ///< train only the last message of these roles
  bool stop_token = true;                          ///< train the token that ends a turn
  bool specials_in_text =
      false;  ///< tokenize_plain: special tokens in the text are special, for texts of a template
  bool after_stop = false;  ///< train white space of the template behind that token, such as a line feed
};

/// Tokens of a row. ids, trained and ends have the same size.
struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<bool> trained;    ///< the token is a target of the loss
  std::string text;             ///< the text before it was encoded; without tokens that a tokenizer adds
  std::vector<size_t> ends;     ///< end of each token in `text`, in bytes
  size_t split_tokens = 0;      ///< tokens with both trained and other text, which are not trained
  size_t refused_specials = 0;  ///< texts of special tokens in data, which became ordinary tokens
  bool by_generation = false;   ///< the template has generation blocks, and the mask is theirs
};

/// Renders a row, encodes it and computes the mask: from generation blocks of the template where only the
/// role assistant is trained, else from the difference of rendering the messages before a turn and those up
/// to it.
///
/// Special tokens are found in the template's text alone: a user who writes "<|im_end|>" gets ordinary
/// tokens. The text between special tokens is encoded in one piece.
///
/// Throws Error (data), with `where` in front: the template raises; no message is trained; the token that
/// ends a turn is not trained; two BOS at the start; messages before a turn render differently with it.
ChatTokens tokenize_chat(data::Tokenizer& tokenizer, const ChatTemplate& chat_template, const ChatRow& row,
                         const MaskOptions& options, const std::string& date, const std::string& where);

/// Tokens of a row with a plain prompt and completion: the tokens that the tokenizer puts before a text, the
/// prompt, the completion, and the end-of-text token. Completion and end are trained.
ChatTokens tokenize_plain(data::Tokenizer& tokenizer, const ChatRow& row, const MaskOptions& options,
                          const std::string& where);

}  // namespace ltrain::chat
