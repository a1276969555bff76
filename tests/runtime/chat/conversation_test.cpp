#include "runtime/chat/conversation.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace ltrain;
using namespace ltrain::chat;
using Catch::Matchers::Contains;

namespace {

Json json_row(const std::string& text) { return parse_row(text, "d.jsonl:1"); }
ChatRow read(const std::string& text, const RowOptions& options = {}) {
  return read_chat_row(json_row(text), options, "d.jsonl:1");
}

std::string error(const std::string& text, const RowOptions& options = {}) {
  try {
    read(text, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

template <class Read>
std::string error_of(Read reader, const std::string& text) {
  try {
    reader(json_row(text), RowOptions{}, "d.jsonl:1");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// A row of messages; `rest` comes after a user's message.
std::string after_user(const std::string& rest) {
  return R"({"messages": [{"role": "user", "content": "q"}, )" + rest + "]}";
}

}  // namespace

TEST_CASE("each form of a row gives messages") {
  const std::string two = R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])";
  const std::string three =
      R"([{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}])";
  CHECK(read(R"({"messages": )" + two + "}").messages.dump() == two);
  CHECK(
      read(
          R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"})")
          .messages.dump() == three);
  CHECK(read(R"({"conversations": )" + two + "}").messages.dump() == two);
  CHECK(read(R"({"messages": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})")
            .messages.dump() == two);
  CHECK(read(R"({"instruction": "q", "input": "", "output": "a"})").messages.dump() == two);
  CHECK(read(R"({"instruction": "q", "output": "a", "system": "s"})").messages.dump() == three);
  CHECK(read(R"({"instruction": "q", "input": "i", "output": "a"})").messages[0]["content"] == "q\ni");
  CHECK(read(R"({"instruction": "q", "output": "a", "history": [["x", "y"]]})").messages.size() == 4);
  const ChatRow completion = read(
      R"({"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]})");
  CHECK(completion.messages.dump() == two);
  CHECK(completion.prompt_messages == 1);
  const ChatRow plain = read(R"({"prompt": "p", "completion": "c"})");
  CHECK((plain.plain && plain.prompt == "p" && plain.completion == "c"));
  const ChatRow text = read(R"({"text": "t", "id": 5})");
  CHECK((text.plain && text.prompt.empty() && text.completion == "t"));
}

TEST_CASE("field names of a file replace the standard keys of a row") {
  const RowOptions options{RowForm::by_keys,
                           {{"messages", "dialog"}, {"role", "speaker"}, {"content", "says"}}};
  CHECK(read(R"({"dialog": [{"speaker": "user", "says": "q"}, {"speaker": "assistant", "says": "a"}]})",
             options)
            .messages.dump() == R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])");
  CHECK_THAT(error(R"({"dialog": [{"role": "user", "says": "q"}]})", options),
             Contains("dialog[0]: expected the key speaker"));
  CHECK_THAT(error(R"({"text": "x"})", {RowForm::by_keys, {{"mesages", "x"}}}),
             Contains("mesages: expected a standard key; nearest: messages"));
  CHECK(read(R"({"q": "p", "a": "c"})", {RowForm::by_keys, {{"prompt", "q"}, {"completion", "a"}}})
            .completion == "c");
}

TEST_CASE("calls and tools are read as objects and as JSON text") {
  const std::string call =
      R"({"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": )";
  const std::string answer =
      R"(}}]}, {"role": "tool", "tool_call_id": "1", "content": "r"}, {"role": "assistant", "content": "a"})";
  const Json object = read(after_user(call + R"({"b": 1, "a": 2})" + answer)).messages;
  CHECK(object == read(after_user(call + R"("{\"b\": 1, \"a\": 2}")" + answer)).messages);
  CHECK(object[1]["tool_calls"][0]["function"]["arguments"].dump() == R"({"b":1,"a":2})");
  CHECK_FALSE(object[1].contains("content"));
  const Json flat =
      read(after_user(R"({"role": "assistant", "tool_calls": {"name": "f", "arguments": {}}})")).messages;
  CHECK(flat[1]["tool_calls"].dump() == R"([{"type":"function","function":{"name":"f","arguments":{}}}])");
  const Json shared =
      read(
          R"({"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},
    {"from": "observation", "value": "r"}, {"from": "gpt", "value": "a"}], "tools": "[{\"name\": \"f\", \"parameters\": {}}]"})")
          .messages;
  CHECK(shared[1]["tool_calls"][0]["function"]["arguments"]["x"] == 1);
  CHECK(shared[2]["role"] == "tool");
  CHECK(read(R"({"messages": [{"role": "user", "content": "q"}], "tools": "[{\"name\": \"f\"}]"})")
            .tools.dump() == R"([{"type":"function","function":{"name":"f"}}])");
  CHECK(read(R"({"messages": [{"role": "user", "content": "q"}], "tools": []})").tools.is_null());
}

TEST_CASE("reasoning stands under the names that templates read, and null keys are dropped") {
  const Json messages =
      read(after_user(R"({"role": "assistant", "content": "a", "reasoning": "r", "name": null})")).messages;
  CHECK(messages[1].dump() ==
        R"({"thinking":"r","role":"assistant","content":"a","reasoning":"r","reasoning_content":"r"})");
}

TEST_CASE("a row that breaks a rule is refused with row, key and rule") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"([1])", "d.jsonl:1: expected a JSON object"},
      {R"({"a": 1})",
       "expected one of the keys messages, conversations, instruction, completion or text, got a"},
      {R"({"messages": [], "text": "x"})", "the keys messages and text belong to two forms"},
      {R"({"chosen": "a", "rejected": "b"})", "expected a row of preferences"},
      {R"({"messages": []})", "messages: expected at least one message"},
      {R"({"messages": {}})", "messages: expected a list of messages"},
      {R"({"messages": ["x"]})", "messages[0]: expected an object, got \"x\""},
      {R"({"messages": [{"content": "x"}]})", "messages[0]: expected the key role"},
      {R"({"messages": [{"role": 1, "content": "x"}]})", "messages[0].role: expected a text, got 1"},
      {R"({"messages": [{"role": "asistant", "content": "x"}]})",
       "messages[0].role = asistant: unknown role (expected system, developer, user, assistant, tool); "
       "nearest: assistant"},
      {R"({"conversations": [{"from": "humn", "value": "x"}]})", "nearest: human"},
      {after_user(R"({"role": "system", "content": "s"})"),
       "messages[1].role = system: expected system or developer only as the first message"},
      {R"({"messages": [{"role": "system", "content": "s"}, {"role": "system", "content": "s"}]})",
       "messages[1].role = system: expected system or developer only as the first message, got two"},
      {R"({"messages": [{"role": "user", "content": " \n"}]})",
       "messages[0].content: expected text, got an empty turn of role user"},
      {R"({"messages": [{"role": "user"}]})", "got an empty turn"},
      {R"({"messages": [{"role": "user", "content": []}]})", "got an empty turn"},
      {R"({"messages": [{"role": "user", "content": 5}]})",
       "messages[0].content: expected a text or a list of parts, got 5"},
      {R"({"messages": [{"role": "user", "content": {"text": "x"}}]})", "expected a text or a list of parts"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})",
       "messages[0].content[0].type = \"image\": expected \"text\""},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
       "messages[0].content[0].text: expected a text, got nothing"},
      {R"({"messages": [{"role": "user", "content": "x", "weight": 0}]})",
       "messages[0].weight: loss weights of single messages are not supported"},
      {R"({"messages": [{"role": "user", "content": "x", "tool_calls": [{"name": "f"}]}]})",
       "expected calls only from role assistant, got user"},
      {after_user(R"({"role": "assistant", "tool_calls": []})"),
       "messages[1].tool_calls: expected a list of calls"},
      {after_user(R"({"role": "assistant", "tool_calls": [{}]})"),
       "messages[1].tool_calls[0].function: expected the name of the function"},
      {after_user(R"({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{x"}]})"),
       "expected JSON"},
      {after_user(R"({"role": "assistant", "tool_calls": [{"name": "f", "arguments": [1]}]})"),
       "arguments: expected an object"},
      {after_user(
           R"({"role": "assistant", "tool_calls": [{"name": "f"}]}, {"role": "user", "content": "x"})"),
       "messages[1].tool_calls: 1 calls have no answer (expected messages of role tool, got messages[2] of "
       "role user)"},
      {after_user(
           R"({"role": "assistant", "tool_calls": [{"name": "f"}, {"name": "g"}]}, {"role": "tool", "content": "x"})"),
       "messages[1].tool_calls: 1 calls have no answer"},
      {after_user(
           R"({"role": "assistant", "tool_calls": [{"id": "1", "name": "f"}]}, {"role": "tool", "tool_call_id": "2", "content": "x"})"),
       "tool_call_id = \"2\": expected the id of a call of messages[1]"},
      {after_user(R"({"role": "tool", "content": "x"})"),
       "messages[1].role = tool: expected it after an assistant message"},
      {R"({"messages": [{"role": "user", "content": "q"}], "tools": "{"})", "tools = {: expected JSON"},
      {R"({"messages": [{"role": "user", "content": "q"}], "tools": {}})", "tools: expected a list of tools"},
      {R"({"messages": [{"role": "user", "content": "q"}], "chat_template_kwargs": 1})",
       "chat_template_kwargs: expected an object"},
      {R"({"instruction": "q"})", "expected the key output"},
      {R"({"instruction": 1, "output": "a"})", "instruction: expected a text, got number"},
      {R"({"instruction": "q", "output": "a", "history": ["x"]})", "history: expected pairs of texts"},
      {R"({"prompt": "p", "completion": [{"role": "assistant", "content": "a"}]})",
       "prompt and completion: expected two texts or two lists of messages"},
      {R"({"prompt": "p", "completion": ""})", "completion: expected text, got an empty one"},
      {R"({"completion": "c"})", "expected the key prompt"},
      {R"({"text": null})", "expected one of the keys"},
  };
  for (const auto& [text, message] : cases) {
    INFO(text);
    CHECK_THAT(error(text), Contains(message));
  }
}

TEST_CASE("a row with hostile JSON is refused") {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[";
  CHECK_THROWS_WITH(parse_row(deep, "d:1"), Contains("d:1: "));
  CHECK_THROWS_WITH(parse_row("{\"a\": }", "d:1"), Contains("d:1: expected JSON"));
  CHECK_THROWS_WITH(parse_row("{\"a\": \"\xff\"}", "d:1"), Contains("expected JSON"));
  Json nested = "x";
  for (int i = 0; i < 300; ++i) nested = Json::array({std::move(nested)});
  CHECK_THROWS_WITH(read_chat_row({{"messages", nested}}, {}, "d:1"),
                    Contains("expected at most 100 levels"));
  std::string arguments;
  for (int i = 0; i < 5'000; ++i) arguments += "[";
  CHECK_THAT(error(after_user(R"({"role": "assistant", "tool_calls": [{"name": "f", "arguments": ")" +
                              arguments + R"("}]})")),
             Contains("expected JSON"));
}

TEST_CASE("a row of preferences has one prompt and two answers") {
  const auto read_both = [](const std::string& text) {
    return read_preference_row(json_row(text), {}, "d.jsonl:1");
  };
  const PreferenceRow texts = read_both(R"({"prompt": "p", "chosen": "c", "rejected": "r"})");
  CHECK((texts.chosen.prompt == "p" && texts.chosen.completion == "c" && texts.rejected.completion == "r"));
  const PreferenceRow common = read_both(R"({"chosen": "The sky is blue", "rejected": "The sky is green"})");
  CHECK((common.chosen.prompt == "The sky is" && common.chosen.completion == " blue" &&
         common.rejected.completion == " green"));
  CHECK(read_both(R"({"chosen": "é1", "rejected": "è1"})").chosen.prompt.empty());
  const std::string user = R"({"role": "user", "content": "q"})",
                    good = R"({"role": "assistant", "content": "c"})",
                    bad = R"({"role": "assistant", "content": "r"})";
  const PreferenceRow lists =
      read_both("{\"chosen\": [" + user + "," + good + "], \"rejected\": [" + user + "," + bad + "]}");
  CHECK((lists.chosen.prompt_messages == 1 && lists.chosen.messages.size() == 2 &&
         lists.rejected.messages[1]["content"] == "r"));
  const PreferenceRow explicit_prompt =
      read_both("{\"prompt\": [" + user + "], \"chosen\": [" + good + "], \"rejected\": [" + bad + "]}");
  CHECK(explicit_prompt.chosen.messages == lists.chosen.messages);
  CHECK(read_both("{\"prompt\": \"q\", \"chosen\": [" + good + "], \"rejected\": [" + bad + "]}")
            .rejected.messages == lists.rejected.messages);
  const PreferenceRow shared = read_both(
      R"({"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "c"}, "rejected": {"from": "gpt", "value": "r"}})");
  CHECK(shared.chosen.messages == lists.chosen.messages);
  const auto refused = [](const std::string& text) { return error_of(read_preference_row, text); };
  CHECK_THAT(refused(R"({"chosen": "a"})"), Contains("expected the key rejected"));
  CHECK_THAT(refused(R"({"chosen": "a", "rejected": "a"})"), Contains("expected two different texts"));
  CHECK_THAT(refused("{\"chosen\": [" + user + "], \"rejected\": [" + user + "," + bad + "]}"),
             Contains("expected each to go on after the 1 common messages"));
  CHECK_THAT(refused("{\"chosen\": [" + good + "], \"rejected\": [" + user + "]}"),
             Contains("expected a common prompt"));
}

TEST_CASE("an unpaired row has a label") {
  const UnpairedRow one =
      read_unpaired_row(json_row(R"({"prompt": "p", "completion": "c", "label": true})"), {}, "d.jsonl:1");
  CHECK((one.good && one.row.completion == "c"));
  CHECK_FALSE(read_unpaired_row(json_row(R"({"prompt": "p", "completion": "c", "kto_tag": false})"),
                                {RowForm::by_keys, {{"label", "kto_tag"}}}, "d")
                  .good);
  CHECK_THAT(error_of(read_unpaired_row, R"({"prompt": "p", "completion": "c", "label": 1})"),
             Contains("label: expected true or false, got 1"));
}
