#include "runtime/chat/conversation.h"

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/chat/messages.h"

namespace ltrain::chat {
namespace {

const std::string& text_of(const Json& row, const RowKeys& keys, const std::string& key) {
  const Json* value = keys.find(row, key);
  if (!value) keys.fail_row("expected the key {}", printable(keys.name(key), 60));
  if (!value->is_string())
    keys.fail_row("{}: expected a text, got {}", printable(keys.name(key), 60), value->type_name());
  return value->get_ref<const std::string&>();
}

std::string optional_text(const Json& row, const RowKeys& keys, const std::string& key) {
  return keys.find(row, key) ? text_of(row, keys, key) : "";
}

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

/// The form that the keys of a row tell.
RowForm form_of(const Json& row, const RowKeys& keys) {
  std::vector<std::pair<RowForm, std::string>> found;
  const auto look = [&](RowForm form, const char* key) {
    if (keys.find(row, key)) found.emplace_back(form, keys.name(key));
  };
  look(RowForm::messages, "messages");
  look(RowForm::sharegpt, "conversations");
  look(RowForm::alpaca, "instruction");
  look(RowForm::prompt_completion, "completion");
  look(RowForm::text, "text");
  if (found.empty()) {
    if (keys.find(row, "chosen"))
      keys.fail_row("a row with {}: expected a row of preferences to be read as such", keys.name("chosen"));
    std::string got;
    for (const auto& [key, value] : row.items()) got += (got.empty() ? "" : ", ") + printable(key, 40);
    keys.fail_row(
        "expected one of the keys messages, conversations, instruction, completion or text, got {}; other "
        "names are given as field names",
        got.empty() ? "none" : printable(got, 300));
  }
  if (found.size() > 1)
    keys.fail_row("the keys {} and {} belong to two forms; expected the form to be given",
                  printable(found[0].second, 60), printable(found[1].second, 60));
  return found[0].first;
}

/// Lists whose messages have a "from" are in ShareGPT's form, others in that of OpenAI, whatever the list's
/// name.
bool is_sharegpt(const Json& list, const RowKeys& keys) {
  return keys.name("role") == "role" && list.is_array() && !list.empty() && list[0].is_object() &&
         list[0].contains("from") && !list[0].contains("role");
}

Json settings_of(const Json& row, const RowKeys& keys) {
  const auto it = row.find("chat_template_kwargs");
  if (it == row.end() || it->is_null()) return Json::object();
  if (!it->is_object()) keys.fail_row("chat_template_kwargs: expected an object, got {}", it->type_name());
  return *it;
}

ChatRow chat(Json messages, const Json& row, const RowKeys& keys, const std::string& key) {
  check_messages(messages, keys, key);
  ChatRow out;
  out.messages = std::move(messages);
  out.tools = read_tools(row, keys);
  out.settings = settings_of(row, keys);
  return out;
}

ChatRow read_list(const Json& row, const RowKeys& keys, const char* standard, bool sharegpt) {
  const std::string key = keys.name(standard);
  const Json* list = keys.find(row, standard);
  if (!list) keys.fail_row("expected the key {}", printable(key, 60));
  const bool openai = keys.name("role") == "role" && list->is_array() && !list->empty() &&
                      (*list)[0].is_object() && (*list)[0].contains("role");
  Json messages =
      read_messages(*list, keys, printable(key, 60), (sharegpt && !openai) || is_sharegpt(*list, keys));
  if (sharegpt)
    if (const std::string system = optional_text(row, keys, "system"); !system.empty())
      messages.insert(messages.begin(), message("system", system));
  return chat(std::move(messages), row, keys, printable(key, 60));
}

ChatRow read_alpaca(const Json& row, const RowKeys& keys) {
  Json messages = Json::array();
  if (const std::string system = optional_text(row, keys, "system"); !system.empty())
    messages.push_back(message("system", system));
  if (const Json* history = keys.find(row, "history")) {
    if (!history->is_array())
      keys.fail_row("{}: expected a list of [question, answer], got {}", keys.name("history"),
                    history->type_name());
    for (const Json& turn : *history) {
      const bool pair = turn.is_array() && turn.size() == 2 && turn[0].is_string() && turn[1].is_string();
      if (!pair) keys.fail_row("{}: expected pairs of texts, [question, answer]", keys.name("history"));
      messages.push_back(message("user", turn[0].get<std::string>()));
      messages.push_back(message("assistant", turn[1].get<std::string>()));
    }
  }
  const std::string input = optional_text(row, keys, "input");
  std::string question = text_of(row, keys, "instruction");
  if (!input.empty()) question += (question.empty() ? "" : "\n") + input;
  messages.push_back(message("user", question));
  messages.push_back(message("assistant", text_of(row, keys, "output")));
  return chat(std::move(messages), row, keys, "messages");
}

/// Messages of a key that has a list of them, or one.
Json list_of(const Json& value, const RowKeys& keys, const std::string& key) {
  const Json list = value.is_object() ? Json::array({value}) : value;
  return read_messages(list, keys, printable(key, 60), is_sharegpt(list, keys));
}

/// A prompt and a completion, both texts or both messages.
ChatRow joined(const Json& row, const RowKeys& keys, const Json& prompt, const Json& completion,
               const std::string& prompt_key, const std::string& completion_key) {
  if (prompt.is_string() != completion.is_string())
    keys.fail_row("{} and {}: expected two texts or two lists of messages, got {} and {}",
                  printable(prompt_key, 60), printable(completion_key, 60), prompt.type_name(),
                  completion.type_name());
  if (prompt.is_string()) {
    ChatRow out;
    out.plain = true;
    out.prompt = prompt.get<std::string>();
    out.completion = completion.get<std::string>();
    if (out.completion.empty())
      keys.fail_row("{}: expected text, got an empty one", printable(completion_key, 60));
    return out;
  }
  Json messages = list_of(prompt, keys, prompt_key);
  const size_t count = messages.size();
  for (Json& m : list_of(completion, keys, completion_key)) messages.push_back(std::move(m));
  ChatRow out = chat(std::move(messages), row, keys, fmt::format("{} + {}", prompt_key, completion_key));
  out.prompt_messages = count;
  return out;
}

const Json& needed(const Json& row, const RowKeys& keys, const char* key) {
  const Json* value = keys.find(row, key);
  if (!value) keys.fail_row("expected the key {}", printable(keys.name(key), 60));
  return *value;
}

/// Bytes that both texts begin with, whole characters, and without a space at the end, as TRL cuts them.
size_t common_bytes(const std::string& a, const std::string& b) {
  size_t n = 0;
  while (n < std::min(a.size(), b.size()) && a[n] == b[n]) ++n;
  while (n > 0 && n < a.size() && (static_cast<unsigned char>(a[n]) & 0xC0u) == 0x80u) --n;
  if (n > 0 && a[n - 1] == ' ') --n;
  return n;
}

PreferenceRow without_prompt(const Json& row, const RowKeys& keys, const Json& chosen, const Json& rejected) {
  const std::string chosen_key = keys.name("chosen"), rejected_key = keys.name("rejected");
  if (chosen.is_string() && rejected.is_string()) {
    const std::string &a = chosen.get_ref<const std::string&>(), &b = rejected.get_ref<const std::string&>();
    if (a == b) keys.fail_row("{} and {}: expected two different texts", chosen_key, rejected_key);
    const size_t common = common_bytes(a, b);
    const Json prompt = a.substr(0, common);
    return {joined(row, keys, prompt, a.substr(common), "prompt", chosen_key),
            joined(row, keys, prompt, b.substr(common), "prompt", rejected_key)};
  }
  if (!chosen.is_array() || !rejected.is_array())
    keys.fail_row("{} and {}: expected two texts or two lists of messages, got {} and {}", chosen_key,
                  rejected_key, chosen.type_name(), rejected.type_name());
  size_t common = 0;
  while (common < std::min(chosen.size(), rejected.size()) && chosen[common] == rejected[common]) ++common;
  if (common == 0)
    keys.fail_row("{} and {}: expected a common prompt, or the key {}", chosen_key, rejected_key,
                  keys.name("prompt"));
  if (common == chosen.size() || common == rejected.size())
    keys.fail_row("{} and {}: expected each to go on after the {} common messages", chosen_key, rejected_key,
                  common);
  const auto half = [&](const Json& list, const std::string& key) {
    const auto cut = list.begin() + static_cast<std::ptrdiff_t>(common);
    return joined(row, keys, Json(Json::array_t(list.begin(), cut)), Json(Json::array_t(cut, list.end())),
                  "prompt", key);
  };
  return {half(chosen, chosen_key), half(rejected, rejected_key)};
}

void check_object(const Json& row, const RowKeys& keys) {
  if (!row.is_object()) keys.fail_row("expected a JSON object, got {}", row.type_name());
  check_row_depth(row, keys);
}

}  // namespace

Json parse_row(const std::string& text, const std::string& where) {
  bool deep = false;
  const auto watch = [&](int depth, Json::parse_event_t, Json&) {
    return !(deep = deep || depth > kMaxRowDepth);
  };
  try {
    Json row = Json::parse(text, watch);
    if (deep)
      fail(ExitCode::data, "{}: expected at most {} levels of lists and objects", where, kMaxRowDepth);
    return row;
  } catch (const Json::exception& e) {
    const std::string why =
        e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 8: ..."
    const size_t at = why.find("] ");
    fail(ExitCode::data, "{}: expected JSON: {}", where,
         printable(at == std::string::npos ? why : why.substr(at + 2), 200));
  }
}

ChatRow read_chat_row(const Json& row, const RowOptions& options, const std::string& where) {
  const RowKeys keys(options, where);
  check_object(row, keys);
  switch (options.form == RowForm::by_keys ? form_of(row, keys) : options.form) {
    case RowForm::messages:
      return read_list(row, keys, "messages", false);
    case RowForm::sharegpt:
      return read_list(row, keys, "conversations", true);
    case RowForm::alpaca:
      return read_alpaca(row, keys);
    case RowForm::prompt_completion:
      return joined(row, keys, needed(row, keys, "prompt"), needed(row, keys, "completion"),
                    keys.name("prompt"), keys.name("completion"));
    default:
      return joined(row, keys, "", Json(text_of(row, keys, "text")), "prompt", keys.name("text"));
  }
}

PreferenceRow read_preference_row(const Json& row, const RowOptions& options, const std::string& where) {
  const RowKeys keys(options, where);
  check_object(row, keys);
  const Json &chosen = needed(row, keys, "chosen"), &rejected = needed(row, keys, "rejected");
  const char* prompt_key = nullptr;
  for (const char* key : {"prompt", "messages", "conversations"})
    if (!prompt_key && keys.find(row, key)) prompt_key = key;
  if (!prompt_key) return without_prompt(row, keys, chosen, rejected);
  const std::string key = keys.name(prompt_key);
  Json prompt = *keys.find(row, prompt_key);
  // A text as the prompt of messages is a user's.
  if (prompt.is_string() && !chosen.is_string())
    prompt = Json::array({message("user", prompt.get<std::string>())});
  return {joined(row, keys, prompt, chosen, key, keys.name("chosen")),
          joined(row, keys, prompt, rejected, key, keys.name("rejected"))};
}

UnpairedRow read_unpaired_row(const Json& row, const RowOptions& options, const std::string& where) {
  const RowKeys keys(options, where);
  check_object(row, keys);
  const Json& label = needed(row, keys, "label");
  if (!label.is_boolean())
    keys.fail_row("{}: expected true or false, got {}", printable(keys.name("label"), 60),
                  printable(label.dump(-1, ' ', false, Json::error_handler_t::replace), 60));
  return {joined(row, keys, needed(row, keys, "prompt"), needed(row, keys, "completion"), keys.name("prompt"),
                 keys.name("completion")),
          label.get<bool>()};
}

}  // namespace ltrain::chat
