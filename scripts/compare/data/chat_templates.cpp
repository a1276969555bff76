// Renders and encodes chat templates for compare_chat_templates.py, one JSON object a line in and out.
//
// {"template", "date", "variables": {...}} gives {"text", "generated": [[begin, end]...], "data": [[begin,
// end]...]} in bytes. {"template", "date", "row", "tokenizer": FILE, "after_stop"} gives {"text", "ids",
// "ends", "trained", "blocks"}. Both may give {"error"}. A template that is null is the one of the line
// before; {"builtin": NAME} names one.
#include <iostream>
#include <map>
#include <optional>

#include "runtime/chat/chat_tokens.h"

using namespace ltrain;
using namespace ltrain::chat;

namespace {

Json rendered(const JinjaTemplate& parsed, const Json& request) {
  std::vector<JinjaVariable> variables;
  for (const auto& [name, value] : request.at("variables").items()) {
    using Source = JinjaVariable::Source;
    const Source source = name == "messages" ? Source::messages
                          : name == "tools"  ? Source::data
                                             : Source::setting;
    variables.push_back({name, value, source});
  }
  const Rendered done = parsed.render(variables, request.at("date").get<std::string>());
  Json reply = {{"text", done.text}, {"generated", Json::array()}, {"data", Json::array()}};
  for (const Span& span : done.spans) {
    if (span.generation) reply["generated"].push_back({span.begin, span.end});
    if (span.from_data) reply["data"].push_back({span.begin, span.end});
  }
  return reply;
}

Json encoded(const ChatTemplate& chat_template, const Json& request, data::Tokenizer& tokenizer) {
  MaskOptions options;
  options.after_stop = request.value("after_stop", false);
  const ChatRow row = read_chat_row(request.at("row"), {}, "row");
  const ChatTokens t =
      tokenize_chat(tokenizer, chat_template, row, options, request.at("date").get<std::string>(), "row");
  return {{"text", t.text},
          {"ids", t.ids},
          {"ends", t.ends},
          {"trained", t.trained},
          {"blocks", t.by_generation},
          {"split", t.split_tokens}};
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  std::optional<JinjaTemplate> parsed;
  std::map<std::string, std::unique_ptr<data::Tokenizer>> tokenizers;
  std::string line;
  while (std::getline(std::cin, line)) {
    Json reply;
    try {
      const Json request = Json::parse(line);
      if (const Json& source = request.at("template"); !source.is_null()) {
        parsed.reset();
        const char* builtin =
            source.is_object() ? builtin_template(source.at("builtin").get<std::string>()) : nullptr;
        parsed.emplace(builtin ? std::string(builtin) : source.get<std::string>(), "template");
      }
      if (!parsed) throw std::runtime_error("no template");
      const Json specials = request.value("specials", Json::object());
      const ChatTemplate chat_template(*parsed, std::nullopt, specials);
      if (request.contains("row")) {
        const std::string file = request.at("tokenizer").get<std::string>();
        auto& tokenizer = tokenizers[file];
        if (!tokenizer) tokenizer = data::make_huggingface_tokenizer(file);
        reply = encoded(chat_template, request, *tokenizer);
      } else {
        reply = rendered(*parsed, request);
      }
    } catch (const std::exception& e) {
      reply["error"] = e.what();
    }
    std::cout << reply.dump() << "\n" << std::flush;
  }
}
