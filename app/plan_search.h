// ltrain plan --search: its options, and what it prints and writes.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/plan_pictures.h"
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
/// An option of a search without --search is refused.
void check_search(const SearchOptions& options);

/// `given`: of `recipe` and `overrides`, with the device that the profile is of.
void search(const SearchOptions& options, const PictureOptions& pictures, const std::string& recipe,
            const std::vector<std::string>& overrides, Recipe given, const PlanPrices& prices, bool json);

}  // namespace ltrain::app
