// --parallel, for commands that run a model for inference on several ranks.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>

#include "runtime/generate/session.h"

namespace ltrain::app {

/// Adds the option: "tensor=2" or "tensor=2,pipeline=2"; may be repeated. `to` must outlive the parsing.
void add_layout(CLI::App& command, ModelLayout& to);

/// Runs body(null) for a layout of one rank. Otherwise this process starts itself once per rank with its own
/// arguments, or is one of these ranks, and body(job) runs on each. Only rank 0 writes to stdout. `threads`:
/// total of all ranks of this node; 0: its cores. An impossible layout is refused first.
void on_ranks(const SessionOptions& session, int threads, const std::function<ExitCode(Job*)>& body);

}  // namespace ltrain::app
