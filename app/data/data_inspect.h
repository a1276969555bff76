// ltrain data inspect.
#pragma once
#include <CLI/CLI.hpp>

#include "base/json/json.h"
#include "runtime/data/indexed_dataset.h"

namespace ltrain::app {

void add_inspect(CLI::App& data);

/// Contents of the index and the sidecar of token files, as `ltrain data` prints them.
nlohmann::ordered_json source_json(const data::SourceInfo& source);

}  // namespace ltrain::app
