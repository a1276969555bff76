// ltrain plan: memory, communication and time of a recipe, before anything is started.
#include <cstdio>
#include <fstream>
#include <memory>

#include "app/commands.h"
#include "runtime/plan/plan.h"

namespace ltrain::app {

void add_plan(CLI::App& app) {
  struct Options {
    std::string recipe, profile, trace;
    std::vector<std::string> overrides;
    int world = 0;
    bool json = false;
  };
  auto* command = app.add_subcommand(
      "plan", "What a recipe needs: memory, communication, time. Starts nothing, reads no data");
  auto o = std::make_shared<Options>();
  command->add_option("recipe", o->recipe, "YAML recipe")->required();
  command->add_option("overrides", o->overrides, "key=value");
  command->add_option("--world", o->world, "Number of ranks, when parallel.data is -1")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--profile", o->profile,
                      "Machine profile of `ltrain bench`; default: this machine's, else a guess");
  command->add_option("--trace", o->trace, "Write rank 0's step as a Chrome trace");
  command->add_flag("--json", o->json, "For programs");
  command->allow_extras();  // --section.key=value
  command->footer("Example: ltrain plan recipes/gpt2-124m.yaml parallel.data=8");
  command->callback([o, command] {
    take_extras(*command, o->overrides);
    const Recipe given = load_recipe(o->recipe, o->overrides);
    int world = o->world;
    if (world == 0) world = static_cast<int>(given.parallel.data > 0 ? ranks(given) : 1);
    const Recipe recipe = resolve(given, world);
    const MachineProfile profile = o->profile.empty() ? default_profile() : load_profile(o->profile);
    const Plan plan = make_plan(recipe, profile);
    std::fputs((o->json ? plan_json(plan) + "\n" : plan_text(plan, recipe)).c_str(), stdout);
    if (o->trace.empty()) return;
    std::ofstream out(o->trace);
    out << plan_trace(recipe, profile, 0);
    if (!out.flush()) fail(ExitCode::storage, "{}: cannot be written", o->trace);
  });
}

}  // namespace ltrain::app
