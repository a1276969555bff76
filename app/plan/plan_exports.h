// Options of plan for users of other trainers: --export, --from-megatron, --flags.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "runtime/recipe/recipe.h"

namespace ltrain::app {

struct ExportOptions {
  std::string target, output, megatron;
  bool flags = false;
  bool without_recipe() const { return flags || !megatron.empty(); }
};

void add_export_options(CLI::App& command, ExportOptions& options);
/// Runs --flags and --from-megatron. `world`: value of --world, or 0.
void run_without_recipe(const ExportOptions& options, int world);
/// Runs --export.
void export_recipe(const ExportOptions& options, const Recipe& recipe);

}  // namespace ltrain::app
