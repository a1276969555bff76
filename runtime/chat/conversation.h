// Rows of fine-tuning data: one JSON object in one of the usual forms, as messages for a chat template.
//
// Rows with errors (a missing or unknown role, two system messages, an empty turn, a tool call without its
// answer, content that is not text) throw, and the caller decides between stopping and skipping.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/json/json.h"

namespace ltrain::chat {

using Json = nlohmann::ordered_json;  ///< the order of keys is part of a prompt

enum class RowForm : uint8_t {
  by_keys,            ///< the form that the keys of the row tell
  messages,           ///< {"messages": [{"role", "content", "tool_calls"?, ...}], "tools"?}
  sharegpt,           ///< {"conversations": [{"from", "value"}], "system"?, "tools"?}
  alpaca,             ///< {"instruction", "input"?, "output", "system"?, "history"?: [[question, answer]]}
  prompt_completion,  ///< {"prompt", "completion"}: two texts, or two lists of messages
  text,               ///< {"text"}
};

/// Standard keys of rows and of their messages.
const std::vector<std::string>& standard_fields();

struct RowOptions {
  RowForm form = RowForm::by_keys;
  /// Key in the file for each standard key that differs: {"messages": "dialog", "role": "speaker", "content":
  /// "says"}.
  std::map<std::string, std::string> fields;
};

/// One text to train on.
struct ChatRow {
  bool plain = false;              ///< prompt and completion are texts, without a chat template
  Json messages, tools;            ///< lists; tools: null where the row has none
  Json settings;                   ///< chat_template_kwargs of the row: an object, variables of the template
  size_t prompt_messages = 0;      ///< messages at the start that are not trained
  std::string prompt, completion;  ///< plain: completion is trained
};

struct PreferenceRow {
  ChatRow chosen, rejected;  ///< with the same prompt
};

struct UnpairedRow {
  ChatRow row;
  bool good = false;  ///< label
};

inline constexpr int kMaxRowDepth = 100;  ///< levels of lists and objects in a row

/// Parses the JSON of a row. Throws Error (data) with the position of an error, and for nesting deeper than
/// kMaxRowDepth.
Json parse_row(const std::string& text, const std::string& where);

/// Reads a row. `where` names file and row in messages. Throws Error (data) with key, value and rule; Error
/// (usage) for a name in `options.fields` that is not a standard key.
ChatRow read_chat_row(const Json& row, const RowOptions& options, const std::string& where);
/// {"prompt"?, "chosen", "rejected"}: texts or lists of messages. Without a prompt, it is the common
/// beginning. A prompt may also be in "messages" or "conversations", with one message each in chosen and
/// rejected.
PreferenceRow read_preference_row(const Json& row, const RowOptions& options, const std::string& where);
/// {"prompt", "completion", "label": true or false}.
UnpairedRow read_unpaired_row(const Json& row, const RowOptions& options, const std::string& where);

}  // namespace ltrain::chat
