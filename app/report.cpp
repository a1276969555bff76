// ltrain report: the course of a run, and what its experts got.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "app/commands.h"
#include "runtime/telemetry/run_report.h"

namespace ltrain::app {
namespace {

ReportStyle style_of_terminal() {
  ReportStyle s;
  const char* plain = std::getenv("NO_COLOR");
  s.colour = isatty(1) == 1 && !(plain && *plain);
  struct winsize size {};
  if (const char* c = std::getenv("COLUMNS"); c && std::atoi(c) > 0)
    s.columns = std::clamp(std::atoi(c), 40, 400);
  else if (ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    s.columns = std::clamp<int>(size.ws_col, 40, 400);
  return s;
}

}  // namespace

void add_report(CLI::App& app) {
  struct Options {
    std::string where;
    int64_t layer = -1;
    bool json = false;
  };
  auto* command = app.add_subcommand("report", "The course of a run: loss, speed, and the load of experts");
  auto o = std::make_shared<Options>();
  command->add_option("run", o->where, "output_dir of a run, or its metrics.jsonl")->required();
  command->add_option("--layer", o->layer, "A layer whose experts are shown over time")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--json", o->json, "For programs");
  command->footer("Example: ltrain report runs/quickstart");
  command->callback([o] {
    const RunReport report = read_run_report(o->where);
    ReportStyle style = style_of_terminal();
    style.layer = o->layer;
    const std::string text = o->json ? report_json(report) + "\n" : report_text(report, style);
    std::fputs(text.c_str(), stdout);
  });
}

}  // namespace ltrain::app
