// --parallel, for commands that run a model without training it, over the ranks that it names.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>

#include "runtime/generate/session.h"

namespace ltrain::app {

/// "tensor=2" or "tensor=2,pipeline=2", again for more. `to` outlives the parsing.
void add_layout(CLI::App& command, ModelLayout& to);

/// body(null) where the layout is one rank. Else this process starts itself once for each rank, with its own
/// arguments, or is one of them, whoever started it; body(job) runs on each. Rank 0 alone writes to stdout.
/// `threads`: of all ranks of this node; 0: its cores. What cannot be laid out so is refused before.
void on_ranks(const SessionOptions& session, int threads, const std::function<ExitCode(Job*)>& body);

}  // namespace ltrain::app
