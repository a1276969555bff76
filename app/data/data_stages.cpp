#include "app/data/data_stages.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "app/commands.h"
#include "app/load_with_notes.h"
#include "app/make_token_files.h"
#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/check/changed_stages.h"
#include "runtime/check/data_sources.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/train/stage_changes.h"

namespace ltrain::app {
namespace {

/// Last step of the metrics of a run; 0: it has none.
int64_t last_step(const std::string& run_dir) {
  std::ifstream in(run_dir + "/metrics.jsonl");
  int64_t last = 0;
  for (std::string line; std::getline(in, line);) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_object() && j.contains("step") && j["step"].is_number_integer())
      last = std::max(last, j["step"].get<int64_t>());
  }
  return last;
}

struct StagesCommand {
  std::string run_dir, recipe;
  std::vector<std::string> overrides;

  void run() const {
    const std::string file = run_dir + "/recipe.yaml";
    if (!std::filesystem::exists(file))
      fail(ExitCode::usage, "{}: expected the output_dir of a run, which has a recipe.yaml",
           printable(run_dir));
    Recipe running = load_recipe(file);
    running.output_dir = run_dir;
    const std::string stages = stages_text(load_with_notes(recipe, overrides));
    Recipe asked = parse_with_stages(running, stages);
    resolve_sources(asked, true);
    if (has_pending_sources(asked) || !training_files_exist(asked))
      make_token_files(asked, MadeFiles::all, false);
    const Recipe changed = with_stages(running, stages);
    const int64_t step = last_step(run_dir);
    resolve_sources(running, true);
    const auto begun = data::differences(data_identity(running), data_identity(changed),
                                         samples_before_step(running, step + 2));
    if (!begun.empty())
      fail(ExitCode::usage,
           "{}: the run is at step {}, and a mix that has begun cannot change: {}. Let the change begin at "
           "step "
           "{} or later",
           printable(run_dir), step, fmt::join(begun, ", "), step + 2);
    leave_stages(run_dir, stages);
    std::printf(
        "%s/stages-next.json: %s\nThe run takes these stages after the step that it is in, or a later start "
        "after its first one, and its log says so.\n",
        printable(run_dir).c_str(), stages_in_words(stages).c_str());
  }
};

}  // namespace

void add_stages(CLI::App& data) {
  auto c = std::make_shared<StagesCommand>();
  CLI::App* s = data.add_subcommand(
      "stages",
      "give a run that goes on the data.stages of a recipe; its other keys have no effect\n"
      "Example: ltrain data stages runs/quickstart recipes/quickstart.yaml");
  s->add_option("run_dir", c->run_dir, "output_dir of the run")->required();
  s->add_option("recipe", c->recipe, "YAML recipe with the stages")->required();
  s->add_option("overrides", c->overrides, "key=value");
  s->allow_extras();
  s->callback([c, s] {
    take_extras(*s, c->overrides);
    c->run();
  });
}

}  // namespace ltrain::app
