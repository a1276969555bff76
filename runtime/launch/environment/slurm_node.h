// Address of a Slurm node whose name cannot be resolved (clouds, several slurmd on one host).
#pragma once
#include <string>

namespace ltrain {

/// NodeAddr from `scontrol show node`; empty if unknown. `node` comes from a parsed hostlist.
std::string slurm_node_address(const std::string& node);

/// Value of NodeAddr= in scontrol's one-line output.
std::string parse_node_address(const std::string& scontrol_output);

}  // namespace ltrain
