#include "planner/report/run_history.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>

#include "base/error.h"
#include "kernels/tensor/rng.h"
#include "runtime/recipe/yaml_tree.h"
#include "runtime/telemetry/metrics_lines.h"

namespace ltrain {
namespace {

nlohmann::json scalar_value(const recipe::Node& node) {
  if (node.quoted) return node.text;
  if (node.text == "true" || node.text == "false") return node.text == "true";
  const nlohmann::json number = nlohmann::json::parse(node.text, nullptr, false);
  return number.is_number() ? number : nlohmann::json(node.text);
}

nlohmann::json value_of(const recipe::Node& node) {
  using recipe::Node;
  nlohmann::json value;
  if (node.kind == Node::scalar) return scalar_value(node);
  if (node.kind == Node::list) {
    value = nlohmann::json::array();
    for (const Node& item : node.items) value.push_back(value_of(item));
  } else if (node.kind == Node::map) {
    value = nlohmann::json::object();
    for (const Node::Entry& entry : node.entries) value[entry.key] = value_of(entry.value);
  }
  return value;
}

}  // namespace

std::string TrackedRun::id() const {
  const std::string whole =
      fmt::format("{}\n{}\n{}", host, std::filesystem::weakly_canonical(folder).string(), started);
  return fmt::format("{:016x}{:016x}", hash_name(whole), hash_name(whole + "\n"));
}

bool TrackedRun::done(int64_t steps) const {
  return steps >= config.value("/train/train_steps"_json_pointer, int64_t{0});
}

TrackedRun read_tracked_run(const std::string& folder) {
  TrackedRun run;
  run.folder = folder;
  const std::string path = folder + "/recipe.yaml";
  std::ifstream in(path, std::ios::binary);
  struct stat about {};
  if (!in || ::stat(path.c_str(), &about) != 0)
    fail(ExitCode::data,
         "{}: cannot be read; expected the output_dir of a run, which has its recipe and its "
         "metrics.jsonl",
         path);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  run.started = about.st_mtime;
  run.config = value_of(recipe::parse_yaml(text, path));
  if (!run.config.is_object()) fail(ExitCode::data, "{}: expected a map of keys", path);
  if (run.config.contains("telemetry"))
    for (const char* key : {"on_end", "on_save"}) run.config["telemetry"].erase(key);  // may hold a secret
  run.name = run.config.value("name", std::filesystem::path(folder).filename().string());
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  run.host = host;
  return run;
}

void each_step(const std::string& folder, const std::function<void(const StepNumbers&)>& take) {
  MetricsLines lines(folder + "/metrics.jsonl");
  std::optional<StepNumbers> now;
  double seconds = 0;
  for (nlohmann::json line; lines.next(line);) {
    if (line.contains("restart") || line.contains("straggler")) continue;
    const int64_t step = lines.whole_number(line, "step");
    if (now && step < now->step) lines.wrong(fmt::format("step {} after step {}", step, now->step));
    if (now && step > now->step) take(*now), now.reset();
    if (!now) now = StepNumbers{.step = step, .seconds = seconds, .values = {}};
    const std::string set = line.value("eval_set", "");
    for (const auto& [key, value] : line.items()) {
      if (key == "step" || (!value.is_number() && !value.is_null())) continue;
      const std::string name = set.empty() ? key : key + "/" + set;
      now->values[name] = value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
    }
    const double milliseconds = lines.number(line, "step_time_ms").value_or(0);
    if (std::isfinite(milliseconds)) seconds += milliseconds / 1e3;
    now->seconds = seconds;
  }
  if (now) take(*now);
}

}  // namespace ltrain
