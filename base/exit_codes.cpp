#include "base/exit_codes.h"

namespace ltrain {
namespace {

constexpr ExitCodeRow kTable[] = {
    {ExitCode::done, StartAgain::none, "done", "done"},
    {ExitCode::usage, StartAgain::useless, "recipe, command line, or a limit of the shell (`ulimit`)",
     "recipe, command line or a limit of the shell: change it, a restart does not help"},
    {ExitCode::data, StartAgain::useless, "data or tokenizer", "data: fix it, a restart does not help"},
    {ExitCode::internal, StartAgain::useless, "a defect of ltrain", "internal error"},
    {ExitCode::rank_lost, StartAgain::at_once, "a rank died or hung", "a rank died or hung: start again"},
    {ExitCode::storage, StartAgain::after_a_fix,
     "storage: full, read-only, locked, a file larger than `ulimit -f`",
     "a checkpoint could not be written or read"},
    {ExitCode::preempted, StartAgain::after_request, "saved after a signal",
     "stopped by request: start again"},
    {ExitCode::no_progress, StartAgain::useless,
     "no progress (loss or gradients not finite, or the same failure at the same step after two restarts)",
     "no progress: do not start again"},
    {ExitCode::does_not_fit, StartAgain::useless,
     "needs more memory than there is: of `plan`, `slurm`, a `run` that was refused, and a GPU without room "
     "for a request",
     "needs more memory than there is: do not start again"},
};

std::string_view script_says(StartAgain start) {
  switch (start) {
    case StartAgain::none:
      return "";
    case StartAgain::useless:
      return "no";
    case StartAgain::after_a_fix:
      return "when it is fixed";
    case StartAgain::at_once:
    case StartAgain::after_request:
      return "yes";
  }
  return "";
}

}  // namespace

std::span<const ExitCodeRow> exit_code_table() { return kTable; }

const ExitCodeRow* find_exit_code(int code) {
  for (const ExitCodeRow& row : kTable)
    if (static_cast<int>(row.code) == code) return &row;
  return nullptr;
}

bool launcher_restarts(int code) {
  const ExitCodeRow* row = find_exit_code(code);
  return row && row->start == StartAgain::at_once;
}

bool script_restarts(int code) {
  const ExitCodeRow* row = find_exit_code(code);
  return row && (row->start == StartAgain::at_once || row->start == StartAgain::after_request);
}

std::string codes_of_scripts(bool restarts, std::string_view separator) {
  std::string codes;
  for (const ExitCodeRow& row : kTable)
    if (row.start != StartAgain::none && script_restarts(static_cast<int>(row.code)) == restarts)
      codes += fmt::format("{}{}", codes.empty() ? "" : separator, static_cast<int>(row.code));
  return codes;
}

std::string exit_code_text(int code) {
  const ExitCodeRow* row = find_exit_code(code);
  return row ? fmt::format("exit code {} ({})", code, row->text) : fmt::format("exit code {}", code);
}

std::string exit_code_markdown() {
  std::string text =
      "| exit code | meaning | start again? | `launch.max_restarts` starts again |\n|---|---|---|---|\n";
  for (const ExitCodeRow& row : kTable)
    text += fmt::format("| {} | {} | {} | {} |\n", static_cast<int>(row.code), row.meaning,
                        script_says(row.start),
                        row.start == StartAgain::none                   ? ""
                        : launcher_restarts(static_cast<int>(row.code)) ? "yes"
                                                                        : "no");
  return text;
}

}  // namespace ltrain
