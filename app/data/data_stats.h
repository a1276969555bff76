// ltrain data stats.
#pragma once
#include <CLI/CLI.hpp>

namespace ltrain::app {

void add_stats(CLI::App& data);

}  // namespace ltrain::app
