// Messages of a conversation: from the forms of files to those of chat templates, and their rules.
#pragma once
#include <string>

#include "base/error.h"
#include "runtime/chat/conversation.h"

namespace ltrain::chat {

/// Reads the keys of a row, with the names that they have in the file.
class RowKeys {
 public:
  RowKeys(const RowOptions& options, const std::string& where);
  std::string name(const std::string& key) const;                      ///< key of the file for a standard key
  const Json* find(const Json& object, const std::string& key) const;  ///< null: absent or null
  const std::string& where() const { return where_; }
  template <class... Args>
  [[noreturn]] void fail_row(fmt::format_string<Args...> text, Args&&... args) const {
    ltrain::fail(ExitCode::data, "{}: {}", where_, fmt::format(text, std::forward<Args>(args)...));
  }

 private:
  const RowOptions& options_;
  const std::string& where_;
};

/// Messages with the keys role, content, tool_calls and so on, in the form that chat templates of Hugging
/// Face get from transformers: keys without null, arguments of calls as objects, reasoning under both of its
/// names. `key` names the list in messages of errors. `sharegpt`: roles are human, gpt, observation,
/// function_call.
Json read_messages(const Json& list, const RowKeys& keys, const std::string& key, bool sharegpt);

/// Checks the order of messages. `complete`: calls of tools must be answered, unless they are the last
/// message.
void check_messages(const Json& messages, const RowKeys& keys, const std::string& key);

/// Throws Error if a value is nested deeper than rows may be.
void check_row_depth(const Json& value, const RowKeys& keys);

/// The list of tools, given as a list or as JSON text; null without tools.
Json read_tools(const Json& row, const RowKeys& keys);

}  // namespace ltrain::chat
