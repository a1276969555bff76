// `ltrain kube recipe.yaml`: the manifests for a run on Kubernetes.
#include <algorithm>
#include <memory>

#include "app/cluster/kube_manifest.h"
#include "app/commands.h"
#include "app/load_with_notes.h"
#include "app/run_replicas.h"
#include "base/error.h"
#include "base/secret.h"
#include "runtime/checkpoint/files.h"

namespace ltrain::app {
namespace {

void add_kube_options(CLI::App& command, KubeOptions& o, std::string& output) {
  add_request_options(command, o);
  command.add_option("--image", o.image, "Image with ltrain, such as one of the repository's Containerfile")
      ->required();
  command
      .add_option("--claim", o.claim,
                  "PersistentVolumeClaim that all pods mount: data, models and output_dir")
      ->required();
  command.add_option("--mount", o.mount, "Folder of the claim in the pods, and their working folder")
      ->capture_default_str();
  command.add_option("--name", o.name, "Default: the recipe's file name");
  command.add_option("--namespace", o.name_space, "Default: that of kubectl's context");
  command.add_option("--mem", o.mem, "Memory of a pod, such as 16Gi; default: the plan's and a tenth");
  command.add_option("--grace", o.grace_seconds, "Seconds to save after SIGTERM, before SIGKILL")
      ->check(CLI::Range(10, 86400))
      ->capture_default_str();
  command.add_option("--max-restarts", o.max_restarts, "Restarts of the job after a lost pod, or a signal")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  command.add_option("--output", output, "Write the manifests to this file");
  command.footer(
      "Example: ltrain kube recipes/quickstart.yaml --nodes 2 --image registry/ltrain --claim work | kubectl "
      "apply -f -");
}

/// Name of a job as Kubernetes takes it: lower case, and a letter first.
std::string kube_name(const std::string& recipe) {
  std::string name = job_name_of(recipe, "-");
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (name.empty() || name[0] < 'a' || name[0] > 'z') name = "run-" + name;
  name.resize(std::min(name.size(), kLongestJobName));
  while (name.back() == '-') name.pop_back();
  return name;
}

void print_manifest(KubeOptions& o, const std::string& output) {
  const Recipe recipe = load_with_notes(o.recipe, o.overrides);
  check_replica_variables(recipe, "the JobSet");
  const PlannedRequest planned = complete_request(o, recipe);
  if (o.mem.empty()) {
    o.mem = fmt::format("{}Mi", planned.node_mib);
    o.notes.push_back(planned.memory_note);
  }
  if (o.name.empty()) o.name = kube_name(o.recipe);
  o.recipe_text = read_text_file(o.recipe, kMostRecipeBytes);
  o.token = to_hex(random_bytes(32));
  write_script(kube_manifest(o), output);
}

}  // namespace

void add_kube(CLI::App& app) {
  auto* command = app.add_subcommand("kube", "Prints the manifests of a run on Kubernetes (a JobSet)");
  auto o = std::make_shared<KubeOptions>();
  auto output = std::make_shared<std::string>();
  add_kube_options(*command, *o, *output);
  command->callback([o, output, command] {
    take_extras(*command, o->overrides);
    print_manifest(*o, *output);
  });
}

}  // namespace ltrain::app
