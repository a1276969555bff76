// ltrain data stages.
#pragma once
#include <CLI/CLI.hpp>

namespace ltrain::app {

void add_stages(CLI::App& data);

}  // namespace ltrain::app
