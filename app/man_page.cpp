// Man pages of commands, in roff.
#include <fmt/format.h>

#include "app/command_tree.h"
#include "base/exit_codes.h"

namespace ltrain::app {
namespace {

/// Text for roff: backslashes and hyphens as they are, no line that begins with a request.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool begins = out.empty() || out.back() == '\n';
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string name_of(const CommandInfo& c, const char* between) {
  std::string name = "ltrain";
  for (const std::string& word : c.path) name += between + word;
  return name;
}

std::string synopsis(const CommandInfo& c) {
  std::string text = ".B " + roff(name_of(c, " ")) + "\n";
  if (!c.commands.empty()) text += ".I COMMAND\n";
  bool options = false;
  for (const CommandOption& o : c.options) options |= !o.names.empty();
  if (options) text += ".RI [ OPTIONS ]\n";
  for (const CommandOption& o : c.options)
    if (!o.positional.empty())
      text += o.required ? fmt::format(".I {}{}\n", roff(o.positional), o.several ? " ..." : "")
                         : fmt::format(".RI [ {} {}]\n", roff(o.positional), o.several ? "..." : "");
  return text;
}

std::string option_text(const CommandOption& o) {
  std::string text = ".TP\n";
  if (!o.positional.empty()) {
    text += ".I " + roff(o.positional) + "\n";
  } else {
    std::string names;
    for (const std::string& n : o.names) names += (names.empty() ? "" : ", ") + n;
    text += o.takes_value ? ".BI \"" + roff(names) + " \" VALUE\n" : ".B " + roff(names) + "\n";
  }
  text += roff(o.help.empty() ? "No description." : o.help) + "\n";
  if (!o.choices.empty()) text += roff(fmt::format("One of: {}.", fmt::join(o.choices, ", "))) + "\n";
  return text;
}

}  // namespace

std::string man_page_name(const CommandInfo& c) { return name_of(c, "-") + ".1"; }

std::string man_page(const CommandInfo& c, const std::string& version) {
  const std::string title = name_of(c, "-");
  std::string help = c.help.substr(0, c.help.find('\n'));
  std::string text = fmt::format(".TH {} 1 \"\" \"ltrain {}\" \"User commands\"\n.SH NAME\n{} \\- {}\n",
                                 roff(title), roff(version), roff(title), roff(help));
  text += ".SH SYNOPSIS\n" + synopsis(c);
  if (!c.commands.empty()) {
    text += ".SH COMMANDS\n";
    for (const CommandInfo& next : c.commands)
      text += fmt::format(".TP\n.BR {} (1)\n{}\n", roff(name_of(next, "-")), roff(next.help));
  }
  if (!c.options.empty()) text += ".SH OPTIONS\n";
  for (const CommandOption& o : c.options) text += option_text(o);
  if (c.overrides)
    text +=
        ".SH SETTINGS\nKeys of recipes are given as\n.IR key = value\nor\n.IR \\-\\-section.key = value .\n"
        ".B ltrain recipe keys\nlists them.\n";
  if (!c.footer.empty()) text += ".SH EXAMPLES\n.nf\n" + roff(c.footer) + "\n.fi\n";
  text += ".SH EXIT STATUS\n";
  for (const ExitCodeRow& row : exit_code_table())
    text += fmt::format(".TP\n{}\n{}\n", static_cast<int>(row.code), roff(std::string(row.meaning)));
  return text;
}

}  // namespace ltrain::app
