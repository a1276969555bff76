// ltrain plan --search: options and output.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/plan/plan_pictures.h"
#include "runtime/check/check_job.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::app {

struct SearchOptions {
  bool on = false, allow_fp8 = false;
  int gpus = 0;
  std::string keep_free, global_batch, write;
  int64_t max_tensor = 0;
  double seconds = 60;
  std::vector<int> explain;
};

void add_search(CLI::App& plan, SearchOptions& options);
/// Refuses an option of a search without --search.
void check_search(const SearchOptions& options);

/// `given`: recipe from `recipe` and `overrides`, with the device of the profile.
void search(const SearchOptions& options, const PictureOptions& pictures, const std::string& recipe,
            const std::vector<std::string>& overrides, Recipe given, const PlanPrices& prices, bool json);

}  // namespace ltrain::app
