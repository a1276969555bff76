// ltrain recipe: check a recipe, print it resolved, print the reference of its keys.
#include <cstdio>

#include "app/commands.h"
#include "app/load_with_notes.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::app {

namespace {

struct ShowOptions {
  std::string path;
  std::vector<std::string> overrides;
  bool json = false;
  int world_size = 0;
};

Recipe load(const ShowOptions& o) {
  const Recipe recipe = load_with_notes(o.path, o.overrides);
  return o.world_size > 0 ? resolve(recipe, o.world_size) : recipe;
}

void add_recipe_options(CLI::App* command, ShowOptions& o) {
  command->add_option("recipe", o.path, "The recipe file")->required();
  command->add_option("overrides", o.overrides, "key=value, --section.key=value, ~key");
  command->add_option("--ranks", o.world_size, "Check the layout for this many ranks, too")
      ->check(CLI::PositiveNumber);
  command->allow_extras();  // --section.key=value
}

/// Overrides in the order of the command line; those with dashes arrive as extras.
void take_extras(const CLI::App* command, ShowOptions& o) {
  for (const std::string& extra : command->remaining()) o.overrides.push_back(extra);
}

}  // namespace

void add_recipe(CLI::App& app) {
  CLI::App* recipe = app.add_subcommand("recipe", "Check a recipe, print it resolved, or list the keys");
  recipe->require_subcommand(1);

  CLI::App* show = recipe->add_subcommand("show", "Print the recipe with every value filled in");
  static ShowOptions show_options, check_options;
  add_recipe_options(show, show_options);
  show->add_flag("--json", show_options.json, "As JSON");
  show->footer("Example: ltrain recipe show recipes/quickstart.yaml train.train_steps=100 --json");
  show->callback([show] {
    take_extras(show, show_options);
    const Recipe r = load(show_options);
    std::fputs(show_options.json ? (dump_json(r) + "\n").c_str() : dump_yaml(r).c_str(), stdout);
  });

  CLI::App* check = recipe->add_subcommand("check", "Say what is wrong with a recipe");
  add_recipe_options(check, check_options);
  check->footer("Example: ltrain recipe check recipes/quickstart.yaml --ranks 2");
  check->callback([check] {
    take_extras(check, check_options);
    load(check_options);
    std::printf("%s: good\n", check_options.path.c_str());
  });

  CLI::App* keys = recipe->add_subcommand("keys", "List every key, with type, default, range and meaning");
  static bool json = false, markdown = false;
  keys->add_flag("--json", json, "As JSON");
  keys->add_flag("--markdown", markdown, "As docs/recipe.md has it");
  keys->footer("Example: ltrain recipe keys --markdown");
  keys->callback([] {
    std::fputs(json       ? (recipe_reference_json() + "\n").c_str()
               : markdown ? recipe_reference_markdown().c_str()
                          : recipe_reference_text().c_str(),
               stdout);
  });
}

}  // namespace ltrain::app
