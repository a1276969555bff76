// ltrain recipe: check a recipe, print it resolved, print the reference of its keys.
#include <cstdio>

#include "app/commands.h"
#include "app/load_with_notes.h"
#include "base/error.h"
#include "base/printable.h"
#include "runtime/check/check_job.h"
#include "runtime/plan/rank_map.h"
#include "runtime/recipe/keys_about.h"
#include "runtime/recipe/other_names.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::app {

namespace {

struct ShowOptions {
  std::string path;
  std::vector<std::string> overrides;
  bool json = false;
  int ranks = 0;
};

void show_recipe(const ShowOptions& o) {
  Recipe recipe = load_with_notes(o.path, o.overrides);
  if (o.ranks > 0) recipe = resolve(recipe, o.ranks);
  std::fputs(o.json ? (dump_json(recipe) + "\n").c_str() : dump_yaml(recipe).c_str(), stdout);
}

void check_recipe(const ShowOptions& o) {
  const Recipe recipe = load_with_notes(o.path, o.overrides);
  const JobSize size =
      planned_size(recipe, environment_for_plans(process_variables()), gpus_for(recipe), o.ranks);
  check_host_ranks(recipe, size);
  JobChecks checks;
  checks.part = JobChecks::Part::recipe;
  check_job(recipe, size, checks);
  std::printf("%s: good for %d rank%s\n", o.path.c_str(), size.world, size.world == 1 ? "" : "s");
}

void add_recipe_options(CLI::App* command, ShowOptions& o) {
  command->add_option("recipe", o.path, "The recipe file")->required();
  command->add_option("overrides", o.overrides, "key=value, --section.key=value, ~key");
  command->add_option("--ranks", o.ranks, "Ranks of the job; default: as many as `ltrain run` starts here")
      ->check(CLI::PositiveNumber);
  command->allow_extras();  // --section.key=value
}

/// Adds overrides in the order of the command line; those with dashes arrive as extras.
void take_extras(const CLI::App* command, ShowOptions& o) {
  for (const std::string& extra : command->remaining()) o.overrides.push_back(extra);
}

}  // namespace

void add_recipe(CLI::App& app) {
  CLI::App* recipe = app.add_subcommand("recipe", "Check a recipe, print it resolved, or list the keys");
  recipe->require_subcommand(1);
  add_recipe_new(*recipe);

  CLI::App* show = recipe->add_subcommand("show", "Print the recipe with every value filled in");
  static ShowOptions show_options, check_options;
  add_recipe_options(show, show_options);
  show->add_flag("--json", show_options.json, "As JSON");
  show->footer("Example: ltrain recipe show recipes/quickstart.yaml train.train_steps=100 --json");
  show->callback([show] {
    take_extras(show, show_options);
    show_recipe(show_options);
  });

  CLI::App* check = recipe->add_subcommand("check",
                                           "Say what is wrong with a recipe on any machine, as `plan` and "
                                           "`run` do; `run --dry-run` checks this machine too");
  add_recipe_options(check, check_options);
  check->footer("Example: ltrain recipe check recipes/quickstart.yaml --ranks 2");
  check->callback([check] {
    take_extras(check, check_options);
    check_recipe(check_options);
  });

  CLI::App* keys = recipe->add_subcommand("keys", "List every key, with type, default, range and meaning");
  static bool json = false, markdown = false;
  static std::vector<std::string> words;
  keys->add_option("words", words, "Only keys whose name, values or meaning has these words");
  keys->add_flag("--json", json, "As JSON");
  keys->add_flag("--markdown", markdown, "As docs/recipe.md has it");
  keys->footer("Example: ltrain recipe keys warmup");
  keys->callback([] {
    if (!words.empty() && (json || markdown))
      fail(ExitCode::usage, "ltrain recipe keys: --json and --markdown are of all keys; leave out {}",
           fmt::join(words, " "));
    if (!words.empty() && keys_about(words).find("\n\n") == std::string::npos) {
      const std::string other = words.size() == 1 ? recipe::in_other_trainers(words[0]) : "";
      fail(ExitCode::usage, "ltrain recipe keys {}: no key has that in its name or meaning{}",
           printable(fmt::format("{}", fmt::join(words, " ")), 100), other.empty() ? "" : "; " + other);
    }
    std::fputs(json       ? (recipe_reference_json() + "\n").c_str()
               : markdown ? recipe_reference_markdown().c_str()
                          : keys_about(words).c_str(),
               stdout);
  });
}

}  // namespace ltrain::app
