#include "runtime/chat/chat_template.h"

#include <filesystem>

#include "base/error.h"
#include "base/nearest_word.h"
#include "base/printable.h"
#include "runtime/files/file.h"
#include "runtime/files/strict_json.h"

namespace ltrain::chat {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;

/// tokenizer_config.json of a folder; null without one.
nlohmann::json config_of(const std::string& folder) {
  const std::string path = (fs::path(folder) / "tokenizer_config.json").string();
  if (folder.empty() || !data::file_exists(path)) return nullptr;
  std::string error;
  nlohmann::json config = data::parse_strict(data::read_whole(path, kMaxConfigBytes), 64, error);
  if (!error.empty()) fail(ExitCode::data, "{}: {}", path, error);
  if (!config.is_object()) fail(ExitCode::data, "{}: expected an object", path);
  return config;
}

/// Keys such as bos_token, whose values are a text or an object with a "content".
Json special_tokens_of(const nlohmann::json& config) {
  Json tokens = Json::object();
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    const nlohmann::json& text = value.is_object() && value.contains("content") ? value.at("content") : value;
    if (text.is_string()) tokens[key] = text.get<std::string>();
  }
  return tokens;
}

/// Templates of tokenizer_config.json: one text, or a list of {"name", "template"}.
struct Sources {
  std::string plain, tools;  ///< "": none
  std::string where;
};

Sources sources_of_config(const nlohmann::json& config, const std::string& folder) {
  Sources found;
  found.where = (fs::path(folder) / "tokenizer_config.json").string() + ": chat_template";
  const auto it = config.is_object() ? config.find("chat_template") : config.end();
  if (it == config.end() || it->is_null()) return found;
  if (it->is_string()) {
    found.plain = it->get<std::string>();
    return found;
  }
  if (!it->is_array())
    fail(ExitCode::data, "{}: expected a text or a list of templates, got {}", found.where, it->type_name());
  std::string names;
  for (const nlohmann::json& one : *it) {
    const bool good = one.is_object() && one.contains("name") && one.at("name").is_string() &&
                      one.contains("template") && one.at("template").is_string();
    if (!good) fail(ExitCode::data, "{}: expected objects with a name and a template", found.where);
    const std::string name = one.at("name").get<std::string>();
    names += (names.empty() ? "" : ", ") + printable(name, 40);
    if (name == "default") found.plain = one.at("template").get<std::string>();
    if (name == "tool_use") found.tools = one.at("template").get<std::string>();
  }
  if (found.plain.empty())
    fail(ExitCode::data, "{}: expected a template named default, got {}", found.where,
         names.empty() ? "none" : names);
  return found;
}

std::string read_template(const std::string& path) { return data::read_whole(path, kMaxTemplateBytes); }

Sources sources_of_folder(const nlohmann::json& config, const std::string& folder) {
  const std::string file = (fs::path(folder) / "chat_template.jinja").string();
  if (!data::file_exists(file)) return sources_of_config(config, folder);
  Sources found;
  found.where = file;
  found.plain = read_template(file);
  const std::string tools = (fs::path(folder) / "additional_chat_templates" / "tool_use.jinja").string();
  if (data::file_exists(tools)) found.tools = read_template(tools);
  return found;
}

}  // namespace

Rendered ChatTemplate::render(const ChatRow& row, const Json& messages, bool add_generation_prompt,
                              const std::string& date) const {
  using Source = JinjaVariable::Source;
  std::vector<JinjaVariable> variables = {{"messages", messages, Source::messages},
                                          {"tools", row.tools, Source::data},
                                          {"documents", nullptr, Source::data},
                                          {"add_generation_prompt", add_generation_prompt, Source::setting}};
  for (const auto& [name, value] : special_tokens_.items())
    variables.push_back({name, value, Source::setting});
  if (row.settings.is_object())
    for (const auto& [name, value] : row.settings.items()) {
      for (const char* own : {"messages", "tools", "add_generation_prompt"})
        if (name == own) fail(ExitCode::data, "chat_template_kwargs: {} cannot be set there", name);
      std::erase_if(variables, [&](const JinjaVariable& v) { return v.name == name; });
      variables.push_back({name, value, Source::data});
    }
  return of(!row.tools.is_null()).render(variables, date);
}

ChatTemplate load_chat_template(const std::string& wanted, const std::string& folder) {
  const nlohmann::json config = config_of(folder);
  Json tokens = special_tokens_of(config.is_null() ? nlohmann::json::object() : config);
  if (!wanted.empty()) {
    if (const char* source = builtin_template(wanted))
      return {JinjaTemplate(source, wanted), std::nullopt, std::move(tokens)};
    if (data::file_exists(wanted))
      return {JinjaTemplate(read_template(wanted), wanted), std::nullopt, std::move(tokens)};
    std::string names;
    for (const std::string& name : builtin_template_names()) names += (names.empty() ? "" : ", ") + name;
    const std::string near = nearest_word(wanted, builtin_template_names());
    fail(ExitCode::usage, "chat template {}: expected a file or one of {}{}", printable(wanted, 200), names,
         near.empty() ? "" : "; nearest: " + near);
  }
  if (folder.empty())
    fail(ExitCode::usage,
         "chat template: this tokenizer has no folder; expected a file or a name such as chatml");
  const Sources found = sources_of_folder(config, folder);
  if (found.plain.empty())
    fail(ExitCode::usage,
         "{}: expected chat_template.jinja, or chat_template in tokenizer_config.json; else name a file or a "
         "built-in template such as chatml",
         printable(folder, 200));
  std::optional<JinjaTemplate> tools;
  if (!found.tools.empty()) tools.emplace(found.tools, found.where + " (tool_use)");
  return {JinjaTemplate(found.plain, found.where), std::move(tools), std::move(tokens)};
}

}  // namespace ltrain::chat
