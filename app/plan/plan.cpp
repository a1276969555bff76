// ltrain plan: memory, communication and time of a recipe, before anything is started.
#include <malloc.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "app/commands.h"
#include "app/load_with_notes.h"
#include "app/plan/plan_exports.h"
#include "app/plan/plan_pictures.h"
#include "app/plan/plan_search.h"
#include "app/profile_option.h"
#include "app/shrink_option.h"
#include "parallel/pipeline/draw.h"
#include "parallel/pipeline/schedule_csv.h"
#include "planner/campaign/campaign.h"
#include "planner/compositions/compositions.h"
#include "runtime/check/check_job.h"
#include "runtime/files/write_file.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/memory_limits.h"
#include "runtime/plan/plan_print.h"
#include "runtime/plan/rank_map.h"
#include "runtime/plan/schedule_plan.h"

namespace ltrain::app {
namespace {

struct PlanOptions {
  std::string recipe, profile, cluster, trainer, links, trace, svg, csv, campaign_file;
  std::vector<std::string> overrides;
  int world = 0;
  double skew = 1;
  ExportOptions exports;
  SearchOptions search;
  PictureOptions pictures;
  ShrinkOption shrink;
  bool json = false, schedule = false, compositions = false, ranks = false, campaign = false;
};

/// Width of the terminal; for other output COLUMNS, or 120.
int output_columns() {
  struct winsize size {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* given = std::getenv("COLUMNS");
  const int columns = given ? std::atoi(given) : 0;
  return columns >= 40 && columns <= 10000 ? columns : 120;
}

void show_schedule(const Recipe& recipe, const MachineProfile& profile, const PlanOptions& o) {
  SchedulePlan plan = plan_schedule(recipe, layer_costs(recipe, profile), activation_limit(recipe, profile));
  plan.costs = fmt::format("costs in seconds by the profile {}", profile.source);
  for (const std::string& note : plan.notes) std::fprintf(stderr, "%s\n", note.c_str());
  const auto& s = plan.schedule;
  if (!o.svg.empty()) write_file(o.svg, pipeline::draw_svg(s, plan.timing, plan.costs));
  if (!o.csv.empty()) write_file(o.csv, pipeline::write_schedule_csv(s));
  if (!o.schedule) return;
  std::fputs((o.json ? schedule_json(plan) + "\n" : schedule_text(plan, output_columns())).c_str(), stdout);
}

void show_campaign(const CheckedJob& job, int ranks_per_node, const PlanOptions& o) {
  const CampaignSettings settings =
      o.campaign_file.empty() ? default_campaign_settings() : load_campaign(o.campaign_file);
  const CampaignJob campaign = campaign_job(job.recipe, job.profile, job.plan, ranks_per_node);
  const double watts = job.profile.device ? job.profile.device->power_watts.value : 0;
  std::fputs(
      (o.json ? campaign_json(campaign, settings, watts) + "\n" : campaign_text(campaign, settings, watts))
          .c_str(),
      stdout);
}

void show_compositions(bool json) {
  const std::vector<CompositionCell> cells = compositions();
  std::fputs((json ? compositions_json(cells) + "\n" : compositions_text(cells)).c_str(), stdout);
}

/// Declares the options of the command.
void add_options(CLI::App& command, PlanOptions& o) {
  command.add_option("recipe", o.recipe, "YAML recipe");
  command.add_option("overrides", o.overrides, "key=value");
  command.add_option("--world", o.world, "Number of ranks, when parallel.data is -1")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--profile", o.profile, kProfileHelp);
  command.add_option("--cluster", o.cluster, kClusterHelp);
  command.add_option("--trainer", o.trainer, kTrainerHelp);
  command.add_option("--links", o.links,
                     "Rates of links in place of the profile's: a file of `ltrain bench --links --output`");
  command.add_option("--trace", o.trace, "Write rank 0's step as a Chrome trace");
  command.add_flag("--schedule", o.schedule, "Draw the pipeline schedule instead of the plan");
  command.add_option("--schedule-svg", o.svg, "Write the drawing to a file");
  command.add_option("--schedule-csv", o.csv,
                     "Write the schedule to a file that parallel.schedule_file and PyTorch read");
  command.add_flag("--compositions", o.compositions,
                   "Print what combines with what in this build; needs no recipe");
  command.add_flag(
      "--ranks", o.ranks,
      "List every rank, and the memory of the first one of each stage; else of the one that takes most");
  command.add_flag("--campaign", o.campaign,
                   "Time and cost to the end with failures, restarts and saves, instead of the plan");
  command.add_option("--campaign-file", o.campaign_file,
                     "YAML file of failure rates, storage, spare nodes, prices for --campaign");
  command
      .add_option(
          "--skew", o.skew,
          "Rows of the busiest expert rank over those of even routing, which MoE models are planned at")
      ->check(CLI::Range(1.0, 1048576.0));
  add_export_options(command, o.exports);
  add_search(command, o.search);
  add_pictures(command, o.pictures);
  o.shrink.add_to(command);
  command.add_flag("--json", o.json, "For programs");
  command.allow_extras();  // --section.key=value
  command.footer(
      "Example: ltrain plan recipes/gpt2-124m.yaml parallel.data=8 --profile h100\n"
      "Ends with exit code 78 where the plan needs more memory than there is.");
}

/// Fails for options that do not go together.
void check_combinations(const PlanOptions& o) {
  check_search(o.search);
  if (o.search.on && (o.world > 0 || o.schedule || o.compositions || o.ranks || !o.trace.empty() ||
                      !o.svg.empty() || !o.csv.empty()))
    fail(ExitCode::usage,
         "ltrain plan --search: takes no --world (--gpus says how many), --schedule, --compositions, "
         "--ranks or "
         "--trace; plan a layout of its list for those");
  if (o.search.on && (o.campaign || o.exports.without_recipe() || !o.exports.target.empty()))
    fail(ExitCode::usage,
         "ltrain plan --search: takes no --campaign, --export or --from-megatron; --write a layout of its "
         "list, "
         "and plan that");
  if (o.search.on && o.json && !o.search.explain.empty())
    fail(ExitCode::usage, "ltrain plan --search: --explain is for people; leave out --json");
  if (!o.links.empty() && (o.compositions || o.exports.without_recipe() || !o.exports.target.empty()))
    fail(ExitCode::usage,
         "ltrain plan: --links prices a plan; leave it out with --compositions, --export and "
         "--from-megatron");
  if (o.pictures.given() &&
      (o.schedule || o.compositions || o.campaign || o.exports.without_recipe() || !o.exports.target.empty()))
    fail(ExitCode::usage,
         "ltrain plan: --html and --svg draw a plan or a --search; leave out --schedule, --compositions, "
         "--campaign, --export and --from-megatron");
}

/// Prints the plan of the recipe, or its schedule or campaign, and writes the pictures and traces asked for.
/// Exit code 78 where the plan does not fit.
void show_plan(const Recipe& given, const PlanOptions& o) {
  const JobSize size =
      planned_size(given, environment_for_plans(process_variables()), gpus_for(given), o.world, o.profile);
  JobChecks checks;
  checks.part = JobChecks::Part::recipe;
  checks.prices = {o.profile, o.trainer, o.skew, o.links};
  checks.data = false;  // a plan reads no data
  const CheckedJob job = check_job(given, size, checks);
  const Recipe& recipe = job.recipe;
  if (o.schedule || !o.svg.empty() || !o.csv.empty()) return show_schedule(recipe, job.profile, o);
  if (o.campaign || !o.campaign_file.empty()) {
    show_campaign(job, size.ranks_per_node, o);
    if (fits(job.plan)) return;
    std::fprintf(stderr, "ltrain: %s\n", fit_text(job.plan).c_str());
    throw CLI::RuntimeError(static_cast<int>(ExitCode::does_not_fit));
  }
  const int nodes = (size.world + size.ranks_per_node - 1) / size.ranks_per_node;
  const RankMap map = map_ranks(recipe, host_names(nodes, process_variables(), job.plan.for_this_machine));
  std::string text = plan_text(job.plan, recipe, &map, o.ranks);
  if (!job.offload.empty()) text += job.offload + "\n";
  std::fputs((o.json ? plan_json(job.plan, &map) + "\n" : text).c_str(), stdout);
  if (o.pictures.given())
    write_pictures(o.pictures, "Plan of " + recipe.name, plan_lead(job.plan),
                   plan_pictures(job.plan, recipe, job.profile, map), text);
  if (!o.trace.empty()) write_file(o.trace, plan_trace(recipe, job.profile, 0));
  if (!fits(job.plan)) throw CLI::RuntimeError(static_cast<int>(ExitCode::does_not_fit));
}

void run_plan(PlanOptions& o) {
  check_combinations(o);
  if (o.compositions) return show_compositions(o.json);
  if (o.exports.without_recipe() && !o.recipe.empty())
    fail(ExitCode::usage, "ltrain plan: --from-megatron and --flags read no recipe; leave out {}", o.recipe);
  if (o.exports.without_recipe()) return run_without_recipe(o.exports, o.world);
  if (o.recipe.empty()) fail(ExitCode::usage, "ltrain plan: which recipe? ltrain plan RECIPE.yaml");
  if (o.shrink.ranks > 0) o.overrides = o.shrink.apply(o.recipe, o.overrides, false);
  Recipe given = load_with_notes(o.recipe, o.overrides);
  if (given.replicas.on())
    print_notes(
        {"replicas: the plan is of one that is left alone and runs all micro-batches; sums between "
         "replicas are not in it"});
  if (!o.exports.target.empty()) return export_recipe(o.exports, given);
  take_cluster(o.profile, o.cluster, given);
  if (!o.profile.empty()) fit_device(given, o.profile);
  if (o.search.on)
    return search(o.search, o.pictures, o.recipe, o.overrides, given, {o.profile, o.trainer, o.skew, o.links},
                  o.json);
  show_plan(given, o);
}

}  // namespace

void add_plan(CLI::App& app) {
  auto* command = app.add_subcommand(
      "plan", "What a recipe needs: memory, communication, time. Starts nothing, reads no data");
  auto o = std::make_shared<PlanOptions>();
  add_options(*command, *o);
  command->callback([o, command] {
    // Passes on meta allocate and free the same memory many times. Without these settings, the kernel took a
    // tenth of a search's time because memory was returned to it in between.
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    take_extras(*command, o->overrides);
    run_plan(*o);
  });
}

}  // namespace ltrain::app
