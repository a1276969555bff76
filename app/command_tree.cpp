#include "app/command_tree.h"

#include <algorithm>

namespace ltrain::app {
namespace {

/// Values of CLI::IsMember, which the name of the option's type lists: "TEXT:{auto,json}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find(":{"), close = type.find('}', open);
  std::vector<std::string> choices;
  if (open == std::string::npos || close == std::string::npos) return choices;
  const std::string list = type.substr(open + 2, close - open - 2);
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    std::string word = list.substr(begin, end - begin);
    word = word.substr(0, word.find("->"));
    if (!word.empty()) choices.push_back(word);
    begin = end + 1;
  }
  return choices;
}

CommandOption describe(const CLI::Option& option) {
  CommandOption o;
  for (const std::string& n : option.get_lnames()) o.names.push_back("--" + n);
  for (const std::string& n : option.get_snames()) o.names.push_back("-" + n);
  if (o.names.empty()) o.positional = option.get_name(true);
  o.help = option.get_description();
  o.takes_value = option.get_items_expected_max() > 0;
  o.several = option.get_items_expected_max() > 1;
  o.required = option.get_required();
  o.choices = choices_of(option);
  return o;
}

CommandInfo describe(const CLI::App& command, const std::vector<std::string>& path) {
  CommandInfo info;
  info.path = path;
  info.help = command.get_description();
  info.footer = command.get_footer();
  for (const CLI::Option* option :
       command.get_options([](const CLI::Option* o) { return !o->get_group().empty(); })) {
    info.options.push_back(describe(*option));
    info.overrides |= info.options.back().positional == "overrides";
  }
  for (const CLI::App* next : command.get_subcommands(
           [](const CLI::App* c) { return !c->get_group().empty() && !c->get_name().empty(); })) {
    std::vector<std::string> deeper = path;
    deeper.push_back(next->get_name());
    info.commands.push_back(describe(*next, deeper));
  }
  return info;
}

}  // namespace

CommandInfo command_tree(const CLI::App& program) { return describe(program, {}); }

}  // namespace ltrain::app
