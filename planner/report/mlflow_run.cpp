#include "planner/report/mlflow_run.h"

#include <cmath>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "kernels/tensor/rng.h"
#include "planner/report/run_history.h"
#include "runtime/files/write_file.h"

namespace ltrain {
namespace {

namespace fs = std::filesystem;

/// Writes a file of the store, in a folder that is made if needed.
void put(const fs::path& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) fail(ExitCode::storage, "{}: cannot be made: {}", path.parent_path().string(), error.message());
  replace_file(path.string(), text);
}

/// Settings as one list of names with dots.
void flatten(const nlohmann::json& from, const std::string& name, std::map<std::string, std::string>& to) {
  if (from.is_object())
    for (const auto& [key, value] : from.items()) flatten(value, name.empty() ? key : name + "." + key, to);
  else
    to[name] = from.is_string() ? from.get<std::string>() : from.dump();
}

/// A name that is a file below its folder: the store allows letters, digits and `_-. /`.
std::string key_of(std::string name) {
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-' && c != '.' && c != '/') c = '_';
  return name;
}

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }  // JSON is YAML

}  // namespace

void write_mlflow_run(const std::string& run, const std::string& folder, const std::string& experiment) {
  const TrackedRun tracked = read_tracked_run(run);
  const std::string id = tracked.id(), number = std::to_string(hash_name(experiment) >> 4);
  const fs::path of_experiment = fs::absolute(folder) / number, of_run = of_experiment / id;
  const int64_t began = tracked.started * 1000;
  int64_t ended = began, reached = 0;
  std::map<std::string, std::string> metrics;
  each_step(run, [&](const StepNumbers& s) {
    ended = began + static_cast<int64_t>(s.seconds * 1e3);
    reached = s.step;
    for (const auto& [name, value] : s.values)
      metrics[key_of(name)] += fmt::format("{} {} {}\n", ended, value, s.step);
  });
  std::error_code error;
  fs::remove_all(of_run, error);
  if (!fs::exists(of_experiment / "meta.yaml"))
    put(of_experiment / "meta.yaml",
        fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\nlast_update_time: {}\n"
                    "lifecycle_stage: active\nname: {}\n",
                    quoted("file://" + of_experiment.string()), began, number, began, quoted(experiment)));
  std::map<std::string, std::string> settings;
  flatten(tracked.config, "", settings);
  for (const auto& [name, value] : settings) put(of_run / "params" / key_of(name), value);
  for (const auto& [name, lines] : metrics) put(of_run / "metrics" / name, lines);
  put(of_run / "tags" / "mlflow.runName", tracked.name);
  put(of_run / "tags" / "mlflow.source.name", "ltrain run");
  put(of_run / "tags" / "host", tracked.host);
  fs::create_directories(of_run / "artifacts", error);
  constexpr int kRunning = 1, kFinished = 3;  // mlflow.entities.RunStatus
  const bool done = tracked.done(reached);
  put(of_run / "meta.yaml",
      fmt::format("artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: '{}'\n"
                  "lifecycle_stage: active\nrun_id: {}\nrun_name: {}\nrun_uuid: {}\nsource_name: ''\n"
                  "source_type: 4\nsource_version: ''\nstart_time: {}\nstatus: {}\ntags: []\nuser_id: ''\n",
                  quoted("file://" + (of_run / "artifacts").string()), done ? std::to_string(ended) : "null",
                  number, id, quoted(tracked.name), id, began, done ? kFinished : kRunning));
}

}  // namespace ltrain
