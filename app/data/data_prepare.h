// ltrain data prepare.
#pragma once
#include <CLI/CLI.hpp>

namespace ltrain::app {

void add_prepare(CLI::App& data);

}  // namespace ltrain::app
