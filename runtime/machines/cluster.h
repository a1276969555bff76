// A cluster: nodes of one kind of card and the networks between them, as a file says it (docs/machines.md).
#pragma once
#include <string>

#include "runtime/machines/machine_profile.h"

namespace ltrain {

inline constexpr const char* kClusterFormat = "ltrain.cluster.v1";

/// The profile of its cards with its nodes and networks. `name` stands for the file in messages; a profile
/// file that it names is looked for beside it. Throws Error (usage) with every problem found.
MachineProfile parse_cluster(const std::string& text, const std::string& name);
/// `text` says that it is one.
bool is_cluster_file(const std::string& text);

}  // namespace ltrain
