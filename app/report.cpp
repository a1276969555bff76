// ltrain report: the course of a run, and its expert load.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "base/printable.h"
#include "planner/report/mlflow_run.h"
#include "planner/report/pictures.h"
#include "planner/report/run_pictures.h"
#include "planner/report/wandb_run.h"
#include "runtime/files/write_file.h"
#include "runtime/launch/flight_dump.h"
#include "runtime/telemetry/compare_runs.h"
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

/// Prints which rank waited for which in each run.
void print_flights(const std::vector<std::string>& runs) {
  for (const std::string& run : runs) {
    const std::vector<std::string> lines = merge_flights(run + "/flight");
    for (const std::string& line : lines) std::puts(printable(line, 4000).c_str());
    if (lines.empty())
      std::printf("%s/flight: no rank has left a record in which it waits\n", printable(run).c_str());
  }
}

/// Writes the runs for other programs that show runs, and prints the command that takes them.
void write_for_trackers(const std::vector<std::string>& runs, const std::string& wandb,
                        const std::string& mlflow, const std::string& project) {
  for (const std::string& given : runs) {
    const std::filesystem::path path(given);
    const std::string run =
        path.filename() == "metrics.jsonl" ? absolute(path).parent_path().string() : given;
    if (!wandb.empty()) std::printf("wandb sync %s\n", write_wandb_run(run, wandb, project).c_str());
    if (!mlflow.empty()) write_mlflow_run(run, mlflow, project);
  }
  if (!mlflow.empty())
    std::printf("MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri %s\n", mlflow.c_str());
}

}  // namespace

void add_report(CLI::App& app) {
  struct Options {
    std::vector<std::string> runs;
    std::string html, svg, csv, wandb, mlflow, project = "ltrain";
    int64_t layer = -1;
    bool json = false, flight = false;
  };
  auto* command = app.add_subcommand(
      "report", "The course of a run: loss, speed, and the load of experts; of several runs a comparison");
  auto o = std::make_shared<Options>();
  command->add_option("runs", o->runs, "output_dir of a run, or its metrics.jsonl; several are compared")
      ->required();
  command->add_option("--html", o->html, "Write a page with drawings and figures of the runs to this file");
  command->add_option("--svg", o->svg, "Write a drawing of the losses to this file");
  command->add_option("--csv", o->csv, "Write loss, norm and speed by steps to this file");
  command->add_option("--wandb", o->wandb,
                      "Write the runs into this folder for `wandb sync` (Weights & Biases, offline)");
  command->add_option("--mlflow", o->mlflow, "Write the runs into this folder as MLflow's file store");
  command->add_option("--project", o->project, "Project of W&B, or experiment of MLflow; default: ltrain");
  command->add_option("--layer", o->layer, "A layer whose experts are shown over time")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--json", o->json, "For programs");
  command->add_flag(
      "--flight", o->flight,
      "The calls that ranks waited in when the job lost a rank, or at SIGUSR2, from RUN/flight");
  command->footer("Example: ltrain report runs/quickstart");
  command->callback([o] {
    if (o->flight) return print_flights(o->runs);
    if (!o->wandb.empty() || !o->mlflow.empty())
      return write_for_trackers(o->runs, o->wandb, o->mlflow, o->project);
    std::vector<RunReport> runs;
    for (const std::string& run : o->runs) runs.push_back(read_run_report(run));
    const bool several = runs.size() > 1;
    if (several && (o->json || o->layer >= 0))
      fail(ExitCode::usage, "ltrain report: {} is of one run; name one, or take --csv",
           o->json ? "--json" : "--layer");
    if (!o->csv.empty()) write_file(o->csv, comparison_csv(runs));
    if (!o->svg.empty()) write_file(o->svg, loss_svg(runs));
    if (!o->html.empty())
      write_file(o->html, html_page(several ? "Runs compared" : "Run " + runs.front().name(),
                                    several ? std::vector<std::string>() : run_lead(runs.front()),
                                    run_pictures(runs, o->layer), comparison_text(runs)));
    if (several) {
      std::fputs(comparison_text(runs).c_str(), stdout);
      return;
    }
    const RunReport& report = runs.front();
    ReportStyle style = style_of_terminal();
    style.layer = o->layer;
    const std::string text = o->json ? report_json(report) + "\n" : report_text(report, style);
    std::fputs(text.c_str(), stdout);
  });
}

}  // namespace ltrain::app
