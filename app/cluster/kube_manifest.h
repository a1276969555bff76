// The manifests of `ltrain kube`: a JobSet with one pod a node, its recipe and its secret. Source of the
// format: JobSet v1alpha2 and batch/v1 of Kubernetes.
#pragma once
#include <string>
#include <vector>

#include "app/cluster/job_request.h"

namespace ltrain::app {

struct KubeOptions : JobRequest {
  std::string name, name_space;  ///< name_space empty: that of kubectl's context
  std::string image;
  std::string claim;            ///< PersistentVolumeClaim with data and output_dir
  std::string mount = "/work";  ///< folder of the claim in the pods, and their working folder
  std::string mem;              ///< memory of a pod, in Kubernetes' form
  int grace_seconds = 120;      ///< from SIGTERM to SIGKILL, in which ranks save
  int max_restarts = 20;        ///< restarts of all pods
  std::string recipe_text;
  std::string token;  ///< secret of the job, in hex digits
};

/// Longest name: a pod has it with "-node-0-NUMBER" and a random ending, and a host name 63 characters.
inline constexpr size_t kLongestJobName = 40;

/// Longest recipe: a ConfigMap holds 1 MiB.
inline constexpr size_t kMostRecipeBytes = 900 << 10;

/// Secret, ConfigMap and JobSet as three YAML documents. Throws Error (usage) for an option that Kubernetes
/// would refuse.
std::string kube_manifest(const KubeOptions& options);

/// Returns whether `text` is a quantity of memory: "16Gi", "800Mi", "4G".
bool is_kube_memory(const std::string& text);

}  // namespace ltrain::app
