#include "app/cluster/kube_manifest.h"

#include <algorithm>

#include "base/error.h"
#include "base/exit_codes.h"
#include "base/json/json.h"

namespace ltrain::app {
namespace {

/// A YAML scalar in double quotes.
std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

/// Returns whether `text` is a label of DNS: lower-case letters, digits and `-`, with a letter first.
bool is_label(const std::string& text, size_t most) {
  const auto good = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  return !text.empty() && text.size() <= most && text[0] >= 'a' && text[0] <= 'z' && text.back() != '-' &&
         std::all_of(text.begin(), text.end(), good);
}

void check_label(const char* option, const std::string& value, size_t most) {
  if (!is_label(value, most))
    fail(ExitCode::usage,
         "{}=\"{}\": expected at most {} lower-case letters, digits and `-`, beginning with a letter and not "
         "ending with `-`",
         option, value, most);
}

/// Fails for options that Kubernetes would refuse, or that are missing.
void check_options(const KubeOptions& o) {
  check_label("--name", o.name, kLongestJobName);
  if (!o.name_space.empty()) check_label("--namespace", o.name_space, 63);
  check_label("--claim", o.claim, 63);
  if (o.image.empty() || o.image.find_first_of(" \t\r\n\"") != std::string::npos)
    fail(ExitCode::usage, "--image=\"{}\": expected the name of an image, such as registry/ltrain:0.1",
         o.image);
  if (o.mount.size() < 2 || o.mount[0] != '/' || o.mount.find(':') != std::string::npos)
    fail(ExitCode::usage, "--mount=\"{}\": expected an absolute path without `:`, such as /work", o.mount);
  if (!is_kube_memory(o.mem))
    fail(ExitCode::usage, "--mem=\"{}\": expected a quantity of Kubernetes, such as 16Gi", o.mem);
  if (o.recipe_text.size() > kMostRecipeBytes)
    fail(ExitCode::usage, "{}: has {} bytes, and a ConfigMap holds {}", o.recipe, o.recipe_text.size(),
         kMostRecipeBytes);
}

std::string metadata(const KubeOptions& o, const std::string& name) {
  std::string t = fmt::format("metadata:\n  name: {}\n", name);
  if (!o.name_space.empty()) t += fmt::format("  namespace: {}\n", o.name_space);
  return t + fmt::format("  labels: {{app.kubernetes.io/name: ltrain, app.kubernetes.io/instance: {}}}\n",
                         o.name);
}

/// `text` as a literal block of YAML below a key with two spaces before it.
std::string literal_block(const std::string& text) {
  std::string out = "|2\n", line;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    line.assign(text, at, end - at);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    out += line.empty() ? "\n" : "    " + line + "\n";
    at = end + 1;
  }
  return out;
}

/// The container: command, environment, resources, folders.
std::string container(const KubeOptions& o) {
  std::string args = "run, /etc/ltrain/recipe.yaml";
  for (const std::string& s : o.overrides) args += ", " + quoted(s);
  const int cores = o.threads_per_rank * o.ranks_per_node;
  const std::string gpus =
      o.gpus_per_node > 0 ? fmt::format(", nvidia.com/gpu: \"{}\"", o.gpus_per_node) : "";
  const std::string resources = fmt::format("{{cpu: \"{}\", memory: {}{}}}", cores, o.mem, gpus);
  return fmt::format(R"(            containers:
            - name: ltrain
              image: {image}
              command: [ltrain]
              args: [{args}]
              workingDir: {mount}
              env:  # JOB_COMPLETION_INDEX, the number of the node, is set by Kubernetes
              - {{name: PET_NNODES, value: "{nodes}"}}
              - {{name: PET_NPROC_PER_NODE, value: "{ranks}"}}
              - {{name: PET_MASTER_ADDR, value: {name}-node-0-0.{name}}}
              - {{name: PET_MASTER_PORT, value: "29500"}}
              - name: LTRAIN_TOKEN
                valueFrom: {{secretKeyRef: {{name: {name}-token, key: token}}}}
              resources:
                requests: {resources}
                limits: {resources}
              volumeMounts:
              - {{name: recipe, mountPath: /etc/ltrain, readOnly: true}}
              - {{name: data, mountPath: {mount}}}
              - {{name: shm, mountPath: /dev/shm}}
            volumes:
            - name: recipe
              configMap: {{name: {name}-recipe}}
            - name: data
              persistentVolumeClaim: {{claimName: {claim}}}
            - name: shm  # NCCL's; counts towards the memory of the pod
              emptyDir: {{medium: Memory}}
)",
                     fmt::arg("image", quoted(o.image)), fmt::arg("args", args),
                     fmt::arg("mount", quoted(o.mount)), fmt::arg("nodes", o.nodes),
                     fmt::arg("ranks", o.ranks_per_node), fmt::arg("name", o.name),
                     fmt::arg("resources", resources), fmt::arg("claim", o.claim));
}

std::string job_set(const KubeOptions& o) {
  return fmt::format(
             R"(apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
{metadata}spec:
  network: {{enableDNSHostnames: true, publishNotReadyAddresses: true}}
  failurePolicy:
    # All pods start again from the newest whole checkpoint after a lost pod, a lost node, and exit codes
    # {again}. The other codes end the job: another start would end the same way, or needs somebody.
    maxRestarts: {restarts}
    rules:
    - {{name: useless, action: FailJobSet, onJobFailureReasons: [PodFailurePolicy]}}
  replicatedJobs:
  - name: node
    replicas: 1
    template:
      spec:
        parallelism: {nodes}
        completions: {nodes}
        completionMode: Indexed
        backoffLimit: 0
        podFailurePolicy:
          rules:
          - action: FailJob
            onExitCodes: {{containerName: ltrain, operator: In, values: [{final}]}}
        template:
          spec:
            restartPolicy: Never
            terminationGracePeriodSeconds: {grace}  # from SIGTERM on; ranks save and leave with 75
)",
             fmt::arg("metadata", metadata(o, o.name)), fmt::arg("again", codes_of_scripts(true, " and ")),
             fmt::arg("restarts", o.max_restarts), fmt::arg("nodes", o.nodes),
             fmt::arg("final", codes_of_scripts(false, ", ")), fmt::arg("grace", o.grace_seconds)) +
         container(o);
}

}  // namespace

bool is_kube_memory(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0 || digits > 15 || text[0] == '0') return false;
  const std::string unit = text.substr(digits);
  return unit == "Mi" || unit == "Gi" || unit == "Ti" || unit == "M" || unit == "G" || unit == "T";
}

std::string kube_manifest(const KubeOptions& o) {
  check_options(o);
  std::string t = fmt::format("# Made by `ltrain kube {}`: {} ranks on {} node{}. kubectl apply -f FILE\n",
                              o.recipe, o.nodes * o.ranks_per_node, o.nodes, o.nodes == 1 ? "" : "s");
  for (const std::string& note : o.notes) t += "# " + note + "\n";
  t += "# Only who has it joins the job.\napiVersion: v1\nkind: Secret\n" + metadata(o, o.name + "-token") +
       "stringData: {token: " + quoted(o.token) + "}\n---\n";
  t += "apiVersion: v1\nkind: ConfigMap\n" + metadata(o, o.name + "-recipe") +
       "data:\n  recipe.yaml: " + literal_block(o.recipe_text) + "---\n";
  return t + job_set(o);
}

}  // namespace ltrain::app
