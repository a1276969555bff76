#include "runtime/check/changed_stages.h"

#include "base/error.h"
#include "base/json/json.h"
#include "runtime/check/data_sources.h"
#include "runtime/checkpoint/data_identity.h"

namespace ltrain {

std::string stages_text(const Recipe& recipe) {
  return nlohmann::json::parse(dump_json(recipe)).at("data").at("stages").dump();
}

Recipe parse_with_stages(const Recipe& recipe, const std::string& stages) {
  if (stages.empty()) fail(ExitCode::usage, "expected a list of stages, got nothing");
  const Recipe parsed = parse_recipe(dump_yaml(recipe), "the recipe of the run", {"data.stages=" + stages});
  Recipe changed = recipe;
  changed.data.stages = parsed.data.stages;
  return changed;
}

Recipe with_stages(const Recipe& recipe, const std::string& stages) {
  Recipe changed = parse_with_stages(recipe, stages);
  resolve_sources(changed, true);
  if (has_pending_sources(changed) || !training_files_exist(changed))
    fail(ExitCode::data, "not all token files of the stages exist");
  check_data(changed);
  return changed;
}

}  // namespace ltrain
