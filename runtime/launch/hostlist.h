// Slurm's compressed notations for hosts and for tasks on each node.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ltrain {

/// "node[001-003,010],gpu7" -> node001 node002 node003 node010 gpu7; "r[1-2]c[01-02]" is a product, the last
/// bracket running fastest. Zero padding is kept. Fails with ExitCode::usage on anything else; `what` names
/// the source.
std::vector<std::string> parse_hostlist(std::string_view text, std::string_view what);

/// "2(x3),1" -> 2 2 2 1.
std::vector<int> parse_tasks_per_node(std::string_view text, std::string_view what);

/// 0 1 2 5 7 8 -> "0-2, 5, 7-8". For messages.
std::string format_ranges(std::vector<int> numbers);

}  // namespace ltrain
