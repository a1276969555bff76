// Cluster files: nodes with one kind of card and the networks between them (docs/machines.md).
#pragma once
#include <string>

#include "runtime/machines/machine_profile.h"

namespace ltrain {

inline constexpr const char* kClusterFormat = "ltrain.cluster.v1";

/// Parses a cluster file into a machine profile of its cards, nodes and networks. `name` stands for the file
/// in messages. A profile file that it names is relative to its folder. Throws Error (usage) with every
/// problem found.
MachineProfile parse_cluster(const std::string& text, const std::string& name);
/// Returns whether `text` is a cluster file.
bool is_cluster_file(const std::string& text);

}  // namespace ltrain
