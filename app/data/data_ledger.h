// ltrain data ledger.
#pragma once
#include <CLI/CLI.hpp>

namespace ltrain::app {

void add_ledger(CLI::App& data);

}  // namespace ltrain::app
