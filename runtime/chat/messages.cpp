#include "runtime/chat/messages.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/nearest_word.h"
#include "base/printable.h"
#include "runtime/chat/jinja_session.h"
#include "runtime/chat/jinja_text.h"

namespace ltrain::chat {
namespace {

const std::vector<std::string> kKeys = {
    "messages", "conversations", "role",        "content", "prompt", "completion", "chosen",  "rejected",
    "label",    "text",          "instruction", "input",   "output", "system",     "history", "tools"};
const std::vector<std::string> kRoles = {"system", "developer", "user", "assistant", "tool"};
const std::vector<std::string> kReasoning = {"reasoning_content", "thinking", "reasoning"};

std::string shown(const Json& value) {
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60);
}

bool blank(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return std::string_view(" \t\r\n").find(c) != std::string_view::npos; });
}

/// Returns whether the text of a message, perhaps in parts, is only white space.
bool blank_content(const Json& message) {
  const auto it = message.find("content");
  if (it == message.end()) return true;
  if (it->is_string()) return blank(it->get_ref<const std::string&>());
  return std::all_of(it->begin(), it->end(),
                     [](const Json& part) { return blank(part.at("text").get_ref<const std::string&>()); });
}

/// Parses JSON text inside a row. Returns a discarded value for invalid JSON.
Json parse_inner(const std::string& text) {
  bool deep = false;
  const auto watch = [&](int depth, Json::parse_event_t, Json&) {
    return !(deep = deep || depth > kMaxRowDepth);
  };
  Json json = Json::parse(text, watch, false);
  return deep ? Json(Json::value_t::discarded) : json;
}

/// Reads one message; `at` names it: "messages[2]".
class MessageReader {
 public:
  MessageReader(const RowKeys& keys, std::string at, bool sharegpt)
      : keys_(keys), at_(std::move(at)), sharegpt_(sharegpt) {}

  Json read(const Json& message) {
    if (!message.is_object()) keys_.fail_row("{}: expected an object, got {}", at_, shown(message));
    const std::string role_key = sharegpt_ ? sharegpt_key("role", "from") : keys_.name("role");
    const std::string content_key = sharegpt_ ? sharegpt_key("content", "value") : keys_.name("content");
    const std::string role = read_role(message, role_key);
    Json out = Json::object();
    out["role"] = role;
    const auto content = message.find(content_key);
    if (sharegpt_ && message.at(role_key) == "function_call") {
      if (content == message.end() || !content->is_string())
        keys_.fail_row("{}.{}: expected the call as JSON text", at_, content_key);
      out["tool_calls"] = read_calls(parsed(content->get<std::string>(), content_key));
      return out;
    }
    if (content != message.end() && !content->is_null()) out["content"] = read_content(*content, content_key);
    for (const auto& [key, value] : message.items()) {
      if (key == role_key || key == content_key || value.is_null()) continue;
      if (key == "train" || key == "weight" || key == "train_detail")
        keys_.fail_row(
            "{}.{}: loss weights of single messages are not supported; expected roles and turns in the "
            "recipe",
            at_, key);
      if (out.contains(key))
        keys_.fail_row("{}: the key {} stands beside {}", at_, printable(key, 60),
                       key == "role" ? role_key : content_key);
      out[key] = key == "tool_calls" ? read_calls(value) : value;
    }
    return with_reasoning(std::move(out));
  }

 private:
  std::string sharegpt_key(const char* standard, const char* usual) const {
    const std::string name = keys_.name(standard);
    return name == standard ? usual : name;
  }

  std::string read_role(const Json& message, const std::string& key) {
    const auto it = message.find(key);
    if (it == message.end() || it->is_null())
      keys_.fail_row("{}: expected the key {}", at_, printable(key, 60));
    if (!it->is_string()) keys_.fail_row("{}.{}: expected a text, got {}", at_, key, shown(*it));
    std::string role = it->get<std::string>();
    if (sharegpt_) {
      const std::map<std::string, std::string> roles = {
          {"human", "user"}, {"gpt", "assistant"}, {"observation", "tool"}, {"function_call", "assistant"}};
      if (const auto known = roles.find(role); known != roles.end()) return known->second;
    }
    if (std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end()) return role;
    std::vector<std::string> names = kRoles;
    if (sharegpt_) names.insert(names.end(), {"human", "gpt", "observation", "function_call"});
    const std::string near = nearest_word(role, names);
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    keys_.fail_row("{}.{} = {}: unknown role (expected {}){}", at_, key, printable(role, 60), all,
                   near.empty() ? "" : "; nearest: " + near);
  }

  Json read_content(const Json& content, const std::string& key) {
    const auto checked = [&](const Json& text, const std::string& where) {
      const std::string& s = text.get_ref<const std::string&>();
      if (valid_utf8(s) != s.size()) keys_.fail_row("{}: expected UTF-8", where);
    };
    if (content.is_string()) {
      checked(content, at_ + "." + key);
      return content;
    }
    if (!content.is_array())
      keys_.fail_row("{}.{}: expected a text or a list of parts, got {}", at_, key, shown(content));
    for (size_t i = 0; i < content.size(); ++i) {
      const Json& part = content[i];
      const std::string where = fmt::format("{}.{}[{}]", at_, key, i);
      if (!part.is_object()) keys_.fail_row("{}: expected an object, got {}", where, shown(part));
      const auto type = part.find("type"), text = part.find("text");
      if (type == part.end() || *type != "text")
        keys_.fail_row("{}.type = {}: expected \"text\", since models of text alone are trained", where,
                       type == part.end() ? "(absent)" : shown(*type));
      if (text == part.end() || !text->is_string())
        keys_.fail_row("{}.text: expected a text, got {}", where,
                       text == part.end() ? "nothing" : shown(*text));
      checked(*text, where + ".text");
    }
    return content;
  }

  Json parsed(const std::string& text, const std::string& key) {
    const Json json = parse_inner(text);
    if (json.is_discarded()) keys_.fail_row("{}.{} = {}: expected JSON", at_, key, printable(text, 60));
    return json;
  }

  /// Calls as {"type": "function", "id"?, "function": {"name", "arguments": {...}}}.
  Json read_calls(const Json& given) {
    Json list = given.is_string() ? parsed(given.get<std::string>(), "tool_calls") : given;
    if (list.is_object()) list = Json::array({list});
    if (!list.is_array() || list.empty())
      keys_.fail_row("{}.tool_calls: expected a list of calls, got {}", at_, shown(list));
    for (size_t i = 0; i < list.size(); ++i) {
      Json& call = list[i];
      const std::string where = fmt::format("{}.tool_calls[{}]", at_, i);
      if (!call.is_object()) keys_.fail_row("{}: expected an object, got {}", where, shown(call));
      if (!call.contains("function")) {
        Json wrapped = {{"type", "function"}, {"function", Json::object()}};
        for (const auto& [key, value] : call.items())
          (key == "id" || key == "type" ? wrapped : wrapped["function"])[key] = value;
        call = std::move(wrapped);
      }
      Json& function = call["function"];
      if (!function.is_object())
        keys_.fail_row("{}.function: expected an object, got {}", where, shown(function));
      const auto name = function.find("name");
      if (name == function.end() || !name->is_string() || name->get<std::string>().empty())
        keys_.fail_row("{}.function: expected the name of the function", where);
      Json& arguments = function["arguments"];
      if (arguments.is_string())
        arguments = parsed(arguments.get<std::string>(), fmt::format("tool_calls[{}].function.arguments", i));
      if (arguments.is_null()) arguments = Json::object();
      if (!arguments.is_object())
        keys_.fail_row("{}.function.arguments: expected an object, got {}", where, shown(arguments));
    }
    return list;
  }

  /// Reasoning under the names that templates read.
  Json with_reasoning(Json message) {
    for (const std::string& key : kReasoning) {
      const auto it = message.find(key);
      if (it == message.end()) continue;
      const Json reasoning = *it;
      if (!reasoning.is_string())
        keys_.fail_row("{}.{}: expected a text, got {}", at_, key, shown(reasoning));
      Json out = Json::object();
      if (!message.contains("thinking")) out["thinking"] = reasoning;
      for (const auto& [k, v] : message.items()) out[k] = v;
      out["reasoning_content"] = reasoning;
      return out;
    }
    return message;
  }

  const RowKeys& keys_;
  const std::string at_;
  const bool sharegpt_;
};

}  // namespace

const std::vector<std::string>& standard_fields() { return kKeys; }

RowKeys::RowKeys(const RowOptions& options, const std::string& where) : options_(options), where_(where) {
  for (const auto& [key, name] : options.fields) {
    if (std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end()) continue;
    const std::string near = nearest_word(key, kKeys);
    fail(ExitCode::usage, "field names: {}: expected a standard key{}", printable(key, 60),
         near.empty() ? "" : "; nearest: " + near);
  }
}

std::string RowKeys::name(const std::string& key) const {
  const auto it = options_.fields.find(key);
  return it == options_.fields.end() ? key : it->second;
}

const Json* RowKeys::find(const Json& object, const std::string& key) const {
  const auto it = object.find(name(key));
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Json read_messages(const Json& list, const RowKeys& keys, const std::string& key, bool sharegpt) {
  if (!list.is_array()) keys.fail_row("{}: expected a list of messages, got {}", key, shown(list));
  if (list.empty()) keys.fail_row("{}: expected at least one message", key);
  Json out = Json::array();
  for (size_t i = 0; i < list.size(); ++i)
    out.push_back(MessageReader(keys, fmt::format("{}[{}]", key, i), sharegpt).read(list[i]));
  return out;
}

void check_messages(const Json& messages, const RowKeys& keys, const std::string& key) {
  std::set<std::string> open;  // ids of calls without an answer
  size_t unanswered = 0, calls_at = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const std::string role = message.at("role").get<std::string>();
    const bool calls = message.contains("tool_calls");
    if ((role == "system" || role == "developer") && i > 0) {
      const std::string first = messages[0].at("role").get<std::string>();
      keys.fail_row("{}[{}].role = {}: expected system or developer only as the first message{}", key, i,
                    role, first == "system" || first == "developer" ? ", got two" : "");
    }
    if (calls && role != "assistant")
      keys.fail_row("{}[{}].tool_calls: expected calls only from role assistant, got {}", key, i, role);
    const bool reasons = message.contains("reasoning_content");
    if (role != "tool" && !calls && !reasons && blank_content(message))
      keys.fail_row("{}[{}].content: expected text, got an empty turn of role {}", key, i, role);
    if (role == "tool") {
      const bool after_assistant =
          i > 0 && (messages[i - 1].at("role") == "assistant" || messages[i - 1].at("role") == "tool");
      if (!after_assistant)
        keys.fail_row("{}[{}].role = tool: expected it after an assistant message or another answer", key, i);
      if (!message.contains("content"))
        keys.fail_row("{}[{}].content: expected the answer of the tool", key, i);
      const auto id = message.find("tool_call_id");
      if (id != message.end() && !open.empty() &&
          (!id->is_string() || open.erase(id->get<std::string>()) == 0))
        keys.fail_row("{}[{}].tool_call_id = {}: expected the id of a call of {}[{}] without an answer", key,
                      i, shown(*id), key, calls_at);
      if (unanswered > 0) --unanswered;
      continue;
    }
    if (unanswered > 0)
      keys.fail_row(
          "{}[{}].tool_calls: {} calls have no answer (expected messages of role tool, got {}[{}] of role "
          "{})",
          key, calls_at, unanswered, key, i, role);
    open.clear();
    if (!calls) continue;
    calls_at = i;
    unanswered = message.at("tool_calls").size();
    for (const Json& call : message.at("tool_calls"))
      if (const auto id = call.find("id"); id != call.end() && id->is_string())
        open.insert(id->get<std::string>());
  }
  if (unanswered > 0 && calls_at + 1 < messages.size())
    keys.fail_row("{}[{}].tool_calls: {} calls have no answer", key, calls_at, unanswered);
}

void check_row_depth(const Json& value, const RowKeys& keys) {
  std::vector<std::pair<const Json*, int>> open = {{&value, 1}};
  while (!open.empty()) {
    const auto [json, depth] = open.back();
    open.pop_back();
    if (depth > kMaxRowDepth) keys.fail_row("expected at most {} levels of lists and objects", kMaxRowDepth);
    if (json->is_structured())
      for (const Json& item : *json)
        if (item.is_structured()) open.emplace_back(&item, depth + 1);
  }
}

Json read_tools(const Json& row, const RowKeys& keys) {
  const Json* given = keys.find(row, "tools");
  if (!given) return nullptr;
  Json tools = *given;
  const std::string key = keys.name("tools");
  if (tools.is_string()) {
    const std::string text = tools.get<std::string>();
    if (blank(text)) return nullptr;
    tools = parse_inner(text);
    if (tools.is_discarded()) keys.fail_row("{} = {}: expected JSON", key, printable(text, 60));
  }
  if (!tools.is_array()) keys.fail_row("{}: expected a list of tools, got {}", key, shown(tools));
  if (tools.empty()) return nullptr;
  for (size_t i = 0; i < tools.size(); ++i) {
    Json& tool = tools[i];
    if (!tool.is_object()) keys.fail_row("{}[{}]: expected an object, got {}", key, i, shown(tool));
    if (!tool.contains("function") && tool.contains("name"))
      tool = Json({{"type", "function"}, {"function", tool}});
  }
  return tools;
}

}  // namespace ltrain::chat
