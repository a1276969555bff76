// Completion scripts of bash, zsh and fish. A script has the tables of all commands, and walks the words that
// are on the line to find the command: it starts no program.
#include <fmt/format.h>

#include <algorithm>

#include "app/command_tree.h"
#include "base/error.h"

namespace ltrain::app {
namespace {

std::string words_of(const std::vector<std::string>& words, std::string_view between = " ") {
  return fmt::format("{}", fmt::join(words, between));
}

std::vector<std::string> option_names(const CommandInfo& c) {
  std::vector<std::string> names;
  for (const CommandOption& o : c.options) names.insert(names.end(), o.names.begin(), o.names.end());
  return names;
}

/// Words that follow a command, with help: its commands, and the choices of its positional arguments.
std::vector<std::pair<std::string, std::string>> words_after(const CommandInfo& c) {
  std::vector<std::pair<std::string, std::string>> words;
  for (const CommandInfo& next : c.commands) words.emplace_back(next.path.back(), next.help);
  for (const CommandOption& o : c.options)
    if (!o.positional.empty())
      for (const std::string& choice : o.choices) words.emplace_back(choice, o.help);
  return words;
}

std::vector<std::string> names_after(const CommandInfo& c) {
  std::vector<std::string> names;
  for (const auto& [name, help] : words_after(c)) names.push_back(name);
  return names;
}

std::string first_sentence(const std::string& help) {
  const size_t end = std::min(help.find('\n'), help.find(". "));
  return help.substr(0, end);
}

/// Text in single quotes for all three shells.
std::string quoted(const std::string& text, bool fish) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'')
      out += fish ? "\\'" : "'\\''";
    else if (c == '\\' && fish)
      out += "\\\\";
    else
      out += c;
  }
  return out + "'";
}

std::string path_key(const CommandInfo& c) { return words_of(c.path); }

/// Lines of a `case` on the command that has been typed: its commands, its options, and values of options.
std::string bash_cases(const CommandInfo& program) {
  std::string text;
  for_each_command(program, [&](const CommandInfo& c) {
    text += fmt::format("    {}) commands={} options={} overrides={} ;;\n", quoted(path_key(c), false),
                        quoted(words_of(names_after(c)), false), quoted(words_of(option_names(c)), false),
                        c.overrides ? 1 : 0);
  });
  return text;
}

std::string bash_values(const CommandInfo& program) {
  std::string text;
  for_each_command(program, [&](const CommandInfo& c) {
    for (const CommandOption& o : c.options)
      for (const std::string& name : o.names)
        if (!o.choices.empty())
          text += fmt::format("    {}) values={} ;;\n", quoted(path_key(c) + " " + name, false),
                              quoted(words_of(o.choices), false));
  });
  return text;
}

/// bash, and zsh by its bashcompinit.
std::string bash_script(const CommandInfo& program, const std::vector<std::string>& keys) {
  return "# Completion of ltrain for bash: `source <(ltrain completion bash)`.\n"
         "_ltrain() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
         "  local commands='' options='' values='' overrides=0 path='' word\n"
         "  local -i i\n"
         "  COMPREPLY=()\n"
         "  _ltrain_table ''\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    word=${COMP_WORDS[i]}\n"
         "    [[ $word == -* || \" $commands \" != *\" $word \"* ]] && continue\n"
         "    path=${path:+$path }$word\n"
         "    _ltrain_table \"$path\"\n"
         "  done\n"
         "  case \"$path $before\" in\n" +
         bash_values(program) +
         "  esac\n"
         "  if [[ -n $values ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$values\" -- \"$current\"))\n"
         "  elif [[ $current == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$options\" -- \"$current\"))\n"
         "  elif [[ -n $commands ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$commands\" -- \"$current\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
         "    if ((overrides)) && [[ -n $current && $current != *=* && $current != */* ]]; then\n"
         "      COMPREPLY+=($(compgen -S = -W \"$_ltrain_keys\" -- \"$current\"))\n"
         "      [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null\n"
         "    fi\n"
         "  fi\n"
         "}\n"
         "_ltrain_table() {\n"
         "  case \"$1\" in\n" +
         bash_cases(program) + "  esac\n}\n_ltrain_keys=" + quoted(words_of(keys), false) +
         "\ncomplete -o filenames -F _ltrain ltrain\n";
}

/// Entries of _describe: 'name:help'.
std::string zsh_entry(const std::string& name, const std::string& help) {
  std::string entry;
  for (const char c : name) entry += c == ':' ? "\\:" : std::string(1, c);
  return quoted(entry + ":" + first_sentence(help), false);
}

std::string zsh_script(const CommandInfo& program, const std::vector<std::string>& keys) {
  std::string text =
      "#compdef ltrain\n"
      "# Completion of ltrain for zsh: in a folder of $fpath as _ltrain, or `source <(ltrain completion "
      "zsh)`.\n"
      "_ltrain_table() {\n"
      "  commands=() options=() overrides=0\n"
      "  case \"$1\" in\n";
  for_each_command(program, [&](const CommandInfo& c) {
    text += fmt::format("    {})\n      commands=(", quoted(path_key(c), false));
    for (const auto& [name, help] : words_after(c)) text += " " + zsh_entry(name, help);
    text += ")\n      options=(";
    for (const CommandOption& o : c.options)
      for (const std::string& name : o.names) text += " " + zsh_entry(name, o.help);
    text += fmt::format(")\n      overrides={} ;;\n", c.overrides ? 1 : 0);
  });
  text +=
      "  esac\n"
      "}\n"
      "_ltrain() {\n"
      "  local -a commands options values\n"
      "  local path_='' word overrides=0\n"
      "  integer i\n"
      "  _ltrain_table ''\n"
      "  for ((i = 2; i < CURRENT; i++)); do\n"
      "    word=$words[i]\n"
      "    [[ $word == -* || -z ${(M)commands:#$word:*} ]] && continue\n"
      "    path_=${path_:+$path_ }$word\n"
      "    _ltrain_table \"$path_\"\n"
      "  done\n"
      "  case \"$path_ $words[CURRENT-1]\" in\n";
  for_each_command(program, [&](const CommandInfo& c) {
    for (const CommandOption& o : c.options)
      for (const std::string& name : o.names)
        if (!o.choices.empty()) {
          text += fmt::format("    {}) values=(", quoted(path_key(c) + " " + name, false));
          for (const std::string& v : o.choices) text += " " + quoted(v, false);
          text += ") ;;\n";
        }
  });
  text +=
      "  esac\n"
      "  if (( $#values )); then compadd -a values\n"
      "  elif [[ $words[CURRENT] == -* ]]; then _describe option options\n"
      "  elif (( $#commands )); then _describe command commands\n"
      "  else\n"
      "    _files\n"
      "    (( overrides )) && [[ -n $words[CURRENT] && $words[CURRENT] != *=* ]] && compadd -S = -- "
      "$=_ltrain_keys\n"
      "  fi\n"
      "}\n"
      "typeset -g _ltrain_keys=" +
      quoted(words_of(keys), false) +
      "\n"
      "if [[ $funcstack[1] == _ltrain ]]; then _ltrain \"$@\"; else compdef _ltrain ltrain; fi\n";
  return text;
}

/// Condition of fish: the words of `path` are there, and no command below it yet.
std::string fish_condition(const CommandInfo& c) {
  std::string text = c.path.empty() ? "" : fmt::format("__ltrain_path {}", words_of(c.path));
  if (c.path.empty()) text = "__ltrain_path";
  return quoted(text, true);
}

std::string fish_script(const CommandInfo& program, const std::vector<std::string>& keys) {
  std::string text =
      "# Completion of ltrain for fish: `ltrain completion fish | source`.\n"
      "set -g __ltrain_keys " +
      words_of(keys) + "\nset -g __ltrain_paths";
  for_each_command(program, [&](const CommandInfo& c) {
    if (!c.path.empty()) text += " " + quoted(path_key(c), true);
  });
  text +=
      "\n# True if the commands on the line are exactly the arguments.\n"
      "function __ltrain_path\n"
      "  set -l at ''\n"
      "  for word in (commandline -opc)[2..-1]\n"
      "    set -l next (string trim \"$at $word\")\n"
      "    contains -- $next $__ltrain_paths; and set at $next\n"
      "  end\n"
      "  test \"$at\" = \"$argv\"\n"
      "end\n";
  for_each_command(program, [&](const CommandInfo& c) {
    const std::string when = fish_condition(c);
    if (!words_after(c).empty()) text += fmt::format("complete -c ltrain -n {} -f\n", when);
    for (const auto& [name, help] : words_after(c))
      text += fmt::format("complete -c ltrain -n {} -a {} -d {}\n", when, quoted(name, true),
                          quoted(first_sentence(help), true));
    for (const CommandOption& o : c.options) {
      if (o.names.empty()) continue;
      text += fmt::format("complete -c ltrain -n {}", when);
      for (const std::string& name : o.names)
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (o.takes_value) text += " -r";
      if (!o.choices.empty()) text += " -f -a " + quoted(words_of(o.choices), true);
      text += fmt::format(" -d {}\n", quoted(first_sentence(o.help), true));
    }
    if (c.overrides) text += fmt::format("complete -c ltrain -n {} -a '$__ltrain_keys='\n", when);
  });
  return text;
}

}  // namespace

std::string completion_script(const CommandInfo& program, const std::string& shell,
                              const std::vector<std::string>& keys) {
  if (shell == "bash") return bash_script(program, keys);
  if (shell == "zsh") return zsh_script(program, keys);
  if (shell == "fish") return fish_script(program, keys);
  fail(ExitCode::usage, "no completion for the shell {}: there is one for bash, zsh and fish", shell);
}

}  // namespace ltrain::app
