// Where a Slurm node is, when its name is none that the resolver knows (clouds, several slurmd on one host).
#pragma once
#include <string>

namespace ltrain {

/// NodeAddr from `scontrol show node`; empty when it cannot be told. `node` comes from a parsed hostlist.
std::string slurm_node_address(const std::string& node);

/// The NodeAddr= of scontrol's one-line output.
std::string parse_node_address(const std::string& scontrol_output);

}  // namespace ltrain
