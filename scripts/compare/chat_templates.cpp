// Renders chat templates for compare_chat_templates.py: one JSON object a line on stdin, {"template", "date",
// "variables": {...}}, and one on stdout, {"text", "generated": [[begin, end]...], "data": [[begin, end]...]}
// in bytes, or
// {"error"}. A line with "template": null takes the template of the line before.
#include <iostream>
#include <optional>

#include "runtime/chat/jinja.h"

using namespace ltrain::chat;
using Json = nlohmann::ordered_json;

int main() {
  std::ios::sync_with_stdio(false);
  std::optional<JinjaTemplate> parsed;
  std::string line, parse_error;
  while (std::getline(std::cin, line)) {
    Json reply;
    try {
      const Json request = Json::parse(line);
      if (!request.at("template").is_null()) {
        parsed.reset();
        parsed.emplace(request.at("template").get<std::string>(), "template");
      }
      if (!parsed) throw std::runtime_error("no template");
      std::vector<JinjaVariable> variables;
      for (const auto& [name, value] : request.at("variables").items()) {
        using Source = JinjaVariable::Source;
        const Source source = name == "messages" ? Source::messages
                              : name == "tools"  ? Source::data
                                                 : Source::setting;
        variables.push_back({name, value, source});
      }
      const Rendered done = parsed->render(variables, request.at("date").get<std::string>());
      reply["text"] = done.text;
      reply["generated"] = reply["data"] = Json::array();
      for (const Span& span : done.spans) {
        if (span.generation) reply["generated"].push_back({span.begin, span.end});
        if (span.from_data) reply["data"].push_back({span.begin, span.end});
      }
    } catch (const std::exception& e) {
      reply["error"] = e.what();
    }
    std::cout << reply.dump() << "\n" << std::flush;
  }
}
