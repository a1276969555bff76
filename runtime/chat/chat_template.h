// The chat template of a tokenizer, or one of the built-in templates, with the special tokens that it may
// name.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/chat/conversation.h"
#include "runtime/chat/jinja.h"

namespace ltrain::chat {

/// Date of strftime_now() where the recipe names none: training data must not depend on the day.
inline constexpr const char* kTemplateDate = "2024-07-26";

/// A template with its special tokens. Thread-safe.
class ChatTemplate {
 public:
  /// `tools`: the template for conversations with tools; unset: the same one.
  ChatTemplate(JinjaTemplate plain, std::optional<JinjaTemplate> tools, Json special_tokens)
      : plain_(std::move(plain)), tools_(std::move(tools)), special_tokens_(std::move(special_tokens)) {}

  /// Renders messages. `row` gives tools and settings; `messages` may be fewer than those of the row.
  Rendered render(const ChatRow& row, const Json& messages, bool add_generation_prompt,
                  const std::string& date) const;
  bool has_generation(bool tools) const { return of(tools).has_generation(); }
  const std::string& name() const { return plain_.name(); }
  const Json& special_tokens() const { return special_tokens_; }  ///< {"bos_token": "<s>", ...}

 private:
  const JinjaTemplate& of(bool tools) const { return tools && tools_ ? *tools_ : plain_; }
  JinjaTemplate plain_;
  std::optional<JinjaTemplate> tools_;
  Json special_tokens_;
};

/// Names of the built-in templates.
std::vector<std::string> builtin_template_names();
/// Source of a built-in template; null: no such name.
const char* builtin_template(const std::string& name);

/// Makes a chat template. `wanted`: the name of a built-in template, a file, or "" for that of the
/// tokenizer's folder (chat_template.jinja, or chat_template of tokenizer_config.json). `folder`: the folder
/// of the tokenizer, "" if it has none; special tokens come from its tokenizer_config.json. Throws Error
/// (usage) if there is none of that name, and Error (data) for a template or file with errors.
ChatTemplate load_chat_template(const std::string& wanted, const std::string& folder);

}  // namespace ltrain::chat
