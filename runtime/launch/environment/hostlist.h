// Slurm's compressed notations for hosts and for tasks per node.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

/// Expands "node[001-003,010],gpu7" to node001 node002 node003 node010 gpu7. "r[1-2]c[01-02]" gives all
/// combinations, with the last bracket varying fastest. Zero padding is kept. Fails with ExitCode::usage on
/// other text. `what`: name of the source.
std::vector<std::string> parse_hostlist(std::string_view text, std::string_view what);

/// Expands "2(x3),1" to 2 2 2 1.
std::vector<int> parse_tasks_per_node(std::string_view text, std::string_view what);

/// Ranges for messages: 0 1 2 5 7 8 gives "0-2, 5, 7-8".
std::string format_ranges(std::vector<int> numbers);

}  // namespace ltrain
